"""What a head reads: outputs of layers on every backend, and each position's, however it came to stand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drafts import Cascade, Merged, PromptLookup, SmallTransformer, Staged
from oracles import HuggingFaceLM, TabularLM
from oracles.native import NativeTransformer
from oracles.transformer.blocks import Norm
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Features, Scores
from specdec.drafting import HiddenStates
from tests.reference.tables import random_table
from tests.support.backends import needed_native
from tests.support.drafting.hidden_watch import RememberingHead, WatchingSource
from tests.support.drafting.sources import RandomTrees
from tests.support.models.hf_models import FAMILIES as HF_FAMILIES
from tests.support.models.hf_models import random_model
from tests.support.models.tiny_models import FAMILIES, small_model, tiny_transformer
from tests.support.pairwise import chosen, pairwise

IDS = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6]])
PROMPTS = [[1, 2, 3, 1, 2], [0], [3, 3], [2], [1, 2, 1, 2, 1, 2], [0, 1], [3], [2, 0, 1]]


def hidden_of(oracle, layers, ids=IDS):
    cache = oracle.new_cache(1, 64)
    counts = torch.tensor([ids.shape[1]])
    return oracle.score(ids, None, counts, cache, np.array([0]), hidden=layers)


@pytest.mark.parametrize("family", FAMILIES)
def test_hidden_are_the_outputs_of_layers_and_the_host_lends_its_ends(family, any_pack):
    plain = small_model(num_layers=3, **FAMILIES[family])
    oracle = any_pack(small_model(num_layers=3, **FAMILIES[family]))
    assert (oracle.hidden_size, oracle.hidden_layers) == (32, 3)
    scores = hidden_of(oracle, (0, 1, 2))
    with torch.no_grad():
        wanted = plain.streams(IDS)
        for found, layer in zip(scores.hidden, wanted, strict=True):
            torch.testing.assert_close(found, layer, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(oracle.embed(IDS), plain.model.embed_tokens.weight[IDS])
        last = scores.hidden[2][0]
        torch.testing.assert_close(oracle.read_out(last), scores.logits[0], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(oracle.last_norm(last), plain.model.norm(last), rtol=1e-4, atol=1e-4)
        other = Norm(32, plain.config.norm, 1e-5)
        other.weight.copy_(torch.linspace(0.5, 2.0, 32))
        wanted = plain.head(other(last))
        torch.testing.assert_close(oracle.read_out_after(other)(last), wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("weights", ["bfloat16", "int8", "int4"])
@pytest.mark.parametrize("tied", [False, True], ids=["own head", "tied"])
def test_native_embeddings_are_the_numbers_that_its_weights_stand_for(weights, tied):
    needed_native()
    eager = small_model(tie_embeddings=tied).store(weights)
    wanted = eager.model.embed_tokens.weight.detach().float()[IDS]
    native = NativeTransformer(small_model(tie_embeddings=tied).store(weights))
    assert torch.equal(native.embed(IDS), wanted)
    with pytest.raises(ValueError, match="outside the vocabulary"):
        native.embed(torch.tensor([23]))


@pytest.mark.parametrize("family", HF_FAMILIES)
def test_hidden_of_transformers_models_are_outputs_of_layers_the_last_ones_too(family):
    model = random_model(family)
    oracle, seen = HuggingFaceLM(model), {}
    lists = [part for part in model.modules() if isinstance(part, torch.nn.ModuleList)]
    layers = next(part for part in lists if len(part) == oracle.hidden_layers)
    for number, layer in enumerate(layers):
        layer.register_forward_hook(
            lambda _, __, out, number=number: seen.__setitem__(number, out if isinstance(out, torch.Tensor) else out[0])
        )
    scores = hidden_of(oracle, tuple(range(len(layers))))
    for number, found in enumerate(scores.hidden):
        torch.testing.assert_close(found, seen[number])
    table = model.get_input_embeddings()(IDS)
    assert torch.equal(oracle.embed(IDS), table)
    read = oracle.read_out_after(torch.nn.Identity())
    stream = torch.randn(2, oracle.hidden_size)
    torch.testing.assert_close(read(stream), model.get_output_embeddings()(stream)[:, : oracle.vocab_size])


TREES = RandomTrees(random_table(4, 2, 51), max_nodes=5)
INNER = {
    "chains": (PromptLookup(3, min_ngram=1), "standard"),
    "drawn chains": (SmallTransformer(TabularLM(random_table(4, 2, 7)), 3), "standard"),
    "trees": (TREES, "sample_and_match"),
    "nothing": (PromptLookup(0), "standard"),
}


@chosen({"inner": INNER, "batch_size": (1, 3, 8), "temperature": (0.0, 1.0)}, lambda inner, *run: {inner, run})
def test_every_position_that_stands_has_the_hidden_states_of_its_own_sequence(inner, batch_size, temperature):
    oracle = tiny_transformer(max_context=40)
    draft, rule = inner
    source = WatchingSource(draft, oracle, (1, 0))
    sampling = SamplingParams(temperature=temperature)
    SpeculativeDecoder(oracle, source, rule).generate(PROMPTS, 20, sampling, batch_size=batch_size)
    assert max(source.seen) > 20
    assert 0 in source.seen  # of a prompt of one id there is nothing yet


@pairwise(
    {
        "kind": {"merged": Merged, "cascade": Cascade},
        "first": {"last member": False, "first member": True},
        "nested": {"flat": False, "nested": True},
    }
)
def test_a_member_is_given_what_other_members_drafted_too(kind, first, nested):
    oracle = tiny_transformer(max_context=40)
    watching = WatchingSource(PromptLookup(1, min_ngram=3), oracle, (0,))
    others = [PromptLookup(3, min_ngram=2), TREES]
    inner = kind([watching, others[0]] if first else [others[0], watching])
    source = kind([inner, others[1]] if first else [others[1], inner]) if nested else inner
    result = SpeculativeDecoder(oracle, source, "sample_and_match").generate(
        PROMPTS, 20, SamplingParams(temperature=0.7), batch_size=3
    )
    accepted = result.stats.accepted_by_source
    assert sum(count for name, count in accepted.items() if not name.startswith("watching")) > 10
    assert max(watching.seen) > 9


def test_a_drafting_model_hands_on_no_hidden_layers():
    with pytest.raises(ValueError, match="needs hidden layers; a draft model hands on its logits only"):
        Staged(TabularLM(random_table(4, 2, 7)), WatchingSource(PromptLookup(1), tiny_transformer(), (0,)))


def states(capacity=8):
    head = RememberingHead((0,), 2, 4)
    return HiddenStates(head, head.new_cache(2, capacity), 2, capacity)


def scores_of(width, path=None):
    layer = torch.arange(2.0 * width * 2).view(2, width, 2)
    return Scores(None, (layer,), path=path)


ROWS, PROMPT = np.arange(2), [np.array([1, 2, 3]), np.array([1])]


def test_scores_that_do_not_come_are_missed_and_named():
    kept = states()
    with pytest.raises(ValueError, match=r"outputs of layers \(0,\) and was given none"):
        kept.begin(ROWS, PROMPT, None)
    kept.begin(ROWS, PROMPT, scores_of(2))
    assert kept.known.tolist() == [2, 0]
    new = np.array([[1, 2], [3, -1]])
    with pytest.raises(ValueError, match="given none of them"):
        kept.sync(ROWS, np.array([3, 1]), new, None)
    with pytest.raises(ValueError, match="nothing of the path"):
        kept.sync(ROWS, np.array([3, 1]), new, scores_of(3))
    with pytest.raises(ValueError, match="hidden states of row 1 after position 0 never came"):
        kept.sync(ROWS, np.array([3, 4]), new, scores_of(3, np.array([[0, 1], [0, 0]])))
    with pytest.raises(ValueError, match=r"knows positions \[2, 0\] of rows \[0, 1\], and needs those of \[3, 0\]"):
        kept.check(ROWS, np.array([4, 1]))


def test_fewer_ids_may_stand_than_were_seen_and_positions_end_with_the_heads_own_context():
    kept = states(capacity=4)
    kept.begin(ROWS, PROMPT, scores_of(2))
    kept.sync(
        ROWS, np.array([2, 1]), np.array([[5, 6, 7], [3, -1, -1]]), scores_of(4, np.array([[0, 2, 3], [0, 0, 0]]))
    )
    assert kept.known.tolist() == [4, 1]
    # Row 0: position 0 of the prompt, then nodes 0, 2, 3 of the step; each node holds two numbers.
    assert kept.cache.features[0, :4, 0].tolist() == [0, 0, 4, 6]
    assert kept.cache.features[1, :1, 0].tolist() == [8]
    kept.sync(ROWS, np.array([5, 2]), np.array([[1, 2], [1, 2]]), scores_of(2, np.array([[0, 1], [0, 1]])))
    assert kept.known.tolist() == [4, 3]
    kept.sync(ROWS, np.array([7, 4]), np.array([[1, 2], [1, 2]]), scores_of(2, np.array([[0, 1], [0, 1]])))
    assert kept.known.tolist() == [4, 4]
    kept.check(ROWS, np.array([9, 6]))
    kept.end(ROWS)
    assert kept.known.tolist() == [0, 0]


def test_features_leave_no_gap_and_change_no_key_that_stands():
    cache = RememberingHead((0,), 2, 4).new_cache(2, 6)
    one = Features(np.array([1]), np.array([0]), np.array([2]), (torch.ones(1, 3, 2),))
    RememberingHead((0,), 2, 4).put(one, cache)
    assert cache.known.tolist() == [0, 2]
    assert cache.features[1, :, 0].tolist() == [1, 1, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="leave a gap"):
        RememberingHead((0,), 2, 4).put(replace(one, starts=np.array([3])), cache)
    cache.reserve(np.array([1]), 2)
    cache.commit(np.array([1]), None, np.array([2]))
    with pytest.raises(ValueError, match="change what keys were made of"):
        RememberingHead((0,), 2, 4).put(replace(one, starts=np.array([1])), cache)
    many = replace(one, starts=np.array([2]), counts=np.array([6]), scored=(torch.ones(1, 6, 2),))
    with pytest.raises(ValueError, match="more than the 7 of a row"):
        RememberingHead((0,), 2, 4).put(many, cache)
    at, row = torch.tensor([1]), np.array([1])
    cache.guess(row, at, torch.tensor([[1, 2]]), torch.full((1, 2, 2), 7.0))
    assert cache.read(at, torch.tensor([[0, 1, 2]]))[0, :, 0].tolist() == [1, 1, 7]
    cache.reset(row)
    assert cache.known.tolist() == [0, 0]
    assert not cache.features.any()
    assert cache.bytes == cache.payload.nbytes + cache.features.nbytes
