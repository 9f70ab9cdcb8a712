"""Models of ``transformers`` behind the oracle contract score what their own uncached forwards score."""

import numpy as np
import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles import HuggingFaceLM
from specdec import Paths, SamplingParams, SpeculativeDecoder
from specdec.contracts import Oracle, capability_of
from specdec.exactness import check_lossless
from tests.reference.tables import random_table
from tests.support.drafting.sources import RandomTrees
from tests.support.models.hf_models import FAMILIES, random_model
from tests.support.models.scoring import path_to, random_tree
from tests.support.pairwise import first_of

TREES = RandomTrees(random_table(4, 2, 51), max_nodes=2)
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [1, 2, 3, 1, 2], [7]]
PATHS = Paths([(0, 0, 0), (0, 1), (1, 0), (2,)])


@pytest.fixture(params=FAMILIES, scope="module")
def oracle(request: pytest.FixtureRequest) -> HuggingFaceLM:
    return HuggingFaceLM(random_model(request.param))


def close(found, wanted):
    """Check logits, which are of the order of 1 to 10, to what float32 sums in another order leave of them."""
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=5e-4)


def whole(oracle: HuggingFaceLM, ids: list[int]) -> torch.Tensor:
    """Return the logits ``[T, V]`` of a plain forward over the whole sequence."""
    with torch.no_grad():
        return oracle._model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, :, : oracle.vocab_size]


def score(oracle, cache, rows, tokens, parents=None, num_nodes=None, **options):
    nodes = torch.full((len(rows),), tokens.shape[1]) if num_nodes is None else num_nodes
    return oracle.score(tokens, parents, nodes, cache, np.array(rows), **options)


def test_it_is_an_oracle(oracle):
    model: Oracle = oracle
    assert (model.vocab_size, model.eos_ids, model.tokenizer, model.dtype) == (23, (), None, torch.float32)
    assert (model.backend, model.num_layers, model.chains, model.cache_format) == ("transformers", 0, False, None)
    assert model.max_context == 128
    assert capability_of(model, "num_experts") == getattr(oracle._model.config, "num_local_experts", 1)
    assert model.weight_bytes == 4 * sum(parameter.numel() for parameter in oracle._model.parameters())


@pytest.mark.parametrize("seed", first_of(0, 1, 2))
def test_random_histories_of_ragged_trees_and_rollback(oracle, seed):
    generator, rng = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    cache, held = oracle.new_cache(4, 96), [[] for _ in range(4)]
    for _ in range(12):
        rows = rng.permutation(4)[: rng.integers(1, 5)]
        size = int(rng.integers(1, 10))
        tokens, parents = torch.randint(23, (len(rows), size), generator=generator), None
        if rng.random() < 0.7:
            parents = random_tree(len(rows), size, generator)
        nodes = torch.randint(1, size + 1, (len(rows),), generator=generator)
        logits = score(oracle, cache, rows, tokens, parents, nodes).logits
        kept = []
        for b, row in enumerate(rows):
            tree = torch.arange(-1, size - 1) if parents is None else parents[b]
            paths = [path_to(tree, node) for node in range(int(nodes[b]))]
            for path in paths:
                close(logits[b, path], whole(oracle, held[row] + tokens[b, path].tolist())[len(held[row]) :])
            kept.append(paths[rng.integers(len(paths))])
            held[row] += tokens[b, kept[-1]].tolist()
        padded = torch.tensor([path + [0] * (size - len(path)) for path in kept])
        cache.commit(rows, padded if parents is not None else None, np.array([len(path) for path in kept]))
        row = int(rng.integers(4))
        held[row] = held[row][: rng.integers(len(held[row]) // 2, len(held[row]) + 1)]
        if rng.random() < 0.1:
            held[row] = []
            cache.reset(np.array([row]))
        cache.truncate(np.array([row]), np.array([len(held[row])]))


def test_a_tree_that_grows_level_by_level(oracle):
    generator = torch.Generator().manual_seed(5)
    tokens, parents = torch.randint(23, (2, 16), generator=generator), random_tree(2, 16, generator)
    grown, at_once = oracle.new_cache(3, 40), oracle.new_cache(3, 40)
    for cache in (grown, at_once):
        score(oracle, cache, [0], torch.arange(9)[None])
        cache.commit(np.array([0]), None, np.array([9]))
    parts = [
        score(oracle, grown, [0, 2], tokens[:, :end], parents[:, :end], first=start).logits
        for start, end in ((0, 3), (3, 4), (4, 16))
    ]
    close(torch.cat(parts, dim=1), score(oracle, at_once, [0, 2], tokens, parents).logits)


def test_want_and_hidden_select_what_is_returned(oracle):
    tokens, nodes = torch.arange(15).view(3, 5), torch.tensor([5, 3, 1])
    cache, rows, few = oracle.new_cache(3, 16), [0, 1, 2], torch.arange(6).view(3, 2)
    full = score(oracle, cache, rows, tokens, num_nodes=nodes, hidden=(0, 1))
    last = score(oracle, cache, rows, tokens, num_nodes=nodes, want="last").logits
    close(last[:, 0], full.logits[torch.arange(3), nodes - 1])
    # More rows than nodes: the model gives the logits of all nodes.
    narrow = score(oracle, cache, rows, few, num_nodes=torch.tensor([2, 1, 2]), want="last").logits
    wanted = score(oracle, cache, rows, few).logits[torch.arange(3), torch.tensor([1, 0, 1])]
    close(narrow[:, 0], wanted)
    assert score(oracle, cache, rows, tokens, want="none").logits is None
    assert [tuple(layer.shape) for layer in full.hidden] == [(3, 5, 32)] * 2
    with torch.no_grad():
        made = oracle._model(input_ids=tokens[:1], use_cache=False, output_hidden_states=True)
    close(full.hidden[0][0], made.hidden_states[1][0])
    with pytest.raises(ValueError, match="want"):
        score(oracle, cache, rows, tokens, want="some")
    with pytest.raises(ValueError, match="hidden"):
        score(oracle, cache, rows, tokens, hidden=(3,))


def test_padding_may_stand_beyond_the_context(oracle):
    last, cache = oracle.max_context - 1, oracle.new_cache(2, oracle.max_context + 8)
    ids = torch.randint(23, (last,), generator=torch.Generator().manual_seed(6))
    score(oracle, cache, [0], ids[None], want="none")
    cache.commit(np.array([0]), None, np.array([last]))
    tokens = torch.arange(10).view(2, 5)
    logits = score(oracle, cache, [0, 1], tokens, num_nodes=torch.tensor([1, 5])).logits
    close(logits[0, 0], whole(oracle, [*ids.tolist(), 0])[-1])
    close(logits[1], whole(oracle, tokens[1].tolist()))
    cache.commit(np.array([0]), None, np.array([1]))
    with pytest.raises(ValueError, match="no position left"):
        score(oracle, cache, [0], tokens[:1])


def test_half_precision_claims_no_equal_bits():
    # By chance these pass the check that lets our own transformer say "exact".
    assert not HuggingFaceLM(random_model("llama, eager", dtype=torch.bfloat16)).bitwise


def test_greedy_decoding_is_what_generate_writes(oracle):
    """With chains, near whose ends nothing is drafted, and with trees."""
    wanted = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        made = oracle._model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=24, do_sample=False, pad_token_id=0
        )
        wanted.append(made[0, len(prompt) :].tolist())
    for source in (PromptLookup(4, min_ngram=1), SmallTransformer(oracle, temperature=0.0, tree=PATHS)):
        result = SpeculativeDecoder(oracle, source, "sample_and_match").generate(PROMPTS, 24)
        assert result.tokens == wanted
        assert (result.exactness, result.backend) == ("exact up to numerics", "transformers")


@pytest.mark.parametrize("family", first_of("gpt2", "gemma2", "llama"))
def test_sampled_text_follows_the_models_law(family):
    # Llama's and Gemma's norms and rotary tables are float32 whatever the model's dtype.
    tolerance = 1e-10 if family == "gpt2" else 1e-6
    tiny, other = (HuggingFaceLM(random_model(family, seed, torch.float64, vocab_size=4)) for seed in (0, 1))
    sampling, mates = SamplingParams(temperature=0.8), [[0], [1, 2, 0, 3, 3, 1, 2]]
    options = {"sampling": sampling, "mates": mates, "tolerance": tolerance}
    check_lossless(SpeculativeDecoder(tiny, TREES, "sample_and_match"), [3, 1], 3, depth=2, **options)
    check_lossless(SpeculativeDecoder(tiny, SmallTransformer(other, 2)), [3, 1], 3, **options)


def test_windows_are_felt():
    ids = list(range(20))
    narrow, wide = (HuggingFaceLM(random_model("gemma2", sliding_window=window)) for window in (5, 20))
    assert not torch.allclose(whole(narrow, ids)[19], whole(wide, ids)[19])
    assert torch.allclose(whole(narrow, ids)[:5], whole(wide, ids)[:5])


def test_half_precision_gives_float32_logits():
    oracle = HuggingFaceLM(random_model("llama", dtype=torch.bfloat16))
    cache = oracle.new_cache(1, 8)
    assert cache.payload.dtype == oracle.dtype == torch.bfloat16
    assert score(oracle, cache, [0], torch.tensor([[1, 2]])).logits.dtype == torch.float32
