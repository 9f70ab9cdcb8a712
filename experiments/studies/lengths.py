"""Measure strategies after prompts of many lengths: the same places in the same texts, with more or less before them.

A longer prompt lets lookups find more, gives passes a longer cache to read, and takes longer to prefill. Without
--prompts, the texts are held-out modules of the local standard library.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import positive
from experiments.harness.arguments import paired_parser
from experiments.harness.arms import PLAIN
from experiments.harness.conversations import NONE
from experiments.harness.findings.step_columns import REASONS, reason
from experiments.harness.models import HF, needing_a_model
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END, SPEEDS, Outcome, speed_cells
from experiments.harness.running import comparing, comparing_plan, run
from oracles.checkpoints.loading import load_tokenizer
from oracles.factory.corpus import STDLIB, load_manifest, stdlib_folder
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats import Table

# Of what decoding alone is made.
_PARTS = ("alpha", "T ms", "v", "c", "propose/T", "other/T")
LENGTHS = (64, 128, 256, 512, 1024, 1920)
_LEGEND = {"prompt": "its length in ids", **SPEEDS, **{name: REASONS[name] for name in ("tau", *_PARTS)}}


def modules_held_out() -> list[NamedPrompt]:
    """Return the held-out modules of the local standard library, whatever version it has.

    Raises:
        ValueError: there is none.
    """
    names = [entry.path for entry in load_manifest().split("test") if entry.package == STDLIB]
    found = [(name, path) for name in names if (path := stdlib_folder() / name).is_file()]
    if not found:
        raise ValueError(f"no held-out module lies in {stdlib_folder()}; give long texts with --prompts")
    return [NamedPrompt(name, "module", path.read_text(encoding="utf-8", errors="ignore")) for name, path in found]


def choose(arguments: Mapping[str, Any]) -> list[NamedPrompt]:
    """Return the ids before one place of each text, in every length that was asked for; the length is the kind.

    Raises:
        ValueError: the oracle has no tokenizer, or no text is long enough.
    """
    source = arguments["prompts"]
    texts = modules_held_out() if source is None else load_prompts(source, arguments["column"], None)
    tokenizer, longest = load_tokenizer(arguments["oracle"].removeprefix(HF)), max(arguments["lengths"])
    least = longest + arguments["max_new_tokens"]
    cut = [(text.name, tokenizer.encode(text.text).ids) for text in texts]
    enough = [(name, ids) for name, ids in cut if len(ids) >= least]
    if not enough:
        raise ValueError(f"no text has {longest} ids and {arguments['max_new_tokens']} more: ask for shorter --lengths")
    if len(enough) < len(cut):
        print(f"left out: {len(cut) - len(enough)} of {len(cut)} texts have fewer than {least} ids", file=sys.stderr)
    return [
        NamedPrompt(f"{name}, {length}", str(length), tokenizer.decode(ids[longest - length : longest]), origin=name)
        for length in arguments["lengths"]
        for name, ids in enough[: arguments["num_prompts"]]
    ]


def tables_of(outcome: Outcome) -> list[Table]:
    """Return a row for every arm and length: both ratios of speed, and what decoding alone is made of."""
    rows: list[dict[str, Any]] = []
    for arm in outcome.arms:
        for length in outcome.kinds:
            plain, stats = outcome.stats(PLAIN, length), outcome.stats(arm, length)
            if arm == PLAIN or plain is None or stats is None:
                continue
            why = reason(plain, stats)
            row: dict[str, Any] = {"arm": arm, "prompt": int(length), **speed_cells(outcome, arm, length)}
            row["tau"] = str(outcome.block_efficiency(arm, length))
            row |= {name: why[name] for name in _PARTS}
            rows.append(row)
    title = "By length of the prompt"
    brief = ("arm", "prompt", DECODING_ALONE, END_TO_END, "tau")
    return [Table(title, rows, "", title, brief, _LEGEND)] if rows else []


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the table after those of all experiments."""
    own = paired_parser(__doc__, num_prompts=12, usual_prompts="held-out modules of the standard library")
    parser = comparing(own, ["prompt_lookup", "ngram", "small_transformer"])
    text = f"ids of a prompt ({' '.join(map(str, LENGTHS))})"
    parser.add_argument("--lengths", type=positive, nargs="+", default=list(LENGTHS), help=text)
    parser.set_defaults(prompts=None, template=NONE)
    arguments = needing_a_model(vars(parser.parse_args(argv)), "lengths")
    plan = comparing_plan("lengths", {**arguments, "lengths": sorted(set(arguments["lengths"]))})
    return run(plan, tables=tables_of, choose=choose)


if __name__ == "__main__":
    as_program(main)
