"""The run that is written by hand, as a page reads it."""

import json
from pathlib import Path
from typing import Any

from experiments.harness.findings.summary import write
from experiments.report.runs import Run
from tests.support.runs.hand_run import Hand

FACTS: dict[str, Any] = {
    "arguments": {"oracle": "code", "temperature": 0.0, "batch_size": 1, "max_new_tokens": 8},
    "device": "cpu",
    "backend": "eager",
    "threads": 1,
    "experiment": "compare",
}


def hand_page_run(made: Hand, folder: Path, **facts: Any) -> Run:
    """Return the run, after its summary was written."""
    write(made.outcome, folder, {**FACTS, **facts}, made.outcome.problems())
    summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return Run(folder, "run", "run", summary, made.outcome)
