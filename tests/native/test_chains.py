"""Chains drafted in one native call are those drafted pass by pass: tokens, laws, confidences, records and reports."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from drafts import Quantized, SmallTransformer, Staged
from oracles.native import NativeTransformer, bindings
from specdec import Entropy, Fixed, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import FloatArray, IntArray
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.support.backends import laws_by, needed_native
from tests.support.drafting.draft_rows import recorded
from tests.support.drafting.native_drafts import (
    DRAFT,
    MANY,
    MIXED,
    ORACLE,
    PROMPTS,
    VIEW,
    VOCAB,
    WARM,
    Counted,
    Curious,
    PassByPass,
    both_ways,
    model,
    run_of_chains,
)
from tests.support.drafting.whole_drafts import as_tensors
from tests.support.models.tiny_models import tiny_unpacked
from tests.support.pairwise import chosen
from tests.support.registry import POLICIES

needed_native()


def measured(draft, sampling, batch_size, rule="coupled", **options):
    return run_of_chains(SmallTransformer(draft, **options), sampling, batch_size, rule)


# How requests are sampled, the rule, and the temperature to draft at.
WAYS = {
    "greedy": (SamplingParams(), "standard", None),
    "greedy drafts": (WARM, "standard", 0.0),
    "sampled": (MANY, "standard", None),
    "coupled": (MANY, "coupled", None),
    "own heat": (MIXED, "standard", 1.2),
    "mixed": (MIXED, "coupled", None),  # a batch follows where its rows are all greedy, or all sampled
}
LENGTHS_OF_ALL = {"fixed": Fixed(4), "curious": Curious(), **{name: long for name, (long, _) in POLICIES.items()}}


# How rows are sampled is no policy's business: the curious one, which reads all that there is, meets every way.
@chosen(
    {"policy": LENGTHS_OF_ALL, "sampling, rule, temperature": WAYS, "batch_size": (1, 4)},
    lambda policy, way, batch: {policy, (way, batch), policy == "curious" and way},
)
def test_every_policy_is_asked_alike_both_ways(policy, sampling, rule, temperature, batch_size):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        DRAFT,
        lambda one, length: SmallTransformer(one, length=length, temperature=temperature),
        *(sampling, batch_size, rule),
        policy=policy,
    )
    if sampling is not MIXED or temperature is not None:
        assert asked_whole < asked / 2


# Here it is the cache that differs. The curious one has rows that draft nothing beside others, whose pending token is
# not fed.
@chosen(
    {"policy": LENGTHS_OF_ALL, "sampling, rule, temperature": WAYS, "batch_size": (1, 4)},
    lambda policy, way, batch: {policy, way, policy == "curious" and (way in ("greedy", "sampled"), batch)},
)
def test_a_view_drafts_alike_both_ways_on_the_oracles_cache(policy, sampling, rule, temperature, batch_size):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        VIEW,
        lambda view, length: Quantized(ORACLE, view, length=length, temperature=temperature),
        *(sampling, batch_size, rule),
        policy=policy,
    )
    assert asked > 0
    if sampling is not MIXED or temperature is not None:
        assert asked_whole == 0


@pytest.mark.parametrize("failure", [ZeroDivisionError("told too much"), KeyboardInterrupt()], ids=repr)
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
def test_what_a_policy_raises_ends_the_chain_and_reaches_the_caller(sampling, failure, capsys):
    for wrap in (PassByPass, Counted):
        policy = Curious(failure=failure)
        with pytest.raises(type(failure)) as caught:
            measured(wrap(DRAFT), sampling, 4, length=policy)
        assert caught.value is failure
        assert len(policy.told[-1][2]) == 2, "nothing was asked after that"
    assert capsys.readouterr().err == "", "nobody else was told"
    found = [measured(wrap(DRAFT), sampling, 4, num_draft_tokens=2) for wrap in (PassByPass, Counted)]
    assert found[0] == found[1], "nothing is left of it"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
def test_an_interrupt_before_the_policy_is_asked_ends_the_chain_too(sampling, monkeypatch):
    def interrupted(*_: int) -> None:
        calls.append(1)
        raise KeyboardInterrupt

    make, calls = bindings.Ask, list[int]()
    monkeypatch.setattr(bindings, "Ask", lambda _: make(interrupted))
    with pytest.raises(KeyboardInterrupt):
        measured(Counted(DRAFT), sampling, 4, length=Curious())
    assert len(calls) == 1
    monkeypatch.undo()
    found = [measured(wrap(DRAFT), sampling, 4, num_draft_tokens=2) for wrap in (PassByPass, Counted)]
    assert found[0] == found[1], "nothing is left of it"


@dataclass
class Ending:
    """A watch that ends each row at a depth of its own, before a draw or after one, and counts."""

    limits: IntArray
    ends: IntArray
    reads_entropy: bool
    reads_confidence: bool
    depths: list[int] = field(default_factory=list)

    def before(self, depth: int, entropy: FloatArray) -> None:
        self.depths.append(depth)
        self.limits = np.where(self.ends <= depth, np.minimum(self.limits, depth), 99)

    def after(self, depth: int, confidence: FloatArray) -> None:
        assert confidence.shape == (len(self.limits), depth + 1)
        self.before(depth + 1, confidence[:, depth])


@pytest.mark.parametrize("before_a_draw", [True, False])
def test_chains_stop_where_a_watch_ends_them_and_limits_never_rise(before_a_draw):
    rows, limits, ends = np.arange(4), np.array([6, 6, 0, 2]), np.array([3, 1, 5, 5])
    draft = model(2)
    cache = draft.new_cache(4, 32)
    watch = Ending(limits, ends, before_a_draw, not before_a_draw)
    call = torch.tensor([[1, 2]] * 4), torch.tensor([2, 1, 0, 2])
    ids, peaks, _ = as_tensors(draft.follow_ids, *call, cache, rows, limits, watch)
    whole, high, _ = as_tensors(draft.follow_ids, *call, draft.new_cache(4, 32), rows, limits)
    drafted = np.minimum(limits, ends)
    assert ids.shape == (4, 3)
    is_drafted = torch.from_numpy(np.arange(3) < drafted[:, None])
    assert torch.equal(ids, whole[:, :3] * is_drafted)
    assert torch.equal(peaks[:, :3][is_drafted], high[:, :3][is_drafted])
    assert watch.depths == ([0, 1, 2, 3] if before_a_draw else [1, 2, 3])
    # A row that was ended before a draw had read all of its ids.
    is_read = before_a_draw & (ends <= drafted) & (drafted > 0)
    assert np.array_equal(cache.lengths, call[1].numpy() + np.maximum(drafted - 1, 0) + is_read)


@pytest.mark.parametrize(("batch_size", "rule"), [(1, "standard"), (4, "coupled")])
def test_a_staged_draft_samples_its_inner_chains_alike_both_ways(batch_size, rule):
    _, asked, asked_whole = both_ways(
        run_of_chains,
        DRAFT,
        lambda one, _: Staged(model(3), SmallTransformer(one, num_draft_tokens=2), 5),
        *(MANY, batch_size, rule),
    )
    assert asked_whole < asked / 2


def test_laws_of_torch_are_sampled_pass_by_pass():
    with laws_by("torch"):
        _, asked, asked_whole = both_ways(
            run_of_chains, DRAFT, lambda one, _: SmallTransformer(one), WARM, 4, "standard"
        )
    assert asked_whole == asked


def test_randomness_that_keeps_every_call_is_asked_for_each():
    keys, at = seed_keys([1]), np.array([4])
    assert all(recorded(inner, 1).chain_keys("draft") is None for inner in (Keyed.at(keys, at), Coupled(keys, at)))


LENGTHS = {
    "fixed": Fixed(3),
    "threshold": Threshold(threshold=0.01, max_draft_tokens=3),
    "entropy": Entropy(threshold=0.0, max_draft_tokens=3),
    "curious": Curious(max_depth=3),
}
every_length = pytest.mark.parametrize("length", LENGTHS.values(), ids=LENGTHS)


@every_length
@pytest.mark.parametrize("wrap", [PassByPass, Counted])
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
def test_a_draft_model_without_meaning_is_named_both_ways(sampling, wrap, length):
    plain = tiny_unpacked(VOCAB, torch.float32, 2)
    with torch.no_grad():
        plain.model.layers[1].mlp.down_proj.weight[0, 0] = float("nan")
    source = SmallTransformer(wrap(NativeTransformer(plain)), length=length)
    with pytest.raises(
        FloatingPointError, match=r"request 0: the model of 'small_transformer' gave logits .* position 1;"
    ):
        SpeculativeDecoder(ORACLE, source).generate(PROMPTS, 8, sampling)


@every_length
@pytest.mark.parametrize("temperature", [None, 0.0])
def test_the_depth_at_which_a_model_loses_its_meaning_is_told_both_ways(temperature, length):
    plain = tiny_unpacked(VOCAB, torch.float32, 2)
    with torch.no_grad():
        plain.model.embed_tokens.weight[7, 0] = float("nan")
    shaky, messages = NativeTransformer(plain), []
    for wrap in (PassByPass, Counted):
        with pytest.raises(FloatingPointError, match=r"position \d") as caught:
            SpeculativeDecoder(ORACLE, SmallTransformer(wrap(shaky), length=length, temperature=temperature)).generate(
                [[1, 2], [3]], 60, SamplingParams(temperature=3.0), seed=1
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("context", [20, 32])  # 32: no slot beyond the context hides a row that takes too many
@pytest.mark.parametrize("sampling", [SamplingParams(), WARM], ids=["greedy", "sampled"])
def test_the_draft_models_own_context_ends_chains_both_ways(sampling, context):
    short = model(2, max_context=context)
    for batch_size in (1, 5):
        found = [measured(wrap(short), sampling, batch_size, num_draft_tokens=5) for wrap in (PassByPass, Counted)]
        assert found[0] == found[1]
        assert np.min(found[0][-1]["num_drafted"]) == 0
