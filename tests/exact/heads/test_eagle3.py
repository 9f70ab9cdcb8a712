"""EAGLE-3 heads: their passes against a slow reference, and laws through the real cache."""

from functools import partial

import numpy as np
import pytest
import torch

import drafts
from oracles import TabularLM
from specdec import Grown, Kary, Paths, ReRanked, SamplingParams, SpeculativeDecoder, Threshold
from specdec.cache import prefill
from specdec.exactness import check_draft, check_lossless
from tests.reference.tables import random_table
from tests.support.drafting.eagle3_histories import history_of
from tests.support.models.eagle3_heads import LAYOUTS, Layout, host_of, tiny_eagle3
from tests.support.models.law_transformers import MATES, PARAMS, PROMPT
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import diagonal, first_of

VOCAB, DEPTH = 11, 6


def oracles_of(**options):
    """Return an oracle and its unpacked twin."""
    shape = {"num_layers": DEPTH, "max_context": 64, **options}
    return tiny_transformer(VOCAB, **shape), tiny_unpacked(VOCAB, **shape)


@pytest.mark.parametrize("seed", first_of(0, 1, 2))
@pytest.mark.parametrize("name", LAYOUTS)
def test_logits_and_what_is_fed_back_are_the_references_after_any_history(name, seed, tmp_path):
    history = history_of(tmp_path, LAYOUTS[name], *oracles_of(), seed, slack=4 * seed)
    assert history.compared > 20
    assert history.worst < 1e-12


def test_padding_of_the_vocabulary_is_cut(tmp_path):
    history = history_of(tmp_path, Layout(written=(0, 3, 10)), *oracles_of(padded_vocab_size=13))
    assert (history.head.vocab_size, history.head.config.vocab_size) == (11, 13)
    assert history.worst < 1e-12


def test_a_head_in_single_precision_on_every_backend(any_pack, tmp_path):
    plain = tiny_unpacked(VOCAB, torch.float32, num_layers=DEPTH)
    oracle = any_pack(tiny_unpacked(VOCAB, torch.float32, num_layers=DEPTH))
    for i, layout in enumerate((Layout(written=(0, 2, 3, 7, 10)), Layout(own_embedding=False, own_head=False))):
        history = history_of(tmp_path / str(i), layout, oracle, plain, dtype=torch.float32)
        assert history.head.dtype == torch.float32
        assert history.compared > 20
        assert history.worst < 2e-2  # logits of the order of 100


ORACLE = tiny_transformer()
HEAD = tiny_eagle3(ORACLE)
LOSSLESS = {
    "chain": (drafts.Eagle3(HEAD, 2), "standard"),
    "hot chain": (drafts.Eagle3(HEAD, 2, temperature=2.0), "standard"),
    "greedy chain": (drafts.Eagle3(HEAD, 2, temperature=0), "standard"),
    "threshold": (drafts.Eagle3(HEAD, length=Threshold(threshold=0.4, max_draft_tokens=2)), "standard"),
    "tree": (drafts.Eagle3(HEAD, tree=Paths([(0, 0), (1,)])), "multi_draft"),
    "grown": (drafts.Eagle3(HEAD, tree=Grown(3, 2, width=2)), "multi_draft"),
    "re-ranked": (drafts.Eagle3(HEAD, tree=ReRanked(3, 2, 2), temperature=0), "multi_draft"),
    "matched tree": (drafts.Eagle3(HEAD, tree=Kary(2, 1)), "sample_and_match"),
    "merged": (drafts.Merged([drafts.PromptLookup(1), drafts.Eagle3(HEAD, 1)]), "multi_draft"),
    "cascade": (drafts.Cascade([drafts.PromptLookup(1, min_ngram=2), drafts.Eagle3(HEAD, 2)]), "standard"),
}


@diagonal(
    {"name": tuple(LOSSLESS), "sampling": {"1": SamplingParams(temperature=1.0), "w": PARAMS, "0": SamplingParams()}}
)
def test_the_output_law_is_the_oracles(name, sampling):
    source, rule = LOSSLESS[name]
    check_lossless(SpeculativeDecoder(ORACLE, source, rule), PROMPT, 3, sampling, depth=2, mates=MATES)


def test_it_is_so_for_a_prompt_of_one_id_and_reused_rows():
    source = drafts.Eagle3(HEAD, 2)
    check_lossless(SpeculativeDecoder(ORACLE, source), [3], 4, PARAMS, depth=2, mates=MATES, batch_size=17)


# A length that reads, and trees that grow: plain chains are in the contract of all sources; what else differs, the law
# above tells.
KINDS = ("threshold", "grown", "re-ranked")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in KINDS else pytest.mark.long) for name in LOSSLESS]
)
def test_check_draft_finds_no_fault(name):
    source, _ = LOSSLESS[name]
    check_draft(source, ORACLE, max_new_tokens=8)


def test_a_run_says_who_drafted():
    oracle = tiny_transformer()
    run = SpeculativeDecoder(oracle, drafts.Eagle3(tiny_eagle3(oracle), 3)).generate([[1, 2, 3]], 30)
    assert run.stats.num_drafted > 30
    assert run.drafter == "eagle3"


def test_the_first_step_after_a_prompt_of_one_id_drafts_nothing_and_later_ones_do():
    decoder = SpeculativeDecoder(ORACLE, drafts.Eagle3(HEAD, 3))
    state = decoder.start([[2], [1, 2]], 12)
    state, info = decoder.step(state)
    assert info.num_drafted.tolist() == [0, 3]
    state, info = decoder.step(state)
    assert info.num_drafted.tolist() == [3, 3]


def test_a_prompt_that_is_read_in_parts_has_the_features_of_one_pass(monkeypatch):
    """Where laws decide, other drafts would leave other tokens."""
    decoder, prompt = SpeculativeDecoder(ORACLE, drafts.Eagle3(HEAD, 3)), [i * i % 3 for i in range(30)]
    run = partial(decoder.generate, [prompt] * 4, 12, SamplingParams(temperature=1.0))
    whole = run().tokens
    monkeypatch.setitem(prefill.__globals__, "CHUNK", 7)
    assert run().tokens == whole


def test_near_the_end_of_the_context_drafts_shrink():
    oracle = tiny_transformer(max_context=12)
    source = drafts.Eagle3(tiny_eagle3(oracle), 4)
    prompts = [[1, 2, 3, 1, 2], [0], [3, 3], [2], [1, 2, 1, 2, 1, 2], [0, 1], [3], [2, 0, 1]]
    plain = SpeculativeDecoder(oracle).generate(prompts, 30)
    made = SpeculativeDecoder(oracle, source).generate(prompts, 30)
    assert made.tokens == plain.tokens


def test_what_cannot_be_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="keeps the best"):
        drafts.Eagle3(HEAD, tree=ReRanked(3, 2, 2))
    with pytest.raises(ValueError, match="give tree or a length"):
        drafts.Eagle3(HEAD, 3, tree=Kary(2, 2))
    with pytest.raises(
        ValueError, match="given function, which has no drafter: that of a head for this source is 'eagle3'"
    ):
        drafts.Eagle3(lambda stream: stream)
    with pytest.raises(ValueError, match="reads the outputs of layers"):
        SpeculativeDecoder(TabularLM(random_table(4, 2, 1)), drafts.Eagle3(HEAD, 2)).generate([[1, 2]], 3)
    with pytest.raises(ValueError, match=r"reads the outputs of layers .* those of layers 0\.\.0: choose among these"):
        drafts.Eagle3(tiny_eagle3(tiny_transformer(num_layers=3)), 2).open(tiny_transformer(num_layers=1), 1, 8)
    with pytest.raises(ValueError, match="needs hidden layers"):
        drafts.Staged(ORACLE, drafts.Eagle3(HEAD, 2))
    with pytest.raises(ValueError, match="vocabulary of 4 ids"):
        SpeculativeDecoder(tiny_transformer(5), drafts.Eagle3(HEAD, 2))


def test_hosts_are_found():
    assert host_of(drafts.Merged([drafts.PromptLookup(1), drafts.Eagle3(HEAD, 1)]), None) is ORACLE
    assert host_of(drafts.PromptLookup(1), ORACLE) is ORACLE


def test_the_caches_memory_is_counted_and_bounded():
    cache = HEAD.new_cache(2, 10)
    assert cache.bytes == cache.payload.nbytes + cache.features.nbytes
    assert cache.features.shape == (2, cache.capacity + 1, HEAD.config.hidden_size)
    with pytest.raises(ValueError, match="max_cache_bytes"):
        HEAD.new_cache(2, 10, max_cache_bytes=cache.bytes - 1)
    assert HEAD.new_cache(2, 10, max_cache_bytes=cache.bytes).bytes == cache.bytes


def test_a_committed_path_keeps_the_features_of_its_nodes():
    cache = HEAD.new_cache(1, 16)
    row, tree = np.array([0]), torch.tensor([[-1, 0, 0, 2, 1]])
    tokens = torch.tensor([[1, 2, 3, 0, 1]])
    with pytest.raises(ValueError, match="hangs on one of the same pass"):
        HEAD.score(tokens, tree, torch.tensor([5]), cache, row)
    with pytest.raises(ValueError, match="hangs on one of the same pass"):
        HEAD.score(tokens, None, torch.tensor([2]), cache, row)
    for first, end in ((0, 1), (1, 3), (3, 5)):
        HEAD.score(tokens[:, :end], tree[:, :end], torch.tensor([end]), cache, row, first=first)
    fed = cache.features[0, 1:6].clone()
    cache.commit(row, torch.tensor([[0, 2, 3, 0, 0]]), np.array([3]))
    assert torch.equal(cache.features[0, 1:4], fed[[0, 2, 3]])
