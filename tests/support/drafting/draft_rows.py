"""A stand-in for the engine: rows of ids that a draft session is led through."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from oracles.tabular import TabularLM
from specdec.cache import prefill
from specdec.contracts import (
    BoolArray,
    Budget,
    Cache,
    Context,
    Draft,
    DraftSource,
    FloatArray,
    IntArray,
    Oracle,
    Randomness,
    Scores,
)
from specdec.drafting.lengths import LengthPolicy, LengthSession
from specdec.exactness.findings import Draw, DrawRecorder
from specdec.sampling import BatchWarping, ParameterTable, SamplingParams
from specdec.sampling.randomness import Keyed, seed_keys
from tests.support.drafting.hidden_watch import whole_features
from tests.support.models.eagle3_heads import host_of

GARBAGE = -7
# By row, of six ids.
PROMPTS = {0: [1], 1: [2, 3, 2, 3], 2: [0, 5, 0, 5, 0, 4, 0], 3: [4, 4]}


def recorded(inner: Randomness, num_rows: int) -> DrawRecorder:
    """Return randomness that keeps what is drawn for rows of a batch."""
    return DrawRecorder(inner, np.arange(num_rows), [[] for _ in range(num_rows)])


class Rows:
    """Slots of a run, each holding a request's ids; columns beyond a row's ids are garbage."""

    def __init__(
        self,
        source: DraftSource,
        num_rows: int = 4,
        capacity: int = 64,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        oracle: Oracle | None = None,
    ) -> None:
        self.needs_cache = source.needs.cache_of is not None
        self.oracle = host_of(source, oracle or TabularLM.random(6, 2, 0))
        self.layers = source.needs.hidden
        self.session = source.open(self.oracle, num_rows, capacity)
        one = SamplingParams() if sampling is None else sampling
        self.sampling = [one] * num_rows if isinstance(one, SamplingParams) else list(one)
        self.ids: dict[int, list[int]] = {}
        self.prompt_lengths: dict[int, int] = {}
        self.seeds: dict[int, int] = {}
        self.recorder = recorded(Keyed.at(seed_keys([]), np.zeros(0, np.int64)), 0)

    def seat(self, prompts: dict[int, list[int]], seeds: dict[int, int] | None = None) -> None:
        """Begin requests, by row."""
        rows = np.array(sorted(prompts), dtype=np.int64)
        scores = self.scores_of([prompts[row][:-1] for row in rows.tolist()], [0] * len(rows))
        self.session.begin(rows, [np.array(prompts[row], dtype=np.int64) for row in rows], scores)
        for row in rows.tolist():
            self.ids[row], self.prompt_lengths[row] = list(prompts[row]), len(prompts[row])
            self.seeds[row] = row if seeds is None else seeds[row]

    def context(self, rows: IntArray) -> Context:
        """Return what a source may read of some rows."""
        lengths = np.array([len(self.ids[row]) for row in rows], dtype=np.int64)
        ids = np.full((len(rows), lengths.max()), GARBAGE, dtype=np.int64)
        for b, row in enumerate(rows):
            ids[b, : lengths[b]] = self.ids[row]
        prompt_lengths = np.array([self.prompt_lengths[row] for row in rows])
        params = ParameterTable.of([self.sampling[row] for row in rows])
        warping = BatchWarping(params, ids, lengths, prompt_lengths, self.oracle.eos_ids)
        return Context(ids, lengths, warping, self.prefilled(rows) if self.needs_cache else None)

    def prefilled(self, rows: IntArray) -> Cache:
        """Return a cache of the oracle's in which the ids of these rows stand, but for the pending ones."""
        cache = self.oracle.new_cache(1 + int(rows.max()), 64)
        prefill(self.oracle, cache, rows, [np.array(self.ids[row], dtype=np.int64) for row in rows.tolist()])
        return cache

    def propose(self, budgets: dict[int, int]) -> Draft:
        """Draft for some rows, each within its depth."""
        rows = np.array(sorted(budgets), dtype=np.int64)
        context = self.context(rows)
        depth = np.array([budgets[row] for row in rows], dtype=np.int64)
        streams = Keyed.at(seed_keys([self.seeds[row] for row in rows.tolist()]), context.num_committed)
        self.recorder = recorded(streams, len(rows))
        return self.session.propose(rows, context, Budget(depth, np.where(depth > 0, 100, 0)), self.recorder)

    @property
    def draws(self) -> list[list[Draw]]:
        """What was drawn for each row at the latest draft."""
        return self.recorder.draws

    def settle(self, new_ids: dict[int, list[int]], keep: dict[int, int] | None = None) -> None:
        """Tell what stands: the first ``keep`` ids of a row (all of them by default), then new ones."""
        rows = np.array(sorted(new_ids), dtype=np.int64)
        kept = {row: len(self.ids[row]) if keep is None else keep[row] for row in rows.tolist()}
        block = np.full((len(rows), max(map(len, new_ids.values()))), -1, dtype=np.int64)
        for b, row in enumerate(rows.tolist()):
            block[b, : len(new_ids[row])] = new_ids[row]
            self.ids[row] = self.ids[row][: kept[row]] + new_ids[row]
        starts = [kept[row] - 1 for row in rows.tolist()]
        scores = self.scores_of(
            [self.ids[row][: start + len(new_ids[row])] for row, start in zip(rows.tolist(), starts, strict=True)],
            starts,
        )
        self.session.sync(rows, np.array(starts, dtype=np.int64) + 1, block, scores)

    def scores_of(self, ids: Sequence[list[int]], starts: Sequence[int]) -> Scores | None:
        """Return the hidden states of the ids from ``starts[b]`` on, as of a chain; None: nobody reads them."""
        if not self.layers:
            return None
        found = [whole_features(self.oracle, row, self.layers)[start:] for row, start in zip(ids, starts, strict=True)]
        width = max(map(len, found))
        whole = torch.stack([torch.nn.functional.pad(row, (0, 0, 0, width - len(row))) for row in found])
        path = np.tile(np.arange(width + 1), (len(found), 1))
        return Scores(None, whole.chunk(len(self.layers), dim=-1), path=path)


@dataclass(frozen=True)
class StopBelow(LengthPolicy, LengthSession):
    """End a chain behind the first token whose cumulative confidence is below a threshold."""

    threshold: float
    max_depth: int = 5
    reads_confidence: bool = True
    num_skipped: int = 0

    def open(self, num_rows: int) -> "StopBelow":
        return self

    def begin(self, rows: IntArray) -> None:
        pass

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        return np.where(num_committed <= self.num_skipped, 0, self.max_depth)

    def continues(self, rows: IntArray, confidence: FloatArray) -> BoolArray:
        return confidence.prod(1) >= self.threshold


def chains(draft: Draft) -> list[list[int]]:
    """Return the drafted ids of each row."""
    return [row[:n] for row, n in zip(draft.tokens.tolist(), draft.num_nodes.tolist(), strict=True)]


def draft_of(source: DraftSource, prompts: list[list[int]], budgets: list[int] | None = None) -> list[list[int]]:
    """Return the first draft of each prompt, all in one batch."""
    rows = Rows(source, len(prompts), 300)
    rows.seat(dict(enumerate(prompts)))
    return chains(rows.propose(dict(enumerate([100] * len(prompts) if budgets is None else budgets))))
