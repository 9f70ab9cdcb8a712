"""A view of the oracle in fewer bits drafts on the oracle's keys, leaves none of its own, and moves no output."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from drafts import Quantized
from oracles import TabularLM, Transformer
from oracles.graphed.graphed_memory import CACHE_ROW_DIM, CACHE_SLOT_DIM
from oracles.native import NativeTransformer
from oracles.native.keys_values import NativeCache
from specdec import Entropy, Fixed, SamplingParams, SpeculativeDecoder
from specdec.cache import KVCache, prefill
from specdec.exactness import check_lossless
from tests.support.backends import BITWISE_PACKS
from tests.support.drafting.draft_rows import Rows
from tests.support.models.law_transformers import MATES, PARAMS, PROMPT, SHAPES, SIZES, WIDER
from tests.support.models.tiny_models import rough_view, tiny_transformer, tiny_unpacked
from tests.support.pairwise import diagonal, pairwise

VOCAB = 50
PROMPTS = [[(7 * i + 3 * j) % VOCAB for j in range(1 + 4 * i)] for i in range(5)]
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
MIXED = [replace(SAMPLED, temperature=0.9 * (i % 2)) for i in range(len(PROMPTS))]


def pair(pack, make=rough_view, **shape):
    """Return an oracle over ``VOCAB`` ids in float32, and a view of it."""
    return tuple(one(VOCAB, torch.float32, pack=pack, **{**SIZES, **shape}) for one in (tiny_transformer, make))


def slots(cache, row: int, begin: int, end: int) -> list[torch.Tensor]:
    """Return the keys and values of some slots of a row, as views of the cache, slot after slot."""
    if isinstance(cache, KVCache):
        held = cache.payload.movedim((CACHE_ROW_DIM, CACHE_SLOT_DIM), (0, 1))[row]
        return [held[slot] for slot in range(begin, end)]
    of_row = cache.lines(row, np.arange(begin, end)).tolist()
    if not isinstance(cache, NativeCache):
        return [cache.payload[:, :, :, line] for line in of_row]
    keys, values = cache.memory.tensors
    pairs = [(keys[:, :, line // 16, :, line % 16], values[:, :, line // 16, line % 16]) for line in of_row]
    return [tensor for both in pairs for tensor in both]


def run(decoder: SpeculativeDecoder, sampling=None, num_new: int = 20):
    """Return the state at the end of a run of all prompts at once, and the steps' infos."""
    state, infos = decoder.start(PROMPTS, num_new, sampling), []
    while state.has_work:
        state, info = decoder.step(state)
        infos.append(info)
    return state, infos


@diagonal({"shape": SHAPES, "temperature": {"as asked": None, "greedy": 0.0, "hot": 2.0}})
def test_the_output_law_is_the_oracles(shape, temperature):
    oracle = tiny_transformer(**shape)
    draft = Quantized(oracle, rough_view(**shape), 2, temperature=temperature)
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 3, PARAMS, mates=MATES)


@pytest.mark.parametrize("shape", WIDER.values(), ids=WIDER)
def test_drafts_follow_the_views_law_over_the_oracles_keys(shape, any_pack):
    """The view's own keys of what stands give another law, so a cache of its own would fail here."""
    oracle, view = pair(any_pack, **shape)
    rows = Rows(Quantized(oracle, view, 1), sampling=SamplingParams(temperature=1.0))
    rows.seat(dict(enumerate(PROMPTS[1:])))
    laws = rows.propose(dict.fromkeys(range(4), 1)).node_laws[:, 0].dense(VOCAB)
    for row, prompt in enumerate(PROMPTS[1:]):
        expected = []
        for reader in (oracle, view):
            cache = reader.new_cache(1, 64)
            prefill(reader, cache, np.array([0]), [np.array(prompt)])
            scores = view.score(torch.tensor([prompt[-1:]]), None, torch.tensor([1]), cache, np.array([0]))
            expected.append(scores.logits[0, 0].softmax(-1))
        torch.testing.assert_close(laws[row], expected[0], rtol=1e-5, atol=1e-7)
        assert (laws[row] - expected[1]).abs().max() > 1e-3


@pytest.mark.parametrize("sampling", [None, SAMPLED, MIXED], ids=["greedy", "sampled", "mixed"])
def test_the_oracles_own_weights_are_always_accepted(sampling, any_pack):
    oracle, same = pair(any_pack, tiny_transformer)
    stats = SpeculativeDecoder(oracle, Quantized(oracle, same, 3)).generate(PROMPTS, 20, sampling).stats
    assert stats.num_drafted > 0
    assert stats.num_accepted == stats.num_drafted


@pairwise(
    {
        "sampling": {"greedy": None, "mixed": MIXED},
        "make": {"own weights": tiny_transformer, "rough view": rough_view},
        "length": {"fixed": Fixed(4), "entropy": Entropy(0.25, max_draft_tokens=5)},
        "pack": BITWISE_PACKS,
    }
)
def test_keys_that_stand_are_those_of_plain_decoding(sampling, make, length, pack):
    """Bit for bit, although the view's own keys lay in these slots before."""
    oracle, view = pair(pack, make)
    (plain, _), (made, infos) = (
        run(SpeculativeDecoder(oracle, draft, "coupled"), sampling)
        for draft in (None, Quantized(oracle, view, length=length))
    )
    assert sum(int(info.num_accepted.sum()) for info in infos) > 0
    assert made.outputs == plain.outputs
    for row, prompt in enumerate(PROMPTS):
        kept = zip(*(slots(state.seating.cache, row, 0, len(prompt) + 18) for state in (plain, made)), strict=True)
        assert all(map(torch.equal, *zip(*kept, strict=True)))


class Spoiling(Quantized):
    """A source that fills the slots which its drafts may write with numbers that would be felt."""

    def open(self, oracle, num_rows, capacity):
        session = super().open(oracle, num_rows, capacity)
        propose = session.propose

        def spoil(rows, context, *rest):
            start = context.cache.lengths[rows].copy()
            draft = propose(rows, context, *rest)
            assert np.array_equal(context.cache.lengths[rows], start)
            for row, begin, count in zip(rows, start, draft.num_nodes.tolist(), strict=True):
                for held in slots(context.cache, row, begin, begin + count):
                    held.fill_(9.0)
            return draft

        session.propose = spoil
        return session


@pytest.mark.parametrize("sampling", [None, MIXED], ids=["greedy", "mixed"])
def test_the_verify_pass_writes_over_every_key_of_a_draft(sampling, pack):
    oracle, view = pair(pack)
    plain, made = (
        SpeculativeDecoder(oracle, draft, "coupled").generate(PROMPTS, 20, sampling, return_logprobs=True)
        for draft in (None, Spoiling(oracle, view, 3))
    )
    assert made.stats.num_accepted > 0
    assert made.tokens == plain.tokens
    assert made.logprobs == plain.logprobs


def test_a_drafted_token_is_one_node_through_the_view_and_nothing_else_is():
    oracle, view = pair(Transformer.pack)
    counts: Counter[str] = Counter()
    for name, model in (("oracle", oracle), ("view", view)):
        model.model.layers[0].register_forward_pre_hook(lambda _, args, name=name: counts.update({name: len(args[0])}))
    result = SpeculativeDecoder(oracle, Quantized(oracle, view, 3)).generate(PROMPTS[2:3], 20)
    stats = result.stats
    assert counts["view"] == stats.num_drafted == stats.num_draft_passes > 0
    assert counts["oracle"] == len(PROMPTS[2]) - 1 + stats.num_scored_nodes
    assert stats.draft_cost_ratio(0.5) == stats.seconds["propose"] / (0.5 * stats.num_drafted) > 0


def test_in_a_batch_only_rows_that_draft_pass_the_view():
    oracle, view = pair(Transformer.pack)
    widths: list[int] = []
    view.model.layers[0].register_forward_pre_hook(lambda _, args: widths.append(len(args[0])))
    result = SpeculativeDecoder(oracle, Quantized(oracle, view, 3)).generate(PROMPTS, 21)
    assert len({record["num_drafted"] for record in result.records}) > 1, "some rows draft less than others"
    assert sum(widths) == result.stats.num_drafted


def test_a_view_near_the_end_of_the_context_drafts_within_it(any_pack):
    oracle, view = pair(any_pack, max_context=24)
    plain, made = (
        SpeculativeDecoder(oracle, draft).generate(PROMPTS, 40) for draft in (None, Quantized(oracle, view, 6))
    )
    assert made.tokens == plain.tokens
    assert [len(prompt + new) for prompt, new in zip(PROMPTS, made.tokens, strict=True)] == [24] * len(PROMPTS)


OTHER_SHAPES = ({"num_layers": 3}, {"max_context": 32}, {"sliding_window": 8}, {"rope_theta": 500.0})


def test_a_view_of_another_shape_is_refused(any_pack):
    oracle = tiny_transformer(VOCAB, torch.float32, pack=any_pack, **SIZES)
    for shape in OTHER_SHAPES:
        view = rough_view(VOCAB, torch.float32, pack=any_pack, **SIZES | shape)
        with pytest.raises(ValueError, match=r"^view, .* cannot score on the oracle's cache, .*: load both from one"):
            Quantized(oracle, view)


def test_a_view_of_another_backend_or_dtype_is_refused():
    oracle = tiny_transformer()
    with pytest.raises(ValueError, match="same backend, dtype, device and max_context; only weights may differ"):
        Quantized(oracle, tiny_transformer(dtype=torch.float32))
    unpacked = tiny_unpacked(dtype=torch.float32)
    with pytest.raises(ValueError, match="cannot score on the oracle's cache"):  # keys in another order
        Quantized(tiny_transformer(dtype=torch.float32), unpacked)
    native = NativeTransformer(unpacked)
    for first, second in ((oracle, native), (native, oracle)):
        with pytest.raises(ValueError, match=f"view, whose backend is {second.backend!r}, cannot .* {first.backend!r}"):
            Quantized(first, second)


def test_pairs_that_cannot_work_are_refused_with_the_reason():
    oracle, view, table = tiny_transformer(), rough_view(), TabularLM.random(4, 1, 0)
    with pytest.raises(ValueError, match="view drafts from a vocabulary of 5 ids, but the oracle's has 4"):
        Quantized(oracle, rough_view(5))
    for model in (view, table):
        with pytest.raises(
            ValueError, match="oracle is a 'table' model, which lends its cache to nobody: give a trans"
        ):
            Quantized(table, model)
    with pytest.raises(ValueError, match=r"view, .* cannot score"):
        Quantized(oracle, table)
    with pytest.raises(ValueError, match="give the same object to both"):
        SpeculativeDecoder(tiny_transformer(), Quantized(oracle, view))
    with pytest.raises(ValueError, match="temperature"):
        Quantized(oracle, view, temperature=-1.0)


def test_a_session_without_the_decoders_cache_says_so():
    oracle, view = tiny_transformer(), rough_view()

    class Inside(Quantized):
        """What a source that hides its needs would do."""

        needs = replace(Quantized(oracle, view).needs, cache_of=None)

    with pytest.raises(ValueError, match=r"'quantized' was given no cache: .* cannot serve inside another source"):
        SpeculativeDecoder(oracle, Inside(oracle, view)).generate([[1, 2]], 4)
