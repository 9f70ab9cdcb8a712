"""A head that remembers what it was given, in a source that compares it with whole sequences at every step."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.cache import FeatureCache
from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSession,
    DraftSource,
    Features,
    IntArray,
    Needs,
    Oracle,
    Randomness,
    Scores,
    WatchedSession,
)
from specdec.drafting import HiddenStates


@dataclass
class RememberingHead:
    """Remember the layers of every position, side by side."""

    layers: tuple[int, ...]
    width: int
    vocab_size: int

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> FeatureCache:
        return FeatureCache((), (), num_rows, capacity, torch.int64, torch.device("cpu"), self.width)

    def put(self, features: Features, cache: FeatureCache) -> None:
        side_by_side = torch.cat(features.layers, dim=-1)
        cache.features = cache.features.to(side_by_side.dtype)
        cache.put(features.rows, features.starts, features.counts, side_by_side)


@dataclass
class WatchingSource:
    """Draft what another source drafts; before that, compare the head's memory with whole sequences.

    Attributes:
        seen: how many positions were compared, of how many steps.
    """

    inner: DraftSource
    oracle: Any
    layers: tuple[int, ...]
    seen: list[int] = field(default_factory=list)
    tolerance: float = 1e-10

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    @property
    def name(self) -> str:
        return f"watching {self.inner.name}"

    @property
    def needs(self) -> Needs:
        return Needs(hidden=self.layers)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        head = RememberingHead(self.layers, len(self.layers) * self.oracle.hidden_size, self.oracle.vocab_size)
        states = HiddenStates(head, head.new_cache(num_rows, capacity), num_rows, capacity)
        return _Session(self.inner.open(oracle, num_rows, capacity), self, states)


@dataclass
class _Session(WatchedSession):
    source: WatchingSource
    states: HiddenStates

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.states.begin(rows, prompts, scores)
        super().begin(rows, prompts, None)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        self.states.check(rows, context.num_committed)
        cache: Any = self.states.cache
        for row, ids, length in zip(rows.tolist(), context.ids, context.num_committed.tolist(), strict=True):
            assert int(cache.known[row]) == int(self.states.known[row]) == length - 1
            wanted = whole_features(self.source.oracle, ids[: length - 1].tolist(), self.source.layers)
            found = cache.features[row, : length - 1]
            torch.testing.assert_close(found, wanted, rtol=self.source.tolerance, atol=self.source.tolerance)
            self.source.seen.append(length - 1)
        return self.inner.propose(rows, context, budget, randomness)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.states.sync(rows, keep, new_ids, scores)
        super().sync(rows, keep, new_ids, None)

    def end(self, rows: IntArray) -> None:
        self.states.end(rows)
        super().end(rows)


def whole_features(oracle: Oracle, ids: list[int], layers: Sequence[int]) -> Tensor:
    """Return ``[T, n D]`` the outputs of layers, side by side, of a sequence that is scored alone and at once."""
    if not ids:
        return torch.zeros(0, len(layers) * oracle.hidden_size, dtype=oracle.dtype)  # type: ignore[attr-defined]
    rows, cache = np.zeros(1, dtype=np.int64), oracle.new_cache(1, len(ids))
    scores = oracle.score(torch.tensor([ids]), None, torch.tensor([len(ids)]), cache, rows, "none", tuple(layers))
    return torch.cat([layer[0] for layer in scores.hidden], dim=-1)
