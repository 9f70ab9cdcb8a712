"""Random ragged trees through the whole engine: scoring, commit, continuous batching, statistics."""

import numpy as np
import pytest
import torch

from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.cache import prefill
from specdec.exactness import check_draft, check_lossless
from tests.reference.tables import random_table
from tests.support.backends import BITWISE_PACKS
from tests.support.drafting.sources import RandomTrees
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import diagonal

VOCAB = 6
TREES = RandomTrees(random_table(VOCAB, 2, 81), max_nodes=7)
PROMPTS = [[(5 * i + 2 * j) % VOCAB for j in range(1 + 3 * (i % 3))] for i in range(13)]
PARAMS = SamplingParams(temperature=0.9, top_k=4, repetition_penalty=1.1)


class Watched:
    """An oracle that checks every node of every tree against its own branch, scored alone as a chain."""

    def __init__(self, inner):
        self.inner, self.num_checked, self.widths = inner, 0, set()

    def __getattr__(self, name):
        return getattr(self.inner, name)

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=()):
        before = cache.lengths[rows].copy()
        scores = self.inner.score(tokens, parents, num_nodes, cache, rows, want, hidden)
        assert np.array_equal(cache.lengths[rows], before), "scoring commits nothing"
        if parents is not None:
            self.widths |= set(num_nodes.tolist())
            for b in range(min(2, len(rows))):
                self._check(tokens[b], parents[b], int(num_nodes[b]), cache, rows[b], scores.logits[b])
        return scores

    def _check(self, tokens, parents, size, cache, row, logits):
        prefix = self.prefixes(row, int(cache.lengths[row]))
        for node in range(size):
            path = [node]
            while parents[path[0]] >= 0:
                path.insert(0, int(parents[path[0]]))
            ids = np.concatenate([prefix, tokens[path].numpy()])
            fresh = self.inner.new_cache(1, len(ids))
            prefill(self.inner, fresh, np.array([0]), [ids])
            alone = self.inner.score(
                torch.tensor([[int(ids[-1])]]), None, torch.tensor([1]), fresh, np.array([0]), want="last"
            )
            assert torch.equal(alone.logits[0, 0], logits[node])
            self.num_checked += 1


MODELS = {
    "table": lambda pack: TabularLM(random_table(VOCAB, 2, 82), eos_id=4),
    "transformer": lambda pack: tiny_transformer(VOCAB, torch.float32, pack=pack),
    "window": lambda pack: tiny_transformer(VOCAB, torch.float32, pack=pack, sliding_window=4),
    "learned positions": lambda pack: tiny_transformer(
        VOCAB, torch.float32, pack=pack, positions="learned", norm="layer"
    ),
}


@pytest.mark.parametrize("make", MODELS.values(), ids=MODELS)
def test_each_branch_scores_as_its_own_chain_bit_for_bit(make, pack):
    model = make(pack)
    assert model.bitwise
    oracle = Watched(model)
    decoder = SpeculativeDecoder(oracle, TREES, "sample_and_match")
    state = decoder.start(PROMPTS[:7], 8, PARAMS, batch_size=4)
    oracle.prefixes = lambda row, length: state.slots.ids[row, :length]
    while state.has_work:
        state, _ = decoder.step(state)
    assert oracle.num_checked > 60
    assert {1, TREES.max_nodes + 1} <= oracle.widths, "rows without a draft, and with a full tree"
    assert len(oracle.widths) > 4


@diagonal(
    {
        "make": MODELS,
        "rule, sampling": {"coupled": ("coupled", PARAMS), "greedy": ("sample_and_match", SamplingParams())},
        "pack": BITWISE_PACKS,
    }
)
def test_tokens_are_those_of_plain_decoding_at_every_batch_size(make, rule, sampling, pack):
    model = make(pack)
    plain = SpeculativeDecoder(model, None, rule).generate(PROMPTS, 10, sampling).tokens
    for batch_size in (1, 4, None):
        result = SpeculativeDecoder(model, TREES, rule).generate(PROMPTS, 10, sampling, batch_size=batch_size)
        assert result.tokens == plain
        assert result.exactness == "exact"


def test_the_trees_have_everything_that_trees_may_have():
    decoder = SpeculativeDecoder(TabularLM(random_table(VOCAB, 2, 82)), TREES, "sample_and_match")
    records = decoder.generate(PROMPTS * 3, 24, PARAMS).records.columns()
    assert min(records["num_drafted"]) == 0
    assert max(records["num_drafted"]) == TREES.max_nodes
    assert max(records["num_scouts"]) >= 2
    assert max(records["draft_depth"]) == max(records["num_accepted"]) == TREES.max_depth
    assert any(rank >= 2 for ranks in records["ranks"] for rank in ranks)
    assert {True, False} == set(records["stopped_at_leaf"])


def test_the_source_conforms():
    check_draft(TREES, TabularLM(random_table(VOCAB, 2, 82)), max_new_tokens=12)


def test_deeper_trees_over_three_ids_keep_the_law():
    source = RandomTrees(random_table(3, 2, 83), max_nodes=5)
    check_lossless(
        SpeculativeDecoder(TabularLM(random_table(3, 2, 84), eos_id=0), source, "sample_and_match"), [2, 1], 4
    )
