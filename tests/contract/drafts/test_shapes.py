"""Shapes of trees as values, what theory says of them, and the best one against all others."""

import copy
import math
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafts import SmallTransformer
from oracles.tabular import TabularLM
from specdec import Chain, Grown, Kary, Paths, ReRanked, SpeculativeDecoder, TreeShape, optimal_tree
from specdec.drafting import shapes
from specdec.theory import acceptance_of_ranks, expected_tokens, expected_tree_tokens, predicted_speedup
from tests.support.registry import SHAPES

STATIC = {
    "no chain": (Chain(0), [], []),
    "chain": (Chain(3), [-1, 0, 1], [0, 0, 0]),
    "wide": (Kary(3, 1), [-1, -1, -1], [0, 1, 2]),
    "binary": (Kary(2, 2), [-1, -1, 0, 0, 1, 1], [0, 1, 0, 1, 0, 1]),
    "flat": (Kary(5, 0), [], []),
    "paths": (Paths([(1, 0), (0, 0, 0), (0, 1)]), [-1, -1, 0, 0, 1, 2], [0, 1, 0, 1, 0, 0]),
    "no paths": (Paths([]), [], []),
}
static = pytest.mark.parametrize(("shape", "parents", "ranks"), STATIC.values(), ids=STATIC)


@static
def test_nodes_stand_level_by_level_and_siblings_in_order(shape, parents, ranks):
    assert shape.parents.tolist() == parents
    assert shape.ranks.tolist() == ranks
    assert (np.diff(shape.levels) >= 0).all()
    assert shape.num_nodes == shape.max_nodes == len(parents)
    assert shape.max_depth == shape.levels.max(initial=0)
    assert shape.branches == (max(ranks, default=0) > 0)
    assert shape.max_scored == len({parent for parent in parents if parent >= 0})
    assert shape.num_kept is None
    assert not shape.reads_confidence
    assert Paths(shape.paths).paths == shape.paths


def test_shapes_are_values():
    assert Paths([(0, 0), (1,)]) == Paths([(1,), (0,), (0, 0)])
    assert len({Paths([(0,)]), Paths([[0]]), Chain(1), Chain(1), Kary(2, 3), Grown(4, 2), ReRanked(4, 2, 2)}) == 5
    assert repr(Paths([(0, 0)])) == "Paths([(0,), (0, 0)])"
    assert eval(repr(Kary(2, 3))) == Kary(2, 3)
    assert Paths([(0,)]) != Chain(1)


BAD = {
    "length": lambda: Chain(-1),
    "an integer, 0 or more, not 1.5": lambda: Chain(1.5),
    "width": lambda: Kary(0, 2),
    "depth": lambda: Kary(2, -1),
    "make it smaller": lambda: Kary(np.int64(2), 20_000),
    "a tree of 1025 nodes is over the 1024": lambda: Chain(1025),
    "over the 1024 that a pass may hold": lambda: Grown(1025, 2),
    "list of tuples of child ranks": lambda: Paths([0, 1]),
    "rank": lambda: Paths([(0, -1)]),
    r"path \(1,\) needs its elder sibling \(0,\)": lambda: Paths([(1, 0)]),
    "num_nodes": lambda: Grown(-1, 2),
    "max_depth": lambda: Grown(4, -1),
    "width must": lambda: Grown(4, 2, 0),
    "min_confidence": lambda: Grown(4, 2, min_confidence=1.5),
    "num_nodes must": lambda: ReRanked(-1, 2, 2),
    "width must be": lambda: ReRanked(4, 2, 0),
}


@pytest.mark.parametrize(("message", "make"), BAD.items(), ids=BAD)
def test_a_shape_that_is_none_is_refused(message, make):
    with pytest.raises(ValueError, match=message):
        make()


@dataclass(frozen=True)
class Looking(TreeShape):
    """One child for each node that it is sure of; it looks at ``best``, or at confidences."""

    look: str
    max_depth, max_nodes, max_scored, branches = 2, 2, 1, False

    def mask_scored(self, level):
        return (level.number >= 0) & (level.depth < 2) & (level.confidence > 0 if self.look == "confidence" else True)

    def children(self, level, best):
        return (best(1)[:, :, 0] > 0).astype(np.int64)


class Half:
    """Lacks most of a shape."""

    num_kept, max_depth, max_nodes = None, 2, 3


LOOKING = {
    "best": (Looking("best"), r"tree=Looking\(look='best'\) looks at confidences, but its reads_confidence is False"),
    "confidence": (Looking("confidence"), r"tree=Looking\(look='confidence'\) looks at confidences"),
    "parts": (Half(), "tree is of type Half, not a shape of trees: it lacks paths, max_scored, branches, reads_conf"),
}


@pytest.mark.parametrize(("shape", "message"), LOOKING.values(), ids=LOOKING)
def test_a_shape_that_lacks_a_part_or_looks_at_what_it_does_not_read_is_refused(shape, message):
    oracle = TabularLM.random(4, 2, 0)
    with pytest.raises(ValueError, match=message):
        SpeculativeDecoder(oracle, SmallTransformer(oracle, tree=shape), "multi_draft").generate([[1, 2]], 4)


GROWN = {
    Grown(7, 3): (7, 3, 6, True),
    Grown(4, 2, width=1): (2, 2, 1, False),
    Grown(0, 0): (0, 0, 0, False),
    Grown(16, 4, width=10**6): (16, 4, 48, True),
    ReRanked(5, 3, 2): (5, 3, 4, True),
    ReRanked(9, 1, 3): (3, 1, 0, True),
    ReRanked(9, 0, 3): (0, 0, 0, False),
}


@pytest.mark.parametrize(("shape", "bounds"), GROWN.items(), ids=map(str, GROWN))
def test_growing_shapes_know_their_bounds(shape, bounds):
    assert (shape.max_nodes, shape.max_depth, shape.max_scored, shape.branches) == bounds
    assert shape.reads_confidence


@pytest.mark.parametrize("shape", [shape for row in SHAPES.values() for shape in row], ids=str)
def test_every_shape_is_a_value_that_declares_itself(shape: TreeShape):
    assert 0 < shape.max_depth <= shape.max_nodes
    assert shape.max_scored >= 0
    assert shape.branches or shape.max_nodes == shape.max_depth
    assert shape.num_kept is None or shape.num_kept >= shape.max_nodes
    assert shape == copy.deepcopy(shape)
    assert hash(shape) == hash(copy.deepcopy(shape))
    assert eval(repr(shape), vars(shapes)) == shape


def test_a_chain_and_a_fan_have_their_closed_forms():
    for length in range(5):
        assert expected_tree_tokens(Chain(length), [0.7]) == pytest.approx(expected_tokens(0.7, length), abs=1e-12)
    # One of three children is accepted unless all are rejected.
    assert expected_tree_tokens(Kary(3, 1), [0.6, 0.5, 0.25]) == pytest.approx(2 - 0.4 * 0.5 * 0.75, abs=1e-12)
    assert acceptance_of_ranks([0.6, 0.5, 0.25]) == pytest.approx([0.6, 0.2, 0.05], abs=1e-12)
    binary = 0.6 + 0.2
    assert expected_tree_tokens(Kary(2, 2), [0.6, 0.5]) == pytest.approx(1 + binary + binary**2, abs=1e-12)


@pytest.mark.parametrize(
    "rates", [[1.2], [-0.1, 0.5], [[0.5]], [math.nan], {2: 0.5}, {0: 0.5, 1: 0.4}, [0.5, None], "half"]
)
def test_what_is_no_vector_of_probabilities_is_refused(rates):
    with pytest.raises(ValueError, match="acceptance_by_rank must be a list of probabilities"):
        expected_tree_tokens(Chain(1), rates)


def test_measured_acceptance_is_taken_as_it_is():
    assert acceptance_of_ranks({2: 0.5, 1: 0.6, 3: None}) == pytest.approx([0.6, 0.2, 0.0], abs=1e-12)
    free = {"width_cost": lambda n: 1.0, "draft_cost_ratio": 0.0, "max_nodes": 9, "max_depth": 4}
    assert optimal_tree({1: 0.7, 2: 0.5, 3: None}, **free) == optimal_tree([0.7, 0.5, 0.0], **free)


def test_a_rank_without_a_rate_is_refused():
    with pytest.raises(ValueError, match="rank 3; acceptance_by_rank ends at 2"):
        expected_tree_tokens(Kary(3, 1), [0.5, 0.4])


def trees(size, depth, num_ranks):
    """Return every tree of ``size`` nodes below the root: lists of children, each a tree."""
    if depth == 0 or num_ranks == 0:
        return [[]] if size == 0 else []
    return list(forests(size, depth, num_ranks))


def forests(size, depth, num_ranks):
    if size == 0:
        yield []
        return
    if num_ranks == 0:
        return
    for own in range(1, size + 1):
        for first in trees(own - 1, depth - 1, MOST_RANKS):
            for rest in forests(size - own, depth, num_ranks - 1):
                yield [first, *rest]


MOST_RANKS = 3


def paths_of(children, above=()):
    for rank, child in enumerate(children):
        yield (*above, rank)
        yield from paths_of(child, (*above, rank))


ALL = [Paths(paths_of(tree)) for size in range(7) for tree in trees(size, 4, MOST_RANKS)]


def speed(shape, rates, width_cost, c, other):
    return predicted_speedup(
        expected_tree_tokens(shape, rates), width_cost(shape.num_nodes + 1), c * shape.max_depth, other
    )


def test_all_small_trees_are_there():
    # Ordered trees of n + 1 nodes are counted by Catalan numbers: 1, 1, 2, 5, 14, 42, 132; here with limits.
    counts = [sum(shape.num_nodes == n for shape in ALL) for n in range(5)]
    assert counts == [1, 1, 2, 5, 13]
    assert len(set(ALL)) == len(ALL)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(
    rates=st.lists(st.floats(0.01, 0.99), min_size=MOST_RANKS, max_size=MOST_RANKS),
    costs=st.lists(st.floats(1, 2), min_size=7, max_size=7),
    c=st.floats(0, 0.5),
    other=st.floats(0, 0.5),
    max_nodes=st.integers(0, 6),
    max_depth=st.integers(0, 4),
)
def test_no_tree_beats_the_optimum(rates, costs, c, other, max_nodes, max_depth):
    """A width may cost less than a narrower one. Every node has some use, or one could pay for that alone."""

    def width_cost(n):
        return costs[n - 1]

    found = optimal_tree(
        rates, width_cost=width_cost, draft_cost_ratio=c, max_nodes=max_nodes, max_depth=max_depth, other_cost=other
    )
    allowed = [shape for shape in ALL if shape.num_nodes <= max_nodes and shape.max_depth <= max_depth]
    assert found in allowed
    best = max(speed(shape, rates, width_cost, c, other) for shape in allowed)
    assert speed(found, rates, width_cost, c, other) == pytest.approx(best, rel=1e-9)


def test_free_width_and_depth_use_all_nodes_and_dear_ones_none():
    free = optimal_tree([0.7, 0.5, 0.3], width_cost=lambda n: 1.0, draft_cost_ratio=0.0, max_nodes=20, max_depth=6)
    assert free.num_nodes == 20
    assert free.branches
    dear = optimal_tree([0.7, 0.5], width_cost=lambda n: float(n), draft_cost_ratio=1.0, max_nodes=20, max_depth=6)
    assert dear == Paths([])
    # Where only the first child is ever accepted, the best tree is the best chain.
    chain = optimal_tree([0.8, 0.0], width_cost=lambda n: 1.0, draft_cost_ratio=0.1, max_nodes=20, max_depth=9)
    assert chain.paths == Chain(chain.num_nodes).paths
    from specdec.theory import optimal_gamma

    assert chain.num_nodes == optimal_gamma(0.8, 0.1)


def test_bad_limits_are_refused():
    with pytest.raises(ValueError, match="max_nodes"):
        optimal_tree([0.5], width_cost=float, draft_cost_ratio=0.1, max_nodes=-1, max_depth=2)
    with pytest.raises(ValueError, match="propose_cost"):
        optimal_tree([0.5], width_cost=float, draft_cost_ratio=-0.1, max_nodes=2, max_depth=2)


def test_a_plan_ends_at_the_limits_of_each_row():
    shape = Kary(width=2, depth=3)
    for depths, nodes, sizes in (
        ([3, 9], [14, 99], [14, 14]),
        ([9, 9], [14, 5], [14, 5]),
        ([9, 2], [14, 14], [14, 6]),
        ([2, 0], [99, 99], [6, 0]),
        ([9, 9], [0, 3], [0, 3]),
    ):
        plan, found = shape.plan(np.array(depths), np.array(nodes))
        assert found.tolist() == sizes
        assert plan.parents.tolist() == shape.parents[: max(sizes)].tolist()
