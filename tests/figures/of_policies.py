"""What length policies know of a machine and of a row: costs from timed steps, thresholds, the fate of drafts."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from oracles.tabular import TabularLM
from specdec import calibration_run as calibrating
from specdec.calibration_run import _costs, _steps, _timing, pass_seconds
from specdec.contracts import IntArray, Scores
from specdec.drafting.lengths.feedback import Fate, Feedback
from specdec.drafting.lengths.schedules import MarginalValue, Tracked, _TrackedSession
from specdec.theory import WidthCurve
from specdec.theory.calibration import Calibration, Monotone, _best_rate
from tests.support.line_mutants import Differences, differences, line_mutants
from tests.support.runs.hand_clock import clock_of

# Seconds of drafting, scoring, verdict and commit; drafted depth of each row; nodes of a row.
TimedStep = tuple[tuple[float, float, float, float], Sequence[int], int]
PLAIN_STEPS: list[TimedStep] = [
    ((0.5, 8.0, 1.0, 0.5), (0, 0), 1),
    ((0.5, 7.0, 1.0, 0.5), (0, 0), 1),
    ((1.0, 20.0, 2.0, 1.0), (0, 0), 1),
    ((0.1, 0.1, 0.1, 0.1), (0,), 1),
]
DRAFTED_STEPS: list[TimedStep] = [
    ((4.0, 11.0, 2.0, 1.0), (4, 2), 5),
    ((6.0, 10.0, 2.0, 0.5), (1, 4), 5),
    ((2.0, 9.0, 1.0, 0.5), (1, 1), 2),
    ((0.2, 8.0, 1.0, 0.5), (0, 0), 1),
    ((0.1, 0.1, 0.1, 0.1), (4,), 5),
]


def _columns(steps: Sequence[TimedStep]) -> dict[str, list[Any]]:
    """Return the records of steps: every row has an equal share of a step's time."""
    columns: dict[str, list[Any]] = {"step": [], "draft_depth": [], "num_nodes": []}
    phases = ("propose", "score", "verify", "commit")
    columns |= {f"seconds_{phase}": [] for phase in phases}
    for number, (seconds, depths, nodes) in enumerate(steps):
        for depth in depths:
            for name, value in (("step", number), ("draft_depth", depth), ("num_nodes", nodes)):
                columns[name].append(value)
            for phase, taken in zip(phases, seconds, strict=True):
                columns[f"seconds_{phase}"].append(taken / len(depths))
    return columns


def calibrated_costs() -> Differences:
    """c' and v' of two rows, in plain steps: medians, the verdict's time among them, of steps with both rows."""
    plain, drafted = (_timing([_columns(steps)], 2) for steps in (PLAIN_STEPS, DRAFTED_STEPS))
    draft, curve = _costs(plain, drafted, [2.0, 2.2, 2.5, 2.6, 3.0], 2)
    # Plain steps take 10, 9, 24; their passes 8, 7, 20; what is beside drafting 9.5, 8.5, 23. Wider passes would add
    # 0.8, 2, 2.4 and 4 to a pass of 8. The drafted steps take 14, 12.5 and 10.5 beside drafting: 0.5 and -1 over 4
    # nodes, and 0.2 over one, more than that. A token takes 1, 1.5 and 2.
    found = {"c": draft, "v": curve.costs, "batch": curve.batch_size, "widths": curve.num_nodes}
    expected = {
        "c": 1.5 / 10,
        "v": (1.0, (10.8 + 0.125) / 10, (12 + 0.25) / 10, (12.4 + 0.375) / 10, (14 + 0.5) / 10),
        "batch": 2,
        "widths": (1, 2, 3, 4, 5),
    }
    return differences(found, expected)


class _Slow(TabularLM):
    """An oracle whose passes take as long as a list says."""

    def score(self, *args: Any, **named: Any) -> Scores:
        scores = super().score(*args, **named)
        if self.left:
            self.clock.spend(self.left.pop(0))
        return scores


def timed_passes() -> Differences:
    """Seconds of passes: the median of fifteen rounds, after one that warms up."""
    with clock_of(calibrating) as clock:
        oracle = _Slow(torch.full((4, 4), 0.25, dtype=torch.float64))
        oracle.clock = clock
        rounds = [100.0, *(float(number**2) for number in range(1, 16))]
        # The prefix takes a pass of its own.
        oracle.left = [50.0, *(width * one for one in rounds for width in (1, 3))]
        found = pass_seconds(oracle, [1, 3])
    return differences({"seconds": found}, {"seconds": [64.0, 192.0]})


def thresholds() -> Differences:
    """Thresholds of rows whose share stands at its target, above and below, and of tokens at a row's rate."""
    row, session = np.array([0]), Tracked(0.5, target=0.5, step=0.2, memory=0.75, inertia=0.5).open(1)
    session.begin(row)
    seen = []
    # Shares of 1/2, 1, 1, 0 and 0 follow each other: A is 0.5, at its target; 0.625, 0.719 and 0.539; 0.404.
    for drafted, accepted in ((2, 1), (0, 0), (4, 4), (4, 4), (3, 0), (3, 0)):
        session.update(row, Fate(np.array([True]), np.array([drafted]), np.array([accepted])))
        seen.append(float(session.values(row)[0]))
    rates = []
    for rate in (1.5, 0.25):
        known = Calibration(0.5, Monotone((1.0,), (0.5,)), Monotone((1.0,), (0.5,)), 0.2, WidthCurve.linear(0.1), rate)
        value = MarginalValue(known, 3, 1)
        value.begin(row)
        rates.append([float(value.values(row, depth)[0]) for depth in (0, 2, 3)])
        for is_known in (True, False):
            value.update(row, Fate(np.array([is_known]), np.array([3]), np.array([1])))
        rates.append([float(value.values(row)[0])])
    # A token more costs 0.3; the step of three drafted ones 1 + 3 x 0.3, and gave two tokens.
    own = (16 * 1.5 + 2) / (16 + 1.9)
    found = {"tracked": seen, "rate": rates[:2], "rate of a slow row": rates[2:]}
    expected = {
        "tracked": [0.6, 0.6, 0.5, 0.4, 0.3, 0.4],
        "rate": [[0.45, 0.45, np.inf], [own * 0.3]],
        "rate of a slow row": [[0.3, 0.3, np.inf], [0.3]],
    }
    return differences(found, expected)


class _Three(Feedback):
    """Ask for three tokens, whatever became of those before."""

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        return np.full(len(rows), 3)


def fates() -> Differences:
    """What became of drafts, as the growth of rows tells it."""
    rows, feedback = np.arange(4), _Three(4)
    feedback.begin(rows)
    new = feedback.settle(rows, np.array([5, 5, 5, 5]))
    feedback.note_counts(rows, np.array([3, 3, 3, 3]))
    # The first kept two of three, the second all; the third grew by more than was drafted, the fourth went back.
    then = feedback.settle(rows, np.array([8, 9, 10, 4]))
    last = feedback.settle(rows, np.array([9, 11, 11, 5]))
    found = {
        "new": new.known.tolist(),
        "known": then.known.tolist(),
        "accepted": then.accepted[:2].tolist(),
        "drafted": then.drafted.tolist(),
        "without a draft": (last.known.tolist(), last.drafted.tolist()),
    }
    expected = {
        "new": [False] * 4,
        "known": [True, True, False, False],
        "accepted": [2, 3],
        "drafted": [3] * 4,
        "without a draft": ([True, False, True, True], [0] * 4),
    }
    return differences(found, expected)


def calibrations() -> Differences:
    """A calibration's prices and rates by hand, with steps that grow at an edge."""
    curve = WidthCurve((1, 2, 3, 4), (1.0, 1.0, 1.6, 1.7))
    known = Calibration(0.5, Monotone((1.0,), (0.5,)), Monotone((1.0,), (0.5,)), 0.1, curve, 1.0)
    # Steps of 0, 1, 2 and 3 drafted tokens cost 1, 1.1, 1.8 and 2. After one token two more are the better bargain:
    # 0.7 for one, 0.9 for 1 + 0.5.
    stood = [np.array([True, True]), np.array([True, False]), np.array([False, False]), np.array([True, True, True])]
    fitted = Calibration.fit(
        [np.array([0.9, 0.8]), np.array([0.9, 0.3]), np.array([0.2, 0.85]), np.array([])], [2, 1, 0, 0], 0.1, curve
    )
    found = {
        "costs": known.step_cost(np.arange(4)).tolist(),
        "next": known.next_costs(3).tolist(),
        "rate": _best_rate(stood, known),
        "first": fitted.first,
        "tokens": fitted.num_tokens,
        # The last token of the rejected draft was never judged.
        "acceptance": fitted.acceptance(np.array([0.2, 0.3, 0.8, 0.9])).tolist(),
        "independent": Calibration.independent(0.5, 0.1, 0.1).rate,
    }
    expected = {
        "costs": [1.0, 1.1, 1.8, 2.0],
        "next": [0.1, 0.6, 0.2],
        # Three of four first tokens stood, two of four second ones, the only third one.
        "rate": max(1.0, 1.75 / 1.1, 2.25 / 1.8, 3.25 / 2.0),
        "first": 2 / 3,
        "tokens": 6,
        "acceptance": [0.0, 0.0, 1.0, 1.0],
        # 1.5 / 1.2 beats 1.75 / 1.4, which is as much, and 1.
        "independent": 1.25,
    }
    return differences(found, expected)


STATISTICS = (calibrated_costs, timed_passes, thresholds, fates, calibrations)
MUTANTS = line_mutants(
    (_costs, "token / step", "token / float(np.median(scoring))", calibrated_costs, "c"),
    (_steps, '("verify", 2), ', "", calibrated_costs, "v"),
    (pass_seconds, "np.median(seconds[1:], axis=0)", "seconds.min(axis=0)", timed_passes, "seconds"),
    (_TrackedSession.update, "<= own.target", "< own.target", thresholds, "tracked"),
    (
        _TrackedSession.update,
        "own.memory * self.share[rows] + (1 - own.memory) * share",
        "(1 - own.memory) * self.share[rows] + own.memory * share",
        thresholds,
        "tracked",
    ),
    (
        MarginalValue.values,
        "np.maximum(self.tokens[rows] / self.cost[rows], 1.0)",
        "self.tokens[rows] / self.cost[rows]",
        thresholds,
        "rate of a slow row",
    ),
    (MarginalValue.update, "fate.accepted + 1, 0", "fate.accepted, 0", thresholds, "rate"),
    (Feedback.settle, " & (growth - 1 <= drafted)", "", fates, "known"),
    (Calibration.step_cost, "num_drafted + 1", "num_drafted", calibrations, "costs"),
    (Calibration.next_costs, ".min() for n", "[0] for n", calibrations, "next"),
    (Calibration.fit, "len(draft)) <= n for", "len(draft)) <= 9 for", calibrations, "acceptance"),
    (_best_rate, "1 + np.cumsum", "np.cumsum", calibrations, "rate"),
)
