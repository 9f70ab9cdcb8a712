"""Early exit: a pass in parts has the bits of a whole one, nothing is computed twice, and the output does not move."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

import oracles
from drafts import EarlyExit
from oracles import TabularLM, Transformer
from specdec import SpeculativeDecoder
from specdec.cache import prefill
from specdec.drafting.lengths import Entropy, Fixed
from specdec.exactness import check_lossless
from tests.support.backends import PACKS, agree
from tests.support.models.law_transformers import MATES, PARAMS, PROMPT, SHAPES, SIZES, TEXTS, WIDER
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import diagonal, pairwise

LENGTHS, WIDTH = (9, 3, 14), 5


@pytest.fixture(scope="module")
def code() -> Transformer:
    return oracles.load("code", dtype="float32", device="cpu")


def filled_cache(model: Transformer, generator: torch.Generator) -> object:
    """Return a cache whose rows hold prompts of ``LENGTHS`` (the last token of each pending)."""
    cache, rows = model.new_cache(len(LENGTHS), 64), np.arange(len(LENGTHS))
    prompts = [torch.randint(model.vocab_size, (n,), generator=generator).numpy() for n in LENGTHS]
    prefill(model, cache, rows, prompts)
    return cache


def same_bits(first: torch.Tensor, second: torch.Tensor) -> bool:
    return first.dtype == second.dtype and torch.equal(first, second)


@pairwise({"shape": WIDER, "cut": (1, 3), "any_pack": PACKS})
def test_lower_layers_node_by_node_and_upper_ones_at_once_have_the_bits_of_a_whole_pass(shape, cut, any_pack):
    """Rows of other lengths stand beside; the lower passes take rows in two groups."""
    model = tiny_transformer(50, torch.float32, pack=any_pack, **{**SIZES, **shape})
    assert model.bitwise or model.backend == "graphed"
    rows, nodes = np.arange(len(LENGTHS)), torch.full((len(LENGTHS),), WIDTH)
    whole, parts = (filled_cache(model, torch.Generator().manual_seed(1)) for _ in range(2))
    tokens = torch.randint(50, (len(LENGTHS), WIDTH), generator=torch.Generator().manual_seed(2))
    wanted = model.score(tokens, None, nodes, whole, rows, hidden=(cut - 1, 3))
    stream = torch.zeros(len(LENGTHS), WIDTH, SIZES["hidden_size"])
    for node in range(WIDTH):
        for group in (np.array([2, 0]), np.array([1])):
            one = np.ones_like(group)
            at = (tokens[group, node : node + 1], None, torch.from_numpy(one), parts, group)
            stream[group, node] = model.score(*at, "none", (cut - 1,), layers=(0, cut)).hidden[0].squeeze(1)
            parts.commit(group, None, one)
    parts.truncate(rows, parts.lengths[rows] - WIDTH)
    made = model.score(tokens, None, nodes, parts, rows, "all", (3,), layers=(cut, 4), stream=stream)
    assert agree(model, stream, wanted.hidden[0])
    assert agree(model, made.hidden[0], wanted.hidden[1])
    assert agree(model, made.logits, wanted.logits)
    assert all(agree(model, *pair) for pair in zip(parts.tensors, whole.tensors, strict=True))


def test_a_tree_in_two_parts_has_the_bits_of_a_whole_pass():
    model = tiny_transformer(50, torch.float32, **SIZES)
    rows, parents = np.arange(len(LENGTHS)), torch.tensor([[-1, 0, 0, 1, 2]]).expand(3, -1)
    tokens = torch.randint(50, (3, 5), generator=torch.Generator().manual_seed(2))
    whole, parts = (filled_cache(model, torch.Generator().manual_seed(1)) for _ in range(2))
    nodes = torch.tensor([5, 2, 4])
    wanted = model.score(tokens, parents, nodes, whole, rows)
    stream = model.score(tokens, parents, nodes, parts, rows, "none", (1,), layers=(0, 2)).hidden[0]
    made = model.score(tokens, parents, nodes, parts, rows, layers=(2, 4), stream=stream)
    assert same_bits(made.logits, wanted.logits)


@diagonal({"shape": SHAPES, "temperature": {"as asked": None, "greedy": 0.0, "hot": 2.0}})
def test_the_output_law_is_the_oracles(shape, temperature):
    oracle = tiny_transformer(**shape)
    draft = EarlyExit(oracle, 1, num_draft_tokens=2, temperature=temperature)
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 3, PARAMS, mates=MATES)


def test_logprobs_of_a_greedy_run_have_the_bits_of_plain_decodings(code):
    plain, made = (
        SpeculativeDecoder(code, draft).generate(TEXTS, 24, return_logprobs=True)
        for draft in (None, EarlyExit(code, 2, num_draft_tokens=4))
    )
    assert made.logprobs == plain.logprobs


def rows_through(model: Transformer, draft: EarlyExit | None, prompts, num_new: int, batch_size=None):
    """Return how many nodes went through each layer, and the records of the run."""
    counts: Counter[int] = Counter()
    hooks = [
        block.register_forward_pre_hook(lambda _, args, layer=layer: counts.update({layer: len(args[0])}))
        for layer, block in enumerate(model.model.layers)
    ]
    result = SpeculativeDecoder(model, draft).generate(prompts, num_new, batch_size=batch_size)
    for hook in hooks:
        hook.remove()
    return counts, result


def test_each_node_passes_each_layer_exactly_once():
    model = tiny_transformer(50, torch.float32, **SIZES)
    prompt = list(range(10))
    counts, result = rows_through(model, EarlyExit(model, 2, num_draft_tokens=3), [prompt], 30)
    nodes = sum(record["num_drafted"] + 1 for record in result.records)
    assert {record["num_drafted"] for record in result.records} >= {3}
    assert counts == dict.fromkeys(range(4), len(prompt) - 1 + nodes)


def test_in_a_batch_lower_layers_see_real_nodes_only_and_upper_ones_what_a_whole_pass_would():
    model = tiny_transformer(50, torch.float32, **SIZES)
    prompts = [list(range(n)) for n in (4, 9, 6)]
    counts, result = rows_through(model, EarlyExit(model, 1, num_draft_tokens=3), prompts, 21)
    prefilled = len(prompts) * max(len(prompt) - 1 for prompt in prompts)
    real = sum(record["num_drafted"] + 1 for record in result.records)
    scored = sum(record["num_nodes"] for record in result.records)
    assert len({record["num_drafted"] for record in result.records}) > 1, "some rows draft less than others"
    assert counts == {0: prefilled + real, **dict.fromkeys((1, 2, 3), prefilled + scored)}
    assert real < scored


def test_a_step_without_a_draft_is_a_plain_pass():
    model = tiny_transformer(50, torch.float32, **SIZES)
    counts, result = rows_through(model, EarlyExit(model, 2, length=Fixed(0)), [[1, 2, 3]], 8)
    assert counts == dict.fromkeys(range(4), 2 + 8)
    assert result.stats.target_calls == 8


@pytest.mark.parametrize("threshold", [1.0, 0.6])
def test_a_policy_that_stops_before_a_draw_leaves_the_verify_pass_its_streams(threshold):
    oracle = tiny_transformer(num_layers=3)
    draft = EarlyExit(oracle, 2, length=Entropy(threshold, max_draft_tokens=2))
    check_lossless(SpeculativeDecoder(oracle, draft), PROMPT, 3, PARAMS, mates=MATES)
    plain, made = (SpeculativeDecoder(oracle, d).generate([PROMPT, *MATES], 20) for d in (None, draft))
    assert made.tokens == plain.tokens


def test_acceptance_rises_with_the_layers(code):
    rates = [SpeculativeDecoder(code, EarlyExit(code, k)).generate(TEXTS, 40).stats.acceptance_rate for k in (1, 3, 5)]
    assert rates[0] < rates[1] < rates[2] < 1


def test_pairs_that_cannot_work_are_refused_with_the_reason():
    model, other = tiny_transformer(num_layers=3), tiny_transformer(num_layers=3)
    with pytest.raises(ValueError, match="give the same object to both"):
        SpeculativeDecoder(other, EarlyExit(model, 1))
    with pytest.raises(ValueError, match="pass can be cut"):
        EarlyExit(TabularLM.random(4, 1, 0), 1)
    with pytest.raises(ValueError, match="leaves the last layers out, and the oracle has one: use another source"):
        EarlyExit(tiny_transformer(num_layers=1), 1)
    for k in (0, 3, -1, 1.5):
        with pytest.raises(ValueError, match=r"the oracle has 3 layers, so draft with 1\.\.2"):
            EarlyExit(model, k)
    for k in (2.0, True):
        with pytest.raises(ValueError, match="num_layers must be an integer"):
            EarlyExit(model, k)
    with pytest.raises(ValueError, match="head must turn streams into logits, not 'code-exit': give what"):
        EarlyExit(model, 2, "code-exit")
    with pytest.raises(ValueError, match="temperature"):
        EarlyExit(model, 1, temperature=-1.0)


def test_a_session_without_the_decoders_cache_says_so():
    model = tiny_transformer(num_layers=3)

    class Inside(EarlyExit):
        """What a source that hides its needs would do."""

        needs = replace(EarlyExit(model, 1).needs, cache_of=None)

    with pytest.raises(ValueError, match="cannot serve inside another source"):
        SpeculativeDecoder(model, Inside(model, 1)).generate([[1, 2]], 4)


def test_a_stream_for_another_number_of_nodes_is_malformed():
    model = tiny_transformer(num_layers=3)

    class Short(EarlyExit):
        def open(self, oracle, num_rows, capacity):
            session = super().open(oracle, num_rows, capacity)
            propose = session.propose

            def cut(*args):
                draft = propose(*args)
                assert draft.resume is not None
                return replace(draft, resume=replace(draft.resume, stream=draft.resume.stream[:, 1:]))

            session.propose = cut
            return session

    with pytest.raises(ValueError, match=r"resume\.stream"):
        SpeculativeDecoder(model, Short(model, 1)).generate([[1, 2]], 6)


def test_the_rest_of_another_oracles_pass_is_refused():
    model, other = tiny_transformer(num_layers=3), tiny_transformer(num_layers=3)

    class Wrong(EarlyExit):
        def open(self, oracle, num_rows, capacity):
            session = super().open(oracle, num_rows, capacity)
            propose = session.propose

            def elsewhere(*args):
                draft = propose(*args)
                return replace(draft, resume=replace(draft.resume, oracle=other))

            session.propose = elsewhere
            return session

    with pytest.raises(ValueError, match="another oracle than the decoder's"):
        SpeculativeDecoder(model, Wrong(model, 1)).generate([[1, 2]], 6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"layers": (0, 4)}, "0 <= first < last <= 3"),
        ({"layers": (2, 2)}, "first < last"),
        ({"layers": (1, 3)}, "give a stream"),
        ({"stream": torch.zeros(1, 2, 16)}, "none where it is 0"),
        ({"layers": (1, 3), "stream": torch.zeros(1, 3, 16)}, "stream has shape"),
        ({"layers": (0, 2)}, "want='none'"),
        ({"layers": (0, 2), "want": "none", "hidden": (2,)}, r"runs 0\.\.1 only"),
    ],
)
def test_parts_that_make_no_sense_are_refused(options, message):
    model = tiny_transformer(num_layers=3)
    with pytest.raises(ValueError, match=message):
        model.score(torch.tensor([[1, 2]]), None, torch.tensor([2]), model.new_cache(1, 8), np.array([0]), **options)
