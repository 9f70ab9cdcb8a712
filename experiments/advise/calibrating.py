"""The run that predictions follow from: which texts drafts would be met by, and what steps take."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from experiments.advise.predicting import Reading
from experiments.advise.shortening import Steps
from experiments.harness.arms import PLAIN, Arm, Unit, units_of
from experiments.harness.run_outcome import Outcome, decoding_seconds
from experiments.harness.running import WARM_UP_TOKENS, measure
from specdec import Oracle
from specdec.calibration_run import pass_seconds
from specdec.prompts import NamedPrompt
from specdec.stats import Stats, pool
from specdec.stats.report import FEWEST_UNITS
from specdec.theory import WidthCurve

_MOST_TIMED = 4  # units, and at most every second: costs need fewer steps than acceptances
_ROUNDS = 3
_WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 21)


@dataclass(frozen=True)
class Calibrated:
    """What a calibration run found.

    Args:
        timed: name of an arm -> statistics of a few units, all arms interleaved.
        texts: name of an arm -> statistics and records of each unit, of all units.
    """

    timed: Mapping[str, Stats]
    texts: Mapping[str, Sequence[tuple[Stats, Mapping[str, Sequence[Any]]]]]

    def reading(self, name: str) -> Reading:
        """Return what an arm's calls did and took."""
        return Reading.of(self.timed[PLAIN], self.timed[name])

    def rows(self) -> float:
        """Return the mean rows in flight of plain decoding's calls."""
        return self.reading(PLAIN).work.rows

    def stats(self, name: str) -> Stats:
        """Return what an arm did on all units."""
        return pool([stats for stats, _ in self.texts[name]])

    def steps(self, name: str) -> Steps:
        """Return an arm's steps on all units."""
        return Steps.of([records for _, records in self.texts[name]])


def calibrate(arms: Sequence[Arm], on_all: Sequence[str], units: Sequence[Unit], seed: int, new: int) -> Calibrated:
    """Return what a calibration run finds.

    Args:
        arms: plain decoding first; all are timed.
        on_all: names of the arms whose steps on all units are wanted.
        units: of the prompts to calibrate on.
        seed: of the runs.
        new: tokens per prompt.

    Cost: all arms three times on up to four units, and those of ``on_all`` on all units.
    """
    for arm in arms:
        arm.run(units[0].prompts, [(seed, number) for number in units[0].numbers], WARM_UP_TOKENS)
    timed = [_median_round(unit, arms, seed, new) for unit in to_time(units)]
    texts = {arm.name: _texts(arm, units, seed, new) for arm in arms if arm.name in on_all}
    return Calibrated({arm.name: pool([unit[arm.name] for unit in timed]) for arm in arms}, texts)


def outcome_of(arms: Sequence[Arm], prompts: Sequence[NamedPrompt], batch_size: int, seed: int, new: int) -> Outcome:
    """Return what arms do with prompts, interleaved, in enough batches or rounds for an interval.

    Args:
        arms: plain decoding first.
        prompts: of one kind.
        batch_size: rows of a batch.
        seed, new: of the runs, and tokens per prompt.
    """
    units = units_of(prompts, batch_size)
    for arm in arms:
        arm.run(units[0].prompts, [(seed, number) for number in units[0].numbers], WARM_UP_TOKENS)
    rounds = 1 if len(units) >= FEWEST_UNITS else FEWEST_UNITS
    return Outcome([arm.name for arm in arms], [measure(unit, arms, seed, new, rounds) for unit in units])


def to_time(units: Sequence[Unit]) -> Sequence[Unit]:
    """Return up to four units, spread over all of them: at most every second one, the first among them."""
    return units[:: max(2, math.ceil(len(units) / _MOST_TIMED))]


def _median_round(unit: Unit, arms: Sequence[Arm], seed: int, new: int) -> dict[str, Stats]:
    """Return each arm's statistics of a unit, of the round that took the median time: stalls are outliers."""
    rounds = [measure(replace(unit, index=unit.index + i), arms, seed, new, 1)["arms"] for i in range(_ROUNDS)]
    found = {arm.name: [Stats.from_dict(one[arm.name]["stats"]) for one in rounds] for arm in arms}
    return {name: sorted(stats, key=decoding_seconds)[len(stats) // 2] for name, stats in found.items()}


def _texts(arm: Arm, units: Sequence[Unit], seed: int, new: int) -> list[tuple[Stats, Mapping[str, Sequence[Any]]]]:
    found: list[tuple[Stats, Mapping[str, Sequence[Any]]]] = []
    for unit in units:
        run = arm.run(unit.prompts, [(seed, number) for number in unit.numbers], new)
        assert run.stats is not None
        assert run.records is not None
        found.append((Stats.from_dict(run.stats), run.records))
    return found


def cost_of_nodes(oracle: Oracle, rows: int) -> WidthCurve:
    """Return the time of passes by all their nodes: of fewer rows with a node each, then of wider rows.

    The least of three readings of each, as other programs only ever add to one.
    """
    fewer = [2**i for i in range(rows.bit_length()) if 2**i < rows]
    seconds = np.min(
        [
            [*(pass_seconds(oracle, [1], size)[0] for size in fewer), *pass_seconds(oracle, _WIDTHS, rows)]
            for _ in range(_ROUNDS)
        ],
        axis=0,
    )
    return WidthCurve.of_seconds([*fewer, *(rows * width for width in _WIDTHS)], seconds.tolist())
