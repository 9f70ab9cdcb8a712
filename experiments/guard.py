"""Fail if drafts lost acceptance or speed between two runs of one experiment, at two commits or two times.

``python -m experiments.guard RUN REFERENCE`` reads the folders that an experiment, such as ``compare``, wrote. For
every drafting arm it compares accept_len, the tokens of a verify pass, and the speed over plain decoding of the same
run. It exits with 1 and the table if either fell: the speed, by more than two runs of one program may differ. It
refuses runs that differ in experiment, arguments or prompts. If the processor, --threads, --device or --backend differ,
it does not judge speed.
"""

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import Parser, refusing
from experiments.harness.arguments import measuring_arguments
from experiments.harness.run_outcome import END_TO_END, SPEEDS
from experiments.report.runs import Run, load_runs
from specdec.stats import Table
from specdec.stats.report import FEWEST_UNITS, Interval, Shown, ratio_change, show, smallest_loss, swap_p_value

# How often, in guards of unchanged programs, any arm or figure at all is said to have fallen.
FALSE_ALARMS = 0.01
POWER = 0.9
# By how much whole runs of one program may differ in speed: memory lies elsewhere, the clock, neighbours.
SPEED_TOLERANCE = 0.05
ACCEPT_LEN, SPEED = "accept_len", "speed"
# Provenance in which runs may differ: what computed, and when.
_MACHINE = ("processor", "cores", "threads", "device")
_PLACE = ("threads", "device", "backend")  # the same, as options
_VERSION = ("time", "commit", "python", "packages", "platform", "backend", "key", "arguments", "refused")
COLUMNS = {
    "run, reference": "the figure in each (accept_len: tokens of a row's verify pass, the last one included; speed: "
    f"{END_TO_END}, {SPEEDS[END_TO_END]})",
    "change": "run over reference with its interval, paired by prompt or batch",
    "p": "of the test that swaps a unit's figures between the runs",
    "sees": f"the smallest loss that would be found with a chance of {POWER:.0%}, if prompts vary as measured and the "
    "logarithms of their changes are roughly normal; it is found less often if a few prompts stall",
    "fell": "whether the interval lies below 1 (for a speed: below 1 less the tolerance) and p, which tests the same "
    "bound, is at most the rate of false alarms of one figure",
}


@dataclass(frozen=True)
class Figure:
    """A figure of an arm, in both runs.

    Attributes:
        arm: its name.
        name: of the figure.
        new, old: numerators and denominators by unit, of the run and of the reference.
        bound: the change below which the figure fell.
    """

    arm: str
    name: str
    new: tuple[Sequence[float], Sequence[float]]
    old: tuple[Sequence[float], Sequence[float]]
    bound: float = 1.0


@dataclass(frozen=True)
class Finding:
    """What became of a figure.

    Attributes:
        figure: of which arm.
        change: run over reference; its upper bound is at the one-sided level of one figure.
        p_value: of ``swap_p_value``.
        rate: of false alarms of one figure.
    """

    figure: Figure
    change: Interval
    p_value: float
    rate: float

    @property
    def fell(self) -> bool:
        """Whether the figure fell: the interval and the test must agree."""
        return self.change.high is not None and self.change.high < self.figure.bound and self.p_value <= self.rate

    def row(self) -> dict[str, Any]:
        """Return the row of the table."""
        now, was = (sum(above) / sum(below) for above, below in (self.figure.new, self.figure.old))
        change = self.change
        return {
            "arm": self.figure.arm,
            "figure": self.figure.name,
            "run": f"{now:.3f}",
            "reference": f"{was:.3f}",
            "change": f"{change.value:.3f} [{change.low:.3f}, {change.high:.3f}]",
            "p": f"{self.p_value:.2g}",
            "sees": f"{smallest_loss(change, POWER, self.figure.bound):.1%}",
            "fell": "FELL" if self.fell else "no",
        }


def one_run(folder: Path) -> Run:
    """Return the run of a folder.

    Raises:
        ValueError: it holds no run that has ended, or one that ended with problems.
    """
    (run,) = load_runs([folder])
    if run.summary["problems"]:
        raise ValueError(f"RUN {folder}: it ended with problems, the first: {run.summary['problems'][0]}")
    return run


def check_same(run: Run, reference: Run) -> None:
    """Refuse runs that do not measure the same.

    Raises:
        ValueError: names what differs: an option, such as the rule; a template, or other provenance; arms; prompts.
    """
    one, other = _identity(run), _identity(reference)
    for name in dict.fromkeys((*one, *other)):
        if one.get(name) != other.get(name):
            both = f"{one.get(name)!r} in RUN, {other.get(name)!r} in REFERENCE"
            raise ValueError(f"another {name}: {both}; a guard compares runs of the same, so measure one of them again")


def _identity(run: Run) -> dict[str, Any]:
    """Return what both runs must have in common, by name."""
    facts: dict[str, Any] = {}
    for name, value in run.facts.items():
        if name not in _MACHINE + _VERSION:
            nested = value if isinstance(value, dict) else {}
            facts |= {f"{name}, {part}": one for part, one in nested.items()} or {name: value}
    kept = {name: value for name, value in measuring_arguments(run.arguments).items() if name not in _PLACE}
    options = {run.flag(name): value for name, value in kept.items()}
    prompts = [name for entry in run.outcome.done for name in entry["prompts"]]
    return {**options, **facts, "list of arms": list(run.outcome.arms), "list of prompts": prompts}


def other_machine(run: Run, reference: Run) -> str | None:
    """Return how the machines, or the options that place models on them, differ; None: speeds can be compared."""
    pairs = {name: (run.facts.get(name), reference.facts.get(name)) for name in _MACHINE}
    pairs |= {f"--{name}": (run.arguments.get(name), reference.arguments.get(name)) for name in _PLACE}
    told = [f"{name} {new} in place of {old}" for name, (new, old) in pairs.items() if new != old]
    return ", ".join(told) or None


def figures_of(run: Run, reference: Run, is_timed: bool, tolerance: float) -> list[Figure]:
    """Return the figures of all drafting arms of ours: tokens of a pass, and speeds if they can be compared."""
    found = []
    for arm in run.drafting:
        found.append(
            Figure(arm, ACCEPT_LEN, run.outcome.tokens_and_steps(arm), reference.outcome.tokens_and_steps(arm))
        )
        if is_timed:
            found.append(Figure(arm, SPEED, run.outcome.times(arm), reference.outcome.times(arm), 1 - tolerance))
    return found


def judge(figures: Sequence[Figure]) -> list[Finding]:
    """Return what became of figures; ``FALSE_ALARMS`` holds for all of them together.

    Raises:
        ValueError: too few units for any fall to be found.
    """
    rate, units = FALSE_ALARMS / len(figures), len(figures[0].new[0])
    needed = max(FEWEST_UNITS, math.ceil(-math.log2(rate)))
    if units < needed:
        raise ValueError(
            f"{units} prompts or batches cannot show a fall of {len(figures)} figures with {FALSE_ALARMS:.0%} of false "
            f"alarms: measure at least {needed}"
        )
    return [
        Finding(one, ratio_change(one.new, one.old, 1 - 2 * rate), swap_p_value(one.new, one.old, one.bound), rate)
        for one in figures
    ]


def verdict_of(findings: Sequence[Finding], tolerance: float) -> str:
    """Return what was found in a sentence, and how far to trust it."""
    fell = [f"{one.figure.name} of {one.figure.arm}" for one in findings if one.fell]
    said = f"FELL: {', '.join(fell)}." if fell else "Nothing fell."
    rate = (
        f"{said} Of guards of an unchanged program {FALSE_ALARMS:.0%} at most say that anything fell, over all "
        f"{len(findings)} figures together ({findings[0].rate:.2%} a figure)"
    )
    if not any(one.figure.name == SPEED for one in findings):
        return f"{rate}."
    return f"{rate}, as long as speeds of whole runs of it differ by less than the tolerance of {tolerance:.1%}."


def guard(run: Run, reference: Run, tolerance: float = SPEED_TOLERANCE) -> tuple[list[Shown], bool]:
    """Return what became of a run's figures beside a reference, the verdict first, and whether none fell.

    Args:
        run, reference: of the same experiment.
        tolerance: the share of an arm's speed that may be lost between whole runs of one program, in [0, 1).

    Raises:
        ValueError: the tolerance is not one, the runs are not of the same experiment, nothing drafted, or there are too
            few prompts.
    """
    if not 0 <= tolerance < 1:
        raise ValueError(f"--speed-tolerance must be a share in [0, 1), such as 0.05; got {tolerance}")
    check_same(run, reference)
    if not run.drafting:
        raise ValueError("no arm beside plain decoding drafts: there is nothing to guard")
    machine = other_machine(run, reference)
    findings = judge(figures_of(run, reference, machine is None and run.is_timed, tolerance))
    rows = [one.row() for one in findings]
    parts: list[Shown] = [verdict_of(findings, tolerance)]
    if machine is not None:
        parts.append(
            f"Speed is not judged: another machine, or another way to use it ({machine}). Acceptance is: it depends on "
            "that only if near ties or draws fall otherwise there."
        )
    elif not run.is_timed:
        parts.append("Speed is not judged: no model ran.")
    if run.peers:
        parts.append(f"Not judged, other programs: {', '.join(run.peers)}.")
    return [*parts, Table("Figures", rows, legend=COLUMNS)], not any(one.fell for one in findings)


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = Parser(__doc__)
    parser.add_argument("run", type=Path, metavar="RUN", help="folder of the run to judge")
    parser.add_argument(
        "reference", type=Path, metavar="REFERENCE", help="folder of an earlier run of the same experiment"
    )
    parser.add_argument(
        "--speed-tolerance",
        type=float,
        default=SPEED_TOLERANCE,
        metavar="SHARE",
        help="share by which whole runs of an unchanged program may differ in speed (%(default)s)",
    )
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """Print what became of a run's figures; 1 if one fell."""
    arguments = parse(argv)
    with refusing("guard"):
        parts, is_well = guard(one_run(arguments.run), one_run(arguments.reference), arguments.speed_tolerance)
    show(parts)
    return 0 if is_well else 1


if __name__ == "__main__":
    as_program(main)
