"""The tree that pays best: Sequoia's dynamic programme, with the costs of width and depth in the choice."""

from collections.abc import Callable

import numpy as np

from specdec.contracts import FloatArray
from specdec.drafting.shapes.shape import Path
from specdec.drafting.shapes.static import Paths
from specdec.theory import RankRates, acceptance_of_ranks, check_count, predicted_speedup


def optimal_tree(
    acceptance_by_rank: RankRates,
    *,
    width_cost: Callable[[int], float],
    draft_cost_ratio: float,
    max_nodes: int,
    max_depth: int,
    other_cost: float = 0.0,
) -> Paths:
    """Return the static tree with the largest predicted speed-up, tau / (v(nodes + 1) + c depth + other).

    With p(k) the probability that the k-th child of an accepted node is accepted, the best tree of n nodes (its root
    among them) and depth at most d yields F(n, d) = 1 + G(n - 1, 1, d) tokens, where the children of rank k and later
    yield, with m nodes::

        G(m, k, d) = max over s in 1..m of p(k) F(s, d - 1) + G(m - s, k + 1, d),    F(s, 0) = 1, G(0, k, d) = 0

    so that a child exists only if its elder siblings do. Among all n and d the best by the predicted speed-up is taken;
    among equals the shallowest, then the smallest. With ``width_cost=lambda n: 1.0, draft_cost_ratio=0.0``, for which
    nothing costs anything, that is the best tree of ``max_nodes`` nodes.

    Args:
        acceptance_by_rank: of one position, P(the k-th sibling is accepted given that the earlier ones were rejected):
            ``Stats.acceptance_by_rank`` as it is, where None counts as 0, or a list ``[K]`` from k = 1 on. No node gets
            more children than there are ranks.
        width_cost: v(n), time of a target pass of n nodes over that of one node; n counts the pending token.
        draft_cost_ratio: c, time of drafting one level over T, >= 0.
        max_nodes: the most draft nodes, >= 0.
        max_depth: the most levels, >= 0.
        other_cost: everything else per step over T, >= 0.

    Returns:
        A tree; one without nodes if no draft is predicted to beat plain decoding. Its expected tokens are
        ``theory.expected_tree_tokens``.

    Raises:
        ValueError: an argument is out of its range.

    Cost: O(K D N^2) for N nodes and D levels.
    Source: Chen et al. 2024 (Sequoia, arXiv 2402.12374), tree construction and hardware-aware optimiser.
    Deviations: Sequoia assumes, and so does this, that a child's acceptance depends on its rank alone, neither on its
        depth nor on the text nor on what its siblings' subtrees hold ("positional acceptance"). A measured vector also
        depends on the rule and the temperature. Sequoia's cost of a depth counts the draft's passes; so does this, and
        takes their width to be free.
    """
    check_count("max_nodes", max_nodes, 0)
    check_count("max_depth", max_depth, 0)
    reach = acceptance_of_ranks(acceptance_by_rank)
    tables = _forests(reach, max_nodes, max_depth)
    best, best_speed = (0, 0), predicted_speedup(1.0, width_cost(1), 0.0, other_cost)
    for depth in range(1, max_depth + 1):
        for size in range(1, max_nodes + 1):
            if tables[depth][0, size] <= tables[depth][0, size - 1]:
                continue  # that many nodes would not all be used
            tokens = 1.0 + float(tables[depth][0, size])
            speed = predicted_speedup(tokens, width_cost(size + 1), draft_cost_ratio * depth, other_cost)
            if speed > best_speed * (1 + 1e-12):
                best, best_speed = (size, depth), speed
    return Paths(_paths(reach, tables, *best))


def _tree_values(forest: FloatArray) -> FloatArray:
    """Return F(0..N, d) from G(., 1, d): nothing without nodes, else the root and its children."""
    return np.concatenate([[0.0], 1.0 + forest[:-1]])


def _forests(reach: FloatArray, max_nodes: int, max_depth: int) -> list[FloatArray]:
    """Return, for every depth d, ``[K + 1, N + 1]``: G(m, k + 1, d) at row k and column m."""
    empty = np.zeros((len(reach) + 1, max_nodes + 1))
    tables = [empty]
    for _ in range(max_depth):
        tree, forest = _tree_values(tables[-1][0]), empty.copy()
        for k in reversed(range(len(reach))):
            for m in range(1, max_nodes + 1):
                forest[k, m] = _splits(reach, tree, forest, k, m).max()
        tables.append(forest)
    return tables


def _splits(reach: FloatArray, tree: FloatArray, forest: FloatArray, k: int, m: int) -> FloatArray:
    """Return ``[m]`` the yield of m nodes if the child of rank k has 1..m of them and the later children the rest."""
    values: FloatArray = reach[k] * tree[1 : m + 1] + forest[k + 1, m - 1 :: -1][:m]
    return values


def _paths(reach: FloatArray, tables: list[FloatArray], size: int, depth: int) -> list[Path]:
    """Return the nodes of the best forest of ``size`` nodes and at most ``depth`` levels."""
    paths: list[Path] = []
    left: list[tuple[Path, int, int]] = [((), size, depth)]
    while left:
        above, size, depth = left.pop()
        tree = _tree_values(tables[depth - 1][0]) if depth else None
        for k in range(len(reach)):
            if tree is None or size == 0 or tables[depth][k, size] == 0.0:
                break
            own = 1 + int(_splits(reach, tree, tables[depth], k, size).argmax())
            paths.append((*above, k))
            left.append(((*above, k), own - 1, depth - 1))
            size -= own
    return paths
