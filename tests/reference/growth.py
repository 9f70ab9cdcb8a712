"""Trees of greedily chosen candidates, grown node by node in plain Python."""

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Law = Callable[[Sequence[int]], NDArray[np.float64]]
Path = tuple[int, ...]


def _children(law: Law, ids: Sequence[int], tree: dict[Path, float], above: Path) -> list[tuple[Path, float]]:
    """Return all children of a path with their cumulative confidence, best first."""
    probs = law([*ids, *above])
    weight = tree.get(above, 1.0)
    order = sorted(range(len(probs)), key=lambda token: (-probs[token], token))
    return [((*above, token), weight * float(probs[token])) for token in order if probs[token] > 0]


def grown(law: Law, ids: Sequence[int], num_nodes: int, max_depth: int, width: int, least: float) -> dict[Path, float]:
    """Return path -> cumulative confidence: a level takes the best ``width`` children of the one above."""
    tree: dict[Path, float] = {}
    level: list[Path] = [()]
    for _ in range(max_depth):
        found = [child for above in level for child in _children(law, ids, tree, above)]
        found = [child for child in sorted(found, key=lambda child: -child[1]) if child[1] >= least]
        kept = dict(found[: min(width, num_nodes - len(tree))])
        tree |= kept
        level = list(kept)
    return tree


def re_ranked(law: Law, ids: Sequence[int], num_nodes: int, max_depth: int, width: int) -> dict[Path, float]:
    """Return path -> cumulative confidence: the best ``num_nodes`` of all candidates of EAGLE-2's expansion."""
    tree: dict[Path, float] = {}
    level: list[Path] = [()]
    for _ in range(max_depth):
        found = [child for above in level for child in _children(law, ids, tree, above)[:width]]
        tree |= dict(found)
        level = [path for path, _ in sorted(found, key=lambda child: -child[1])[:width]]
    return dict(sorted(tree.items(), key=lambda node: -node[1])[:num_nodes])
