"""Runs as their folders hold them."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.arms import PLAIN
from experiments.journal import JOURNAL, read_entries
from experiments.models import recorded_file
from experiments.outcome import Outcome
from specdec.stats import Stats


@dataclass(frozen=True)
class Run:
    """A finished run of an experiment whose arms are paired with plain decoding.

    Attributes:
        folder: that it wrote.
        label: its name on the page.
        anchor: the same as part of an anchor, different for each run of a page.
        summary: of ``summary.json``; what was no number there is None.
        outcome: of ``units.jsonl``.
    """

    folder: Path
    label: str
    anchor: str
    summary: dict[str, Any]
    outcome: Outcome

    @property
    def facts(self) -> dict[str, Any]:
        """The provenance."""
        facts: dict[str, Any] = self.summary["provenance"]
        return facts

    @property
    def arguments(self) -> dict[str, Any]:
        """Those of the run."""
        arguments: dict[str, Any] = self.facts["arguments"]
        return arguments

    @property
    def is_timed(self) -> bool:
        """Whether its times mean something: a model ran, not recorded text."""
        return recorded_file(self.arguments) is None

    @property
    def drafting(self) -> dict[str, Stats]:
        """The statistics of every arm of ours beside plain decoding."""
        found = {arm: self.outcome.stats(arm) for arm in self.outcome.arms if arm != PLAIN}
        return {arm: stats for arm, stats in found.items() if stats is not None}

    @property
    def plain(self) -> Stats:
        """The statistics of plain decoding."""
        stats = self.outcome.stats(PLAIN)
        assert stats is not None
        return stats


def read_json(path: Path) -> dict[str, Any]:
    """Return what a JSON file holds; NaN and infinities are None.

    Raises:
        ValueError: it holds no object.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"), parse_constant=lambda _: None)
    except ValueError as error:
        raise ValueError(f"{path} is broken ({error}): measure again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object: measure again")
    return found


def _summary(folder: Path) -> dict[str, Any]:
    """Return the summary of a finished run.

    Raises:
        ValueError: it is none; with the reason and the fix.
    """
    path = folder / "summary.json"
    if not folder.is_dir():
        raise ValueError(f"RUN {folder}: no such folder; give one that an experiment wrote, as its last line names it")
    if (folder / JOURNAL).exists():
        raise ValueError(f"RUN {folder}: not finished ({JOURNAL} lies there); its command, run again, goes on with it")
    if not path.is_file():
        raise ValueError(f"RUN {folder}: no summary.json; give a folder of compare, or of a strategy's experiment")
    summary = read_json(path)
    arms, facts = summary.get("arms"), summary.get("provenance")
    if not (isinstance(arms, dict) and PLAIN in arms and isinstance(facts, dict) and "arguments" in facts):
        raise ValueError(f"RUN {folder}: its summary has no arms beside plain decoding; give a folder of compare, say")
    return summary


def _outcome(folder: Path, arms: Sequence[str]) -> Outcome:
    """Return the finished units of a run.

    Raises:
        ValueError: they are absent, of other arms, or written by another version.
    """
    path = folder / "units.jsonl"
    if not path.is_file():
        raise ValueError(f"RUN {folder}: no units.jsonl beside its summary; measure again")
    outcome = Outcome(arms, read_entries(path))
    if not outcome.done or any(set(entry["arms"]) != set(arms) for entry in outcome.done):
        raise ValueError(f"RUN {folder}: units.jsonl and summary.json are not of one run; measure again")
    try:
        for arm in arms:
            outcome.stats(arm)
    except TypeError as error:
        raise ValueError(f"RUN {folder}: written by another version ({error}); measure again") from error
    return outcome


def load_runs(folders: Sequence[Path]) -> list[Run]:
    """Return the runs of some folders, in their order.

    Raises:
        ValueError: a folder given twice, or one that holds no finished run; with the reason and the fix.
    """
    found: list[Run] = []
    names = [folder.resolve().name for folder in folders]
    for folder in folders:
        place = folder.resolve()
        if any(run.folder == place for run in found):
            raise ValueError(f"RUN {folder}: given twice; leave one out")
        summary = _summary(folder)
        label = place.name if names.count(place.name) == 1 else f"{place.parent.name}/{place.name}"
        anchor = f"run-{len(found) + 1}-{re.sub(r'[^A-Za-z0-9]+', '-', place.name)}"
        found.append(Run(place, label, anchor, summary, _outcome(folder, list(summary["arms"]))))
    return found
