"""Runs as their folders hold them."""

import json
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.harness.findings.step_columns import ends_of
from experiments.harness.journal import JOURNAL, UNITS, read_entries
from experiments.harness.models import record_file
from experiments.harness.run_outcome import Outcome
from specdec.stats import Stats


@dataclass(frozen=True)
class Run:
    """A run of an experiment whose arms are paired with plain decoding, at its end.

    Attributes:
        folder: that it wrote.
        label: its name on the page.
        anchor: the same as part of an anchor, different for each run of a page.
        summary: of ``summary.json``; what is not a number there is None.
        outcome: of ``units.jsonl``, or of the journal that a run with problems leaves.
        page_arms: all arms of the page other than plain decoding, whose places decide colours; (): the run's own.
    """

    folder: Path
    label: str
    anchor: str
    summary: dict[str, Any]
    outcome: Outcome
    page_arms: Sequence[str] = ()

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

    def flag(self, name: str) -> str:
        """Return the option of an argument; strategies that share a command line have their name before their own."""
        strategy, _, key = name.rpartition(".")
        prefix = f"{strategy}-" if strategy and strategy != self.facts["experiment"] else ""
        return f"--{prefix}{key}".replace("_", "-")

    @property
    def is_timed(self) -> bool:
        """Whether its times mean something: a model ran, not recorded text."""
        return record_file(self.arguments) is None

    @property
    def drafting(self) -> dict[str, Stats]:
        """The statistics of every arm of ours beside plain decoding."""
        found = {arm: self.outcome.stats(arm) for arm in self.outcome.arms if arm != PLAIN}
        return {arm: stats for arm, stats in found.items() if stats is not None}

    @property
    def peers(self) -> list[str]:
        """Names of the arms that are other programs."""
        return [arm for arm in self.outcome.arms if self.outcome.stats(arm) is None]

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
    if not path.is_file():
        if (folder / JOURNAL).exists():
            raise _unfinished_error(folder)
        raise ValueError(f"RUN {folder}: no summary.json; give a folder of compare, or of a strategy's experiment")
    summary = read_json(path)
    arms, facts, problems = (summary.get(name) for name in ("arms", "provenance", "problems"))
    if problems and arms is None:
        raise ValueError(f"RUN {folder}: it measured nothing and ended with problems: {'; '.join(problems)}")
    is_whole = isinstance(facts, dict) and "arguments" in facts and isinstance(problems, list)
    if not (isinstance(arms, dict) and PLAIN in arms and is_whole):
        raise ValueError(f"RUN {folder}: its summary has no arms beside plain decoding; give a folder of compare, say")
    return summary


def _unfinished_error(folder: Path) -> ValueError:
    return ValueError(f"RUN {folder}: not finished ({JOURNAL} lies there); its command, run again, goes on with it")


def _outcome(folder: Path, summary: Mapping[str, Any]) -> Outcome:
    """Return the units of a run.

    Raises:
        ValueError: the run is not at its end; they are absent, of other arms, or written by another version.
    """
    arms, path, journal = list(summary["arms"]), folder / UNITS, folder / JOURNAL
    # A run with problems ends with a journal: the units beside it are of an earlier one.
    is_whole = path.is_file() and not (journal.exists() and summary["problems"])
    if not (journal.exists() or is_whole):
        raise ValueError(f"RUN {folder}: no {UNITS} beside its summary; measure again")
    # A unit that failed and was tried again has several entries: the last one holds.
    entries = {entry["unit"]: entry for entry in read_entries(path if is_whole else journal)}
    outcome = Outcome(arms, [entries[unit] for unit in sorted(entries)])
    try:
        if not (is_whole or _has_problems(outcome, summary)):
            raise _unfinished_error(folder)
        if not outcome.done or any(set(entry["arms"]) != set(arms) for entry in outcome.done):
            raise ValueError(f"RUN {folder}: {UNITS} and summary.json are not of one run; measure again")
        outcome.problems()
        for arm in arms:
            outcome.settings(arm)
            outcome.performers(arm)
            if outcome.stats(arm) is not None:
                ends_of(outcome, arm)
    except (KeyError, TypeError) as error:
        raise ValueError(f"RUN {folder}: written by another version ({error}); measure again") from error
    if is_whole and journal.exists():
        print(f"RUN {folder}: a newer run was interrupted there; this is the one before it, whole", file=sys.stderr)
    return outcome


def _has_problems(outcome: Outcome, summary: Mapping[str, Any]) -> bool:
    """Tell whether a journal belongs to the summary beside it: a run with problems leaves both, as a kill does."""
    problems, prompts = summary["problems"], summary["arms"][PLAIN]["prompts"]
    measured = sum(len(entry["prompts"]) for entry in outcome.done)
    return bool(problems) and set(outcome.problems()) <= set(problems) and measured == prompts


def load_runs(folders: Sequence[Path], labels: Mapping[Path, str] | None = None) -> list[Run]:
    """Return the runs of some folders, in their order.

    Args:
        folders: that experiments wrote.
        labels: folder -> its name on the page; other folders have their own names.

    Raises:
        ValueError: a folder given twice, or one that holds no run at its end; with the reason and the fix.
    """
    found: list[Run] = []
    names = [folder.resolve().name for folder in folders]
    for folder in folders:
        place = folder.resolve()
        if any(run.folder == place for run in found):
            raise ValueError(f"RUN {folder}: given twice; leave one out")
        summary = _summary(folder)
        own = place.name if names.count(place.name) == 1 else f"{place.parent.name}/{place.name}"
        label = (labels or {}).get(folder, own)
        anchor = f"run-{len(found) + 1}-{re.sub(r'[^A-Za-z0-9]+', '-', place.name)}"
        found.append(Run(place, label, anchor, summary, _outcome(folder, summary)))
    arms = list(dict.fromkeys(arm for run in found for arm in run.outcome.arms if arm != PLAIN))
    return [replace(run, page_arms=arms) for run in found]
