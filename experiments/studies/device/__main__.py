"""Compare a device with the CPU, and passes in graphs with eager ones.

``python -m experiments.studies.device`` has five parts: scores and texts of an oracle against the CPU's; time and bits
of a layer's attention by width, batch and context; passes of random weights, eager, in graphs and bitwise; whole runs;
and whether speculation writes plain decoding's tokens in the last two modes. Each part is a JSON file in --out. Figures
of the same arguments, files, code, device and versions are not measured again, so an interrupted run goes on; --fresh
begins anew. ``--device cpu --shapes tiny`` tries the program without a device.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.harness.arguments import fingerprint
from experiments.studies.device.device_layers import attentions
from experiments.studies.device.device_models import DeviceOptions, parse
from experiments.studies.device.device_passes import agreement, decoding, identity, passes, texts
from specdec.stats import Table
from specdec.stats.report import provenance, show, version_of
from specdec.system import hold, read_object, write_whole

MEASURE: dict[str, Callable[[DeviceOptions], Iterable[dict[str, Any]]]] = {
    "agreement": agreement, "attention": attentions, "passes": passes, "decoding": decoding, "identity": identity,
}  # fmt: skip


def figures(part: str, options: DeviceOptions) -> list[dict[str, Any]]:
    """Return the rows of a part: from its file if the same was measured before, else measured now and written there."""
    facts = provenance(asdict(options), options.place)
    asked = {name: value for name, value in facts["arguments"].items() if name != "parts"}
    key = {
        "arguments, files, code": fingerprint(asked, texts(options, None)),
        "device": facts["device"],
        "triton": version_of("triton"),
    }
    path = options.out / f"{part}.json"
    if not options.fresh and path.is_file():
        kept = read_object(path, ("of", "rows"), "delete it, or give --fresh")
        if kept["of"] == key:
            rows: list[dict[str, Any]] = kept["rows"]
            return rows
    made = [*MEASURE[part](options)]
    write_whole(path, json.dumps({"of": key, "provenance": facts, "rows": made}, indent=1) + "\n")
    return made


def main(argv: Sequence[str] | None = None) -> int:
    """Measure what is missing, and print the tables; return 1 if texts differ that must be equal."""
    options = parse(argv, __doc__)
    differing: list[dict[str, Any]] = []
    with refusing("device"), hold(options.out, "--out"):
        for part in options.parts:
            rows = figures(part, options)
            show([Table(part, rows), ""])
            differing += [row for row in rows if row.get("texts that differ") and row["exactness"] == "exact"]
    print(f"JSON: {options.out}")
    if differing:
        cases = "; ".join(f"{row['mode']}, {row['arm']}" for row in differing)
        print(f"FAILED: texts that are to be equal differ: {cases}", file=sys.stderr)
    return int(bool(differing))


if __name__ == "__main__":
    as_program(main)
