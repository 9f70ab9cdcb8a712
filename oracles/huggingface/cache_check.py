"""Does a model score trees on a cache as it scores whole sequences without one?"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oracles.transformer.bits import append_ids, comb
from specdec.contracts import IntArray, Oracle

# By bytes of a number: root mean square of the differences of a node's logits, over the logits' own deviation.
TOLERANCES = {8: 1e-5, 4: 5e-4, 2: 0.1}
# Windows up to which the tree is deeper than the window. Before wider ones stand more tokens than they hold.
DEEPEST = 256
LEAST_CONTEXT = 12
_ROLLED_BACK = 2

Reference = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    """Of the trial.

    Attributes:
        prefixes: tokens before the tree, of each of two rows.
        depth: nodes of the longest path of the tree.
    """

    prefixes: tuple[int, int]
    depth: int

    @staticmethod
    def of(limit: int | None, max_context: int) -> "Sizes":
        """Return sizes for layers that see ``limit`` positions (None: all)."""
        if limit is None or limit >= max_context:
            limit = 2
        long, depth = (limit + 8, 12) if limit > DEEPEST else (12, limit + 4)
        long = min(long, max_context - LEAST_CONTEXT // 2)
        return Sizes((max(long // 2, 1), long), min(depth, max_context - long))


def first_difference(oracle: Oracle, reference: Reference, limit: int | None) -> str | None:
    """Return in what an oracle's cached scores differ from those of whole sequences; None: in nothing that is seen.

    Two rows of different lengths are scored together: their prefixes as chains, then a tree with a sibling of every
    node of its longest path. A branch of the tree is kept, shortened by some tokens, and followed by another chain.

    Args:
        oracle: nothing of it changes.
        reference: returns the logits ``[T, V]`` of a sequence ``[T]``, without a cache.
        limit: the most positions that a limited layer sees, None: none is limited.

    Cost: for a limit W up to 256 about 6 passes over W + 16 tokens without a cache and about 4 W tokens on one; beyond
        it, 6 over W + 20.
    """
    generator = torch.Generator().manual_seed(0)
    sizes, trial = Sizes.of(limit, oracle.max_context), _Trial(oracle, reference)
    ids = torch.randint(oracle.vocab_size, (2, max(sizes.prefixes)), generator=generator)
    tokens = torch.randint(oracle.vocab_size, (2, 2 * sizes.depth), generator=generator)
    after = torch.randint(oracle.vocab_size, (2, _ROLLED_BACK), generator=generator)
    return trial.run(sizes, ids.to(oracle.device), tokens.to(oracle.device), after.to(oracle.device))


class _Trial:
    def __init__(self, oracle: Oracle, reference: Reference) -> None:
        self.oracle, self.reference = oracle, reference
        self.rows: IntArray = np.arange(2)
        self.tolerance = TOLERANCES[oracle.dtype.itemsize]

    def run(self, sizes: Sizes, ids: Tensor, tokens: Tensor, after: Tensor) -> str | None:
        """Return the first difference: prefixes from ``ids``, a tree of ``tokens``, and what comes ``after``."""
        cache = self.oracle.new_cache(2, max(sizes.prefixes) + tokens.shape[1])
        stands = [ids[row, :length] for row, length in enumerate(sizes.prefixes)]
        paths = _paths(sizes.depth)
        # Each in two chunks.
        prefix = [
            append_ids(self.oracle, cache, stood.unsqueeze(0), np.array([row]), -(-len(stood) // 2))[0]
            for row, stood in enumerate(stands)
        ]
        parents = comb(sizes.depth).to(tokens.device).expand(2, -1)
        tree = self._score(tokens, parents, cache, self.rows)
        whole = [self._whole(stands[row], tokens[row, path]) for row in (0, 1) for path in paths]
        found = [_distance(prefix[row], whole[2 * row][: len(stands[row])]) for row in (0, 1)]
        if fault := self._fault(
            "a chain in chunks", "positions, windows or the cache are not used as they are given", found
        ):
            return fault
        found = [
            _distance(tree[row, path], whole[2 * row + i][len(stands[row]) :])
            for row in (0, 1) for i, path in enumerate(paths)
        ]  # fmt: skip
        what = f"a tree of {tokens.shape[1]} nodes, {sizes.depth} deep"
        if fault := self._fault(what, "4-D masks are not obeyed, or not in every layer", found):
            return fault
        found = self._roll_back(cache, stands, tokens, paths, after)
        return self._fault("a chain after rollback", "keys that were cached cannot be kept in part", found)

    def _roll_back(
        self, cache: object, stands: list[Tensor], tokens: Tensor, paths: list[list[int]], after: Tensor
    ) -> list[float]:
        """Keep a path of each row, take back its last tokens, and let others follow."""
        path = torch.tensor([paths[0], paths[1]], device=tokens.device)
        kept = path.shape[1] - _ROLLED_BACK
        cache.commit(self.rows, path, np.full(2, path.shape[1]))  # type: ignore[attr-defined]
        cache.truncate(self.rows, np.array([len(ids) + kept for ids in stands]))  # type: ignore[attr-defined]
        found = self._score(after, None, cache, self.rows)
        before = [torch.cat([stands[row], tokens[row, paths[row][:kept]]]) for row in (0, 1)]
        return [_distance(found[row], self._whole(before[row], after[row])[len(before[row]) :]) for row in (0, 1)]

    def _whole(self, stands: Tensor, path: Tensor) -> Tensor:
        return self.reference(torch.cat([stands, path]))[:, : self.oracle.vocab_size]

    def _score(self, tokens: Tensor, parents: Tensor | None, cache: object, rows: IntArray) -> Tensor:
        nodes = torch.full((len(rows),), tokens.shape[1], device=tokens.device)
        logits = self.oracle.score(tokens, parents, nodes, cache, rows).logits
        assert logits is not None
        return logits

    def _fault(self, what: str, why: str, found: list[float]) -> str | None:
        worst = max(found, key=lambda distance: np.inf if np.isnan(distance) else distance)
        if worst <= self.tolerance:
            return None
        return (
            f"the scores of {what} differ from those of whole sequences by {worst:.2g} of their deviation (allowed: "
            f"{self.tolerance:g}): {why}"
        )


def _paths(depth: int) -> list[list[int]]:
    """Return the longest path of a comb, and the one that leaves it for the last odd node."""
    longest = list(range(0, 2 * depth, 2))
    return [longest, [*longest[:-1], 2 * depth - 3]] if depth > 1 else [longest, longest]


def _distance(found: Tensor, wanted: Tensor) -> float:
    """Return the largest root mean square difference of a node's logits ``[N, V]`` over the deviation of all."""
    if found.shape != wanted.shape:
        return float("nan")
    banned = wanted.isneginf()
    if not torch.equal(banned, found.isneginf()):
        return float("nan")
    found, wanted = found.double().masked_fill(banned, 0.0), wanted.double().masked_fill(banned, 0.0)
    apart, spread = (found - wanted).square().mean(-1).sqrt().max(), wanted.std()
    return float(apart / spread.clamp(min=torch.finfo(torch.float64).tiny))
