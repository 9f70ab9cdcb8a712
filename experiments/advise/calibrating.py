"""The run that predictions are made from, and what its trees tell about others."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy import optimize

from experiments.advise.advice_parts import Parts
from experiments.advise.predicting import Costs
from experiments.advise.shortening import Steps, Work
from experiments.harness.arms import PLAIN, Arm, Unit, units_of
from experiments.harness.rounds import doubling
from experiments.harness.run_outcome import Outcome, decoding_seconds
from experiments.harness.running import measure, warm_up
from specdec import Chain, Kary, Oracle, Paths, optimal_tree
from specdec.calibration_run import pass_seconds
from specdec.prompts import NamedPrompt
from specdec.stats import Stats, pool
from specdec.stats.report import FEWEST_UNITS
from specdec.theory import WidthCurve, expected_tree_tokens

_MOST_TIMED = 4  # units, and at most every second: costs need fewer steps than acceptances
_ROUNDS = 3
_WIDTHS = (1, 2, 3, 4, 5, 7, 9, 13, 17, 21)


@dataclass(frozen=True)
class CalibrationRun:
    """What a calibration run found.

    Args:
        timed: name of an arm -> statistics of a few units, all arms interleaved.
        texts: name of an arm -> statistics and records of each unit, of all units.
    """

    timed: Mapping[str, Stats]
    texts: Mapping[str, Sequence[tuple[Stats, Mapping[str, Sequence[Any]]]]]

    def costs(self, names: Sequence[str], nodes: WidthCurve) -> Costs:
        """Return what steps of some arms cost; ``nodes``: time of passes by their nodes."""
        return Costs.of(self.timed[PLAIN], [self.timed[name] for name in names], nodes)

    def stats(self, name: str) -> Stats:
        """Return what an arm did on all units."""
        return pool([stats for stats, _ in self.texts[name]])

    def steps(self, name: str) -> Steps:
        """Return an arm's steps on all units."""
        return Steps.of([records for _, records in self.texts[name]])


def calibrate(arms: Sequence[Arm], on_all: Sequence[str], units: Sequence[Unit], new: int) -> CalibrationRun:
    """Return what a calibration run finds.

    Args:
        arms: plain decoding first; all are timed.
        on_all: names of the arms whose steps on all units are wanted.
        units: of the prompts to calibrate on.
        new: tokens per prompt.

    Cost: all arms three times on up to four units, and those of ``on_all`` on all units.
    """
    warm_up(arms, units[0])
    timed = [_median_round(unit, arms, new) for unit in to_time(units)]
    texts = {arm.name: _texts(arm, units, new) for arm in arms if arm.name in on_all}
    return CalibrationRun({arm.name: pool([unit[arm.name] for unit in timed]) for arm in arms}, texts)


def outcome_of(arms: Sequence[Arm], prompts: Sequence[NamedPrompt], batch_size: int, seed: int, new: int) -> Outcome:
    """Return what arms do with prompts, interleaved, in enough batches or rounds for an interval.

    Args:
        arms: plain decoding first.
        prompts: of one kind.
        batch_size: rows of a batch.
        seed, new: of the runs, and tokens per prompt.
    """
    units = units_of(prompts, batch_size, seed=seed)
    warm_up(arms, units[0])
    rounds = 1 if len(units) >= FEWEST_UNITS else FEWEST_UNITS
    return Outcome([arm.name for arm in arms], [measure(unit, arms, new, rounds) for unit in units])


def to_time(units: Sequence[Unit]) -> Sequence[Unit]:
    """Return up to four units, spread over all of them: at most every second one, beginning with the first."""
    return units[:: max(2, math.ceil(len(units) / _MOST_TIMED))]


def _median_round(unit: Unit, arms: Sequence[Arm], new: int) -> dict[str, Stats]:
    """Return each arm's statistics of a unit, of the round that took the median time: stalls are outliers."""
    rounds = [measure(replace(unit, index=unit.index + i), arms, new, 1)["arms"] for i in range(_ROUNDS)]
    found = {arm.name: [Stats.from_dict(one[arm.name]["stats"]) for one in rounds] for arm in arms}
    return {name: sorted(stats, key=decoding_seconds)[len(stats) // 2] for name, stats in found.items()}


def _texts(arm: Arm, units: Sequence[Unit], new: int) -> list[tuple[Stats, Mapping[str, Sequence[Any]]]]:
    found: list[tuple[Stats, Mapping[str, Sequence[Any]]]] = []
    for unit in units:
        run = arm.run(unit.prompts, unit.seeds, new)
        assert run.result is not None
        found.append((run.result.stats, run.result.records.columns()))
    return found


def cost_of_nodes(oracle: Oracle, rows: int) -> WidthCurve:
    """Return the time of passes by all their nodes: of fewer rows with a node each, then of wider rows.

    Each time is the least of three readings, since other programs can only add to one.
    """
    *fewer, _ = doubling(rows)
    seconds = np.min(
        [
            [*(pass_seconds(oracle, [1], size)[0] for size in fewer), *pass_seconds(oracle, _WIDTHS, rows)]
            for _ in range(_ROUNDS)
        ],
        axis=0,
    )
    return WidthCurve.of_seconds([*fewer, *(rows * width for width in _WIDTHS)], seconds.tolist())


# Chains are verified in another way than trees that branch: each kind has its costs.
SHORT, LONG = "chain, short", "chain, long"
# From each of these to another, a different kind of work grows.
SMALL, DEEP, WIDE = "tree, small", "tree, deep", "tree, wide"
ON_ALL = (WIDE, DEEP)  # units of a calibration run


def shapes_to_read(ranks: int, deepest: int) -> dict[str, Paths]:
    """Return the shapes of a calibration run by the names of their arms.

    Args:
        ranks: siblings of a node of the widest tree.
        deepest: levels of the deepest one.
    """
    first = (0,) * deepest
    return {
        SHORT: Paths(Chain(1).paths),
        LONG: Paths([first]),
        SMALL: Paths(Kary(min(ranks, 2), 1).paths),
        DEEP: Paths([first, (1,)] if ranks > 1 else [first]),
        WIDE: Paths(Kary(ranks, 2).paths),
    }


def best_of(acceptance_by_rank: Sequence[float], size: int, max_depth: int) -> Paths:
    """Return the tree of that many nodes that should yield most tokens, whatever it costs."""
    return optimal_tree(
        acceptance_by_rank, width_cost=lambda _: 1.0, draft_cost_ratio=0.0, max_nodes=size, max_depth=max_depth
    )


@dataclass(frozen=True)
class Trees:
    """What a calibration run tells about trees.

    Args:
        acceptance_by_rank: at one position, the earlier siblings rejected.
        siblings: how many younger siblings a draft has per elder one; drawn siblings that are equal count as one.
        depths: of the trees that were read, ascending.
        yields: at these depths, accepted tokens over the number that acceptance by rank predicts. They differ because
            acceptance also depends on depth, and because the last drafts of a text are cut.
        reach: at these depths, drafted levels over the depth.
        tokens, rows: of plain decoding and the trees that were read, ascending: tau, and rows in flight over plain
            decoding's.
        costs, chain_costs: of steps with trees that branch, and with chains.
        plain: the work of plain decoding.
    """

    acceptance_by_rank: list[float]
    siblings: float
    depths: list[int]
    yields: list[float]
    reach: list[float]
    tokens: list[float]
    rows: list[float]
    costs: Costs
    chain_costs: Costs
    plain: Work

    @staticmethod
    def of(found: CalibrationRun, nodes: WidthCurve, shapes: Mapping[str, Paths]) -> "Trees":
        """Return what the trees of a calibration run tell about others.

        Args:
            found: all arms timed, those of ``ON_ALL`` on all units.
            nodes: time of passes by their nodes.
            shapes: of ``shapes_to_read``.
        """
        stats, plain = {name: found.stats(name) for name in ON_ALL}, found.steps(WIDE).plain()
        rates = [stats[WIDE].acceptance_by_rank.get(rank + 1) or 0.0 for rank in range(max(shapes[WIDE].ranks) + 1)]
        read, points = {}, [(1.0, 1.0)]
        for name, one in stats.items():
            tokens, depth = one.block_efficiency or float("nan"), shapes[name].max_depth
            stand = (tokens - 1) / max(expected_tree_tokens(shapes[name], rates) - 1, 1e-9)
            read[depth] = (stand, one.num_draft_passes / one.target_calls / depth)
            points.append((tokens, one.num_steps / one.target_calls / plain.rows))
        wide = stats[WIDE].num_drafted / stats[WIDE].num_steps / read[shapes[WIDE].max_depth][1]
        depths, points = sorted(read), sorted(points)
        branching, chains = (found.costs(names, nodes) for names in ((SMALL, DEEP, WIDE), (SHORT, LONG)))
        return Trees(
            rates,
            _siblings(shapes[WIDE], wide),
            depths,
            [read[depth][0] for depth in depths],
            [read[depth][1] for depth in depths],
            [tokens for tokens, _ in points],
            [rows for _, rows in points],
            branching,
            chains,
            plain,
        )

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Trees":
        """Return it from what ``dataclasses.asdict`` made. Raises KeyError or TypeError for other fields."""
        costs = {name: Costs.from_dict(plain[name]) for name in ("costs", "chain_costs")}
        return Trees(**{**plain, **costs, "plain": Work(**plain["plain"])})

    def work(self, shape: Paths) -> Work:
        """Return the work of steps with trees of a shape; all of its ranks must have been read."""
        depth = shape.max_depth
        stand = np.interp(depth, self.depths, self.yields) * (expected_tree_tokens(shape, self.acceptance_by_rank) - 1)
        reach, tokens = float(np.interp(depth, self.depths, self.reach)), 1 + float(stand)
        rows = float(np.interp(tokens, self.tokens, self.rows)) * self.plain.rows
        return Work(tokens, rows, rows * (1 + reach * _mean_nodes(shape, self.siblings)), reach * depth)

    def parts(self, shape: Paths) -> Parts:
        """Return the parts of a step with such a tree."""
        return (self.costs if shape.branches else self.chain_costs).parts(self.work(shape), self.plain)

    def best(self, max_nodes: int, max_depth: int, branching: bool = False) -> Paths:
        """Return the tree that should pay most, of those that yield most of their size and depth.

        Args:
            max_nodes: at least 2 if the tree is to branch.
            max_depth: of the tree.
            branching: leave out chains.
        """
        smallest = Paths([(0,), (1,)] if branching else [(0,)])
        found = [shape for shape in self._candidates(max_nodes, max_depth) if shape.branches or not branching]
        return max([smallest, *found], key=lambda shape: self.parts(shape).speedup)

    def _candidates(self, max_nodes: int, max_depth: int) -> Iterator[Paths]:
        for nodes in range(1, max_nodes + 1):
            for depth in range(1, max_depth + 1):
                # Where nothing is accepted, no tree yields more than none.
                if (shape := best_of(self.acceptance_by_rank, nodes, depth)).num_nodes:
                    yield shape


def _mean_nodes(shape: Paths, siblings: float) -> float:
    """Return the expected nodes of a tree whose children of rank k, from 0, are there with probability siblings^k."""
    return float(sum(siblings ** sum(path) for path in shape.paths))


def _siblings(shape: Paths, nodes: float) -> float:
    """Return the ``siblings`` at which a tree has that many nodes; 1 if it has all of them, or does not branch."""
    if nodes >= shape.num_nodes or not shape.branches:
        return 1.0
    return float(optimize.brentq(lambda siblings: _mean_nodes(shape, siblings) - nodes, 0.0, 1.0))
