"""The records of all arms of a run, as one file."""

from pathlib import Path
from typing import Any

from experiments.harness.run_outcome import Outcome
from specdec.prompts import without_bars


def write_records(outcome: Outcome, path: Path, timed: bool = True) -> None:
    """Write the records of all arms as one parquet file: one row per arm, round, prompt and step; with times or not."""
    columns: dict[str, list[Any]] = {}
    for entry in outcome.done:
        for arm, kept in entry["arms"].items():
            if kept["records"]:
                prompts = [entry["prompts"][i] for i in kept["records"]["request"]]
                own = {"arm": [arm] * len(prompts), "kind": [entry["kind"]] * len(prompts), "prompt": prompts}
                which = zip(kept["records"]["round"], kept["records"]["request"], strict=True)
                own["finish_reason"] = [kept["finish_reasons"][number][i] for number, i in which]
                for name, values in {**own, **kept["records"]}.items():
                    columns.setdefault(name, []).extend(values)
    columns = {name: values for name, values in columns.items() if timed or not name.startswith("seconds")}
    with without_bars() as datasets:
        datasets.Dataset.from_dict(columns).to_parquet(str(path))
