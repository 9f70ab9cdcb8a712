"""What studies of arms at batch sizes share: options, figures kept in a file, the frame of their report."""

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import torch

from exactspec.parser import number_in, positive
from experiments.bench.sections import machine
from experiments.harness.options import option, parse_options
from experiments.harness.thread_check import take_threads
from experiments.studies.inference_stack.subjects import Subject
from specdec.stats import Table
from specdec.stats.report import Shown, processor, provenance
from specdec.system import hold, read_object, write_whole

Finding = dict[str, Any]
FIGURES = "results.json"


def one_line(error: Exception) -> str:
    """Return the kind of an error and the first line of what it says."""
    return f"{type(error).__name__}: {error}".splitlines()[0]


class Results:
    """Figures of arms at batch sizes, by the part of the study that measured them.

    Args:
        folder: for the files; made if it is not there.
        arguments: what the figures depend on.
        commit: of the program; every figure carries the commit that measured it.

    Raises:
        ValueError: the folder holds figures of other arguments, or a file that is damaged.
    """

    def __init__(self, folder: Path, arguments: Mapping[str, Any], commit: str | None = None) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._commit, self._path = commit, folder / FIGURES
        self._all: Finding = {"arguments": dict(arguments), "provenance": {}, "measured": {}}
        if self._path.exists():
            held = read_object(self._path, self._all, "give another folder, or --fresh")
            differ = [name for name, value in arguments.items() if held["arguments"].get(name) != value]
            if differ:
                changed = ", ".join(f"{name} was {held['arguments'].get(name)!r}" for name in differ)
                raise ValueError(
                    f"--out: {folder} holds figures of other arguments ({changed}); give another folder, or --fresh"
                )
            self._all = held
        else:  # what else is kept here is of these arguments too
            self._write()

    def get(self, part: str, batch: int, arm: str) -> Finding | None:
        """Return what a part has measured of an arm; None if it has not."""
        found: Finding | None = self._all["measured"].get(f"{part}, batch {batch}", {}).get(arm)
        return found

    def lacking(self, part: str, batch: int, arms: Iterable[str]) -> list[str]:
        """Return those arms that a part has not measured, or that failed in it."""
        return [arm for arm in arms if "failed" in (self.get(part, batch, arm) or {"failed": ""})]

    def fill(self, part: str, batch: int, arms: Iterable[str], measure: Callable[[str], Finding]) -> None:
        """Measure the arms that a part lacks, one by one; what an arm raises is its failure, and leaves the others."""
        for arm in self.lacking(part, batch, arms):
            try:
                found = measure(arm)
            except Exception as error:  # whatever an arm, a compiler or another program raises
                found = {"failed": one_line(error)}
            self.put(part, batch, {arm: found})

    def put(self, part: str, batch: int, found: Mapping[str, Finding]) -> None:
        """Keep what a part has measured of some arms."""
        signed = {arm: {**figures, "commit": self._commit} for arm, figures in found.items()}
        self._all["measured"].setdefault(f"{part}, batch {batch}", {}).update(signed)
        self._write()

    @property
    def commits(self) -> list[str]:
        """The commits of the programs that measured the figures, in alphabetical order."""
        return sorted({str(found["commit"]) for arms in self._all["measured"].values() for found in arms.values()})

    def sign(self, provenance: Mapping[str, Any]) -> None:
        """Note where, and by which program, the figures were last measured."""
        self._all["provenance"] = dict(provenance)
        self._write()

    def _write(self) -> None:
        write_whole(self._path, json.dumps(self._all, indent=1))


@dataclass(frozen=True)
class StudyOptions:
    """What was asked for."""

    subject: str
    batches: tuple[int, ...] = option((1, 8, 32, 128), "batch sizes", measured=False)
    rounds: int = option(10, "timed rounds")
    warm_ups: int = option(3, "rounds before the timed ones")
    round_seconds: float = option(0.3, "least seconds of a round", type=number_in("[0, inf)"))
    num_prompts: int = option(10_000, "prompts that the timed rounds draw from")
    gate_prompts: int | None = option(
        None, "prompts whose outputs are compared (all: 3,277 problems of arithmetic)", type=positive
    )
    threads: int = option(None, "torch threads (torch's own choice)", type=positive)
    out: Path = option(None, "folder for the figures (runs/NAME/SUBJECT)", measured=False, type=Path)
    fresh: bool = option(False, "drop the figures that lie in --out", measured=False)


Options = TypeVar("Options", bound=StudyOptions)


def parse_study(
    kind: type[Options],
    name: str,
    description: str | None,
    argv: Sequence[str] | None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = lambda values: values,
) -> Options:
    """Return what is asked of the study of that name; the rest, and errors, as of ``parse_options``."""

    def with_defaults(values: dict[str, Any]) -> dict[str, Any]:
        out = values["out"] or Path("runs") / name / values["subject"]
        return complete({**values, "out": out, "threads": values["threads"] or torch.get_num_threads()})

    return parse_options(kind, description, argv, with_defaults)


@contextmanager
def open_results(options: StudyOptions, *others: str) -> Iterator[Results]:
    """Hold a study's folder until the block ends, and sign the figures if it ends well.

    Args:
        options: of the study.
        others: further files of its own that --fresh drops.

    Returns:
        The figures in the folder.

    Raises:
        ValueError: see ``specdec.system.hold`` and ``Results``.
    """
    with hold(options.out, "--out"):
        take_threads(options.threads)
        for name in (FIGURES, *others) if options.fresh else ():
            (options.out / name).unlink(missing_ok=True)
        given = vars(options)
        signature = provenance({name: str(value) for name, value in given.items()}, given.get("device", "cpu"))
        kept = {one.name: given[one.name] for one in fields(options) if one.metadata.get("measured")}
        place = f"{processor()}, {signature['device']}"
        results = Results(options.out, {**kept, "machine": place}, signature["commit"])
        yield results
        results.sign(signature)


def study_report(
    options: StudyOptions,
    subject: Subject,
    results: Results,
    tables: Mapping[str, Iterable[Mapping[str, Any]]],
    failed: Sequence[str],
    notes: Sequence[str] = (),
) -> list[Shown]:
    """Return a heading, the tables of these titles that have rows, notes, and what failed."""
    told: list[Shown] = [
        f"{machine()}; threads {options.threads}; {options.subject}: prompts of {subject.prompt_length} ids, "
        f"{subject.num_new} new ones; {options.rounds} rounds."
    ]
    if len(results.commits) > 1:
        told.append(f"The figures were measured at several commits: {', '.join(results.commits)}.")
    told += [*(Table(title, rows) for title, found in tables.items() if (rows := [*found])), *notes]
    return told + (["\n".join(["FAILED:", *(f"- {line}" for line in failed)])] if failed else [])
