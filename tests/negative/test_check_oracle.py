"""``check_oracle`` passes the oracles that ship and names what is wrong with others."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

import oracles
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec.cache import KVCache
from specdec.contracts import Oracle, Scores
from specdec.exactness import check_oracle
from tests.reference.tables import random_table
from tests.support.backends import needed_native
from tests.support.models.hf_models import random_model
from tests.support.models.tiny_models import tiny_transformer

TABLE = random_table(3, 2, 41)


class Altered(TabularLM):
    """A table whose logits ``alter`` changes."""

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=(), first=0):
        scores = super().score(tokens, parents, num_nodes, cache, rows, want, hidden, first)
        return scores if scores.logits is None else self.alter(scores, tokens, cache, rows)

    def alter(self, scores: Scores, tokens: torch.Tensor, cache: Any, rows: Any) -> Scores:
        return scores


class ReadsWidth(Altered):
    """A wide pass has other logits."""

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        return Scores(scores.logits if tokens.shape[1] == 1 else scores.logits + 0.1 * torch.arange(3))


class ReadsBatch(Altered):
    """Logits are rounded to a scale that all rows share, as by one scale of a tensor."""

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        step = scores.logits.abs().max() / 7
        return Scores((scores.logits / step).round() * step)


class Unmoved(KVCache):
    """Keeps the first nodes of a tree in place of its path."""

    def commit(self, rows, path, num_kept):
        super().commit(rows, None, num_kept)


class NotCut(KVCache):
    """Takes nothing back."""

    def truncate(self, rows, lengths):
        pass


class KeepsFirstNodes(TabularLM):
    def new_cache(self, num_rows, capacity, max_cache_bytes=None):
        return Unmoved((num_rows, capacity), 0, 1, torch.int64, self.device, max_cache_bytes)


class TakesNothingBack(TabularLM):
    def new_cache(self, num_rows, capacity, max_cache_bytes=None):
        return NotCut((num_rows, capacity), 0, 1, torch.int64, self.device, max_cache_bytes)


class CountsPositions(Altered):
    """A model that counts what it was ever given in a row, rejected ids too."""

    def new_cache(self, num_rows, capacity, max_cache_bytes=None):
        self.given = np.zeros(num_rows)
        return super().new_cache(num_rows, capacity, max_cache_bytes)

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        self.given[rows] += tokens.shape[1]
        return Scores(scores.logits * torch.from_numpy(1 + 0.1 * np.cos(self.given[rows])).view(-1, 1, 1))


class IgnoresParents(TabularLM):
    def score(self, tokens, parents, *args, **options):
        return super().score(tokens, None, *args, **options)


class LastColumn(TabularLM):
    """The last column of a pass is taken for the last node, padding or not."""

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=(), first=0):
        last = torch.full_like(num_nodes, tokens.shape[1]) if want == "last" else num_nodes
        return super().score(tokens, parents, last, cache, rows, want, hidden, first)


class Remembers(Altered):
    """A penalty on every id that a row was ever given, whatever became of it."""

    def new_cache(self, num_rows, capacity, max_cache_bytes=None):
        self.met = torch.zeros(num_rows, 3)
        return super().new_cache(num_rows, capacity, max_cache_bytes)

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        logits = scores.logits - self.met[rows].unsqueeze(1)
        self.met[rows] += torch.nn.functional.one_hot(tokens, 3).sum(1)
        return Scores(logits)


class OneBuffer(Altered):
    """Every pass returns the same memory."""

    def __init__(self, table):
        super().__init__(table)
        self.buffer = torch.zeros(4096, dtype=torch.float64)

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        out = self.buffer[: scores.logits.numel()].view(scores.logits.shape)
        return Scores(out.copy_(scores.logits))


class Half(Altered):
    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        return Scores(scores.logits.half())


class Dropout(Altered):
    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        return Scores(scores.logits + 0.1 * torch.randn_like(scores.logits))


class Late(Altered):
    """A ring buffer that a draft of a few tokens overruns from position 60 on."""

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        late = torch.from_numpy((cache.lengths[rows] >= 60) & (1 < tokens.shape[1] <= 8))
        return Scores(torch.where(late.view(-1, 1, 1), scores.logits.flip(-1), scores.logits))


class WritesIds(TabularLM):
    def score(self, tokens, *args, **options):
        scores = super().score(tokens, *args, **options)
        tokens.clamp_(max=1)
        return scores


class PlayedByCalls(Altered):
    """A recording whose place is the number of calls."""

    calls = 0

    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        self.calls += 1
        return Scores(scores.logits.roll(self.calls, -1))


class LastOfEquals(Altered):
    def alter(self, scores, tokens, cache, rows):
        assert scores.logits is not None
        logits = scores.logits.round()
        ids = 2 - logits.flip(-1).argmax(-1)
        return Scores(logits, likeliest=(ids, logits.amax(-1)))


class HiddenByWidth(NativeTransformer):
    def score(self, tokens, *args, **options):
        scores = super().score(tokens, *args, **options)
        return replace(scores, hidden=tuple(layer + tokens.shape[1] for layer in scores.hidden))


CHAIN, TWICE = "a chain in chunks differ from those of whole sequences by", "asked for twice, differs by .* dropout"
FAULTS: dict[type, str] = {
    ReadsWidth: f"{CHAIN} .* no bit: the oracle says that it is bitwise.* at position 0 of row 2",
    ReadsBatch: CHAIN,
    KeepsFirstNodes: "a chain after rollback differ .* kept in part",
    TakesNothingBack: r"cache.lengths is \[67, 0, 134\] after truncate, not \[67, 0, 130\]",
    CountsPositions: TWICE,
    IgnoresParents: "a tree of 3 nodes, 2 deep differ .* parents or 4-D masks are not obeyed",
    LastColumn: "a chain of which want='last' asks differ .* not the last real node",
    Remembers: TWICE,
    OneBuffer: "a later pass wrote to the scores of a chain in chunks: return tensors that are the caller's",
    Half: "torch.float16, not .* in float32 or float64",
    Dropout: TWICE,
    Late: f"{CHAIN} .* at position 91 of row 2",
    WritesIds: "score wrote to the tokens of a chain in chunks",
    PlayedByCalls: TWICE,
    LastOfEquals: "likeliest of a chain in chunks are not the largest logits, the lowest id of equals",
}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.__name__)
def test_a_fault_is_named(fault):
    with pytest.raises(AssertionError, match=FAULTS[fault]):
        check_oracle(fault(TABLE))


def native() -> Oracle:
    needed_native()
    return tiny_transformer(6, torch.float32, 0, NativeTransformer, max_context=256)


SHIPPED: dict[str, Callable[[], Oracle]] = {
    "table": lambda: TabularLM(TABLE),
    "eager": lambda: tiny_transformer(6, torch.float32, num_layers=3),
    "eager, bfloat16": lambda: tiny_transformer(6, torch.bfloat16),
    "native": native,
    "quantised": lambda: oracles.load("code-draft", weights="int8"),
}


@pytest.mark.parametrize("name", SHIPPED)
def test_oracles_that_ship_conform(name):
    check_oracle(SHIPPED[name](), length=None if name in ("table", "native") else 12)


def test_a_reference_tells_what_an_oracle_should_say():
    oracle, other = TabularLM(TABLE), TabularLM(random_table(3, 2, 42))
    check_oracle(oracle, TabularLM(TABLE), length=20)
    with pytest.raises(AssertionError, match=r"a chain in chunks differ .*allowed: 1e-05\), at position 0"):
        check_oracle(oracle, other, length=20)
    library = oracles.HuggingFaceLM(random_model("llama"))
    check_oracle(library, library.whole)


def test_hidden_layers_are_compared():
    needed_native()
    with pytest.raises(AssertionError, match="the hidden layer 0 of a chain in chunks differ"):
        check_oracle(tiny_transformer(6, torch.float32, 0, HiddenByWidth), length=12)


def test_what_cannot_be_checked_is_refused():
    with pytest.raises(ValueError, match="length=60: give 1 to 56, what the context leaves before trees of 8 levels"):
        check_oracle(tiny_transformer(), length=60)
    with pytest.raises(ValueError, match="depth=8 in a context of 8: give 6 or more, in a context of at least 12"):
        check_oracle(TabularLM(TABLE, max_context=8))
    with pytest.raises(ValueError, match="oracle=3 is no model"):
        check_oracle(3)  # type: ignore[arg-type]
