"""Trees that branch: what those of a calibration run tell of others, and which pays most."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from scipy import optimize

from experiments.advise.calibrating import Calibrated
from experiments.advise.parts import Parts
from experiments.advise.predicting import Costs
from experiments.advise.shortening import Work
from specdec import Kary, Paths, optimal_tree
from specdec.theory import WidthCurve, expected_tree_tokens

_RANKS, _MOST_NODES, _DEEPEST = 4, 16, 8
# A small tree, a deep one, a wide one: from any of them to another a different kind of work grows.
SMALL, DEEP, WIDE = "tree, small", "tree, deep", "tree, wide"
SHAPES = {
    SMALL: Paths(Kary(2, 1).paths),
    DEEP: Paths([(0,) * _DEEPEST, (1,)]),
    WIDE: Paths(Kary(_RANKS, 2).paths),
}


def _rates(found: Calibrated) -> list[float]:
    """Return the acceptance of siblings by rank, under the wide tree."""
    rates = found.stats(WIDE).acceptance_by_rank
    return [rates.get(rank) or 0.0 for rank in range(1, _RANKS + 1)]


@dataclass(frozen=True)
class Trees:
    """What a calibration run tells of trees.

    Args:
        rates: acceptance by rank.
        siblings: how many younger siblings stand for an elder one in a draft; drawn ones may be equal, and are one.
        depths: of the trees that were read, ascending.
        yields: at these depths, drafted tokens that stand, over those that ``rates`` tell of: acceptance depends on
            the depth too, and the last drafts of a text are cut.
        reach: at these depths, levels that are drafted, over the depth.
        tokens, rows: of plain decoding and the trees that were read, ascending: tau, and rows in flight over plain
            decoding's.
        costs: of steps with trees.
        plain: the work of plain decoding.
    """

    rates: list[float]
    siblings: float
    depths: list[int]
    yields: list[float]
    reach: list[float]
    tokens: list[float]
    rows: list[float]
    costs: Costs
    plain: Work

    @staticmethod
    def of(found: Calibrated, nodes: WidthCurve) -> "Trees":
        """Return what the trees of a calibration run tell of others."""
        rates, stats, plain = (
            _rates(found),
            {name: found.stats(name) for name in (WIDE, DEEP)},
            found.steps(WIDE).plain(),
        )
        yields, reach, points = [], [], [(1.0, 1.0)]
        for name, one in stats.items():
            tokens = one.block_efficiency or float("nan")
            yields.append((tokens - 1) / max(expected_tree_tokens(SHAPES[name], rates) - 1, 1e-9))
            reach.append(one.num_draft_passes / one.target_calls / SHAPES[name].max_depth)
            points.append((tokens, one.num_steps / one.target_calls / plain.rows))
        wide = stats[WIDE].num_drafted / stats[WIDE].num_steps / reach[0]
        points.sort()
        return Trees(
            rates,
            _siblings(wide),
            [SHAPES[name].max_depth for name in stats],
            yields,
            reach,
            [tokens for tokens, _ in points],
            [rows for _, rows in points],
            Costs.of([found.reading(name) for name in SHAPES], nodes, found.rows()),
            plain,
        )

    def work(self, shape: Paths) -> Work:
        """Return the work of steps with such trees."""
        depth = shape.max_depth
        stand = np.interp(depth, self.depths, self.yields) * (expected_tree_tokens(shape, self.rates) - 1)
        reach, tokens = float(np.interp(depth, self.depths, self.reach)), 1 + float(stand)
        rows = float(np.interp(tokens, self.tokens, self.rows)) * self.plain.rows
        return Work(tokens, rows, rows * (1 + reach * _drafted(shape, self.siblings)), reach * depth)

    def parts(self, shape: Paths) -> Parts:
        """Return the parts of a step with such a tree."""
        return self.costs.parts(self.work(shape), self.plain)

    def best(self) -> tuple[Paths, Parts]:
        """Return the tree that branches and should pay most, and its parts."""
        predicted = [(shape, self.parts(shape)) for shape in self._candidates()]
        return max(predicted, key=lambda one: one[1].speedup)

    def _candidates(self) -> Iterator[Paths]:
        """Yield, for each number of nodes and each depth, the tree that yields most, if it branches."""
        for nodes in range(2, _MOST_NODES + 1):
            for depth in range(1, _DEEPEST + 1):
                shape = optimal_tree(
                    self.rates, width_cost=lambda _: 1.0, draft_cost_ratio=0.0, max_nodes=nodes, max_depth=depth
                )
                if shape.branches:
                    yield shape


def _drafted(shape: Paths, siblings: float) -> float:
    """Return the expected nodes of a tree whose children of rank k, from 0, are there with probability siblings^k."""
    return float(sum(siblings ** sum(path) for path in shape.paths))


def _siblings(nodes: float) -> float:
    """Return the ``siblings`` with which the wide tree has so many nodes; 1 if it has all of them."""
    shape = SHAPES[WIDE]
    if nodes >= shape.num_nodes:
        return 1.0
    return float(optimize.brentq(lambda siblings: _drafted(shape, siblings) - nodes, 0.0, 1.0))
