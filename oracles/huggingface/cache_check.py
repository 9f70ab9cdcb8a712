"""Does a model score trees on a cache as it scores whole sequences without one?"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.transformer.bits import append_ids, comb
from specdec.contracts import Oracle

# By bytes of a number: root mean square of the differences of a node's logits, over the logits' own deviation.
TOLERANCES = {8: 1e-5, 4: 5e-4, 2: 0.1}
# Up to this window, the tree is deeper than the window. Before the tree, wider ones get more tokens than they hold.
DEEPEST = 256
LEAST_CONTEXT = 12
_ROLLED_BACK = 2

Reference = Callable[[Tensor], Tensor]


def first_difference(oracle: Oracle, reference: Reference, limit: int | None) -> str | None:
    """Return how an oracle's cached scores differ from those of whole sequences; None: no difference was found.

    Two rows of different lengths are scored together: their prefixes as chains, then a tree with a sibling of every
    node of its longest path. A branch of the tree is kept, shortened by some tokens, and followed by another chain.

    Args:
        oracle: it is not changed.
        reference: returns the logits ``[T, V]`` of a sequence ``[T]``, without a cache.
        limit: the most positions that a limited layer sees; None: no layer is limited.

    Cost: for a limit W up to 256 about 6 passes over W + 16 tokens without a cache and about 4 W tokens with one; for
        larger limits 6 over W + 20.
    """
    tolerance = TOLERANCES[oracle.dtype.itemsize]
    for what, why, found in _differences(oracle, reference, limit):
        worst = max(found, key=lambda distance: np.inf if np.isnan(distance) else distance)
        if not worst <= tolerance:
            return (
                f"the scores of {what} differ from those of whole sequences by {worst:.2g} of their deviation "
                f"(allowed: {tolerance:g}): {why}"
            )
    return None


def _differences(oracle: Any, reference: Reference, limit: int | None) -> Iterator[tuple[str, str, list[float]]]:
    """Yield what is scored, why its scores may differ, and how much those of its rows and paths differ."""
    prefixes, depth = _sizes(limit, oracle.max_context)
    generator, rows = torch.Generator().manual_seed(0), np.arange(2)
    ids, tokens, after = (
        torch.randint(oracle.vocab_size, (2, length), generator=generator).to(oracle.device)
        for length in (max(prefixes), 2 * depth, _ROLLED_BACK)
    )
    cache, paths = oracle.new_cache(2, max(prefixes) + 2 * depth), _paths(depth)
    stands = [ids[row, :length] for row, length in enumerate(prefixes)]

    def whole(before: Tensor, path: Tensor) -> Tensor:
        return reference(torch.cat([before, path]))[:, : oracle.vocab_size]

    # Each in two chunks.
    prefix = [
        append_ids(oracle, cache, stood.unsqueeze(0), rows[[row]], -(-len(stood) // 2))[0]
        for row, stood in enumerate(stands)
    ]
    nodes = torch.full((2,), 2 * depth, device=oracle.device)
    tree = oracle.score(tokens, comb(depth).to(oracle.device).expand(2, -1), nodes, cache, rows).logits
    wanted = [[whole(stood, tokens[row, path]) for path in paths] for row, stood in enumerate(stands)]
    found = [_distance(prefix[row], wanted[row][0][: len(stood)]) for row, stood in enumerate(stands)]
    yield "a chain in chunks", "positions, windows or the cache are not used as they are given", found
    found = [
        _distance(tree[row, path], wanted[row][i][len(stood) :])
        for row, stood in enumerate(stands) for i, path in enumerate(paths)
    ]  # fmt: skip
    yield f"a tree of {2 * depth} nodes, {depth} deep", "4-D masks are not obeyed, or not in every layer", found
    # A path of each row is kept, except its last tokens, and others follow.
    cache.commit(rows, torch.tensor(paths, device=oracle.device), np.full(2, depth))
    kept = [torch.cat([stood, tokens[row, paths[row][:-_ROLLED_BACK]]]) for row, stood in enumerate(stands)]
    cache.truncate(rows, np.array([len(before) for before in kept]))
    scored = append_ids(oracle, cache, after, rows, _ROLLED_BACK)
    found = [_distance(scored[row], whole(kept[row], after[row])[len(kept[row]) :]) for row in (0, 1)]
    yield "a chain after rollback", "keys that were cached cannot be kept in part", found


def _sizes(limit: int | None, max_context: int) -> tuple[tuple[int, int], int]:
    """Return the tokens before the tree of each of two rows, and how deep it is; layers see ``limit`` positions."""
    if limit is None or limit >= max_context:
        limit = 2
    long, depth = (limit + 8, 12) if limit > DEEPEST else (12, limit + 4)
    long = min(long, max_context - LEAST_CONTEXT // 2)
    return (max(long // 2, 1), long), min(depth, max_context - long)


def _paths(depth: int) -> list[list[int]]:
    """Return the longest path of a comb, and the path that branches off to the last odd node."""
    longest = list(range(0, 2 * depth, 2))
    return [longest, [*longest[:-1], 2 * depth - 3]] if depth > 1 else [longest, longest]


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Return the largest root-mean-square difference of a node's logits ``[N, V]``, divided by the deviation of all."""
    if found.shape != wanted.shape:
        return float("nan")
    banned = wanted.isneginf()
    if not torch.equal(banned, found.isneginf()):
        return float("nan")
    found, wanted = found.double().masked_fill(banned, 0.0), wanted.double().masked_fill(banned, 0.0)
    apart, spread = (found - wanted).square().mean(-1).sqrt().max(), wanted.std()
    return float(apart / spread.clamp(min=torch.finfo(torch.float64).tiny))
