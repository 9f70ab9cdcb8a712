"""Chains drafted in one native call are those drafted pass by pass: tokens, laws, confidences, records and reports."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch

from drafts import Quantized, SmallTransformer, Staged
from oracles.native import NativeTransformer, bindings
from specdec import Entropy, Fixed, Heuristic, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import IntArray
from specdec.exactness.findings import Recorder
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.support.backends import laws_by, needed_native
from tests.support.models import tiny_unpacked
from tests.support.native_drafts import (
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
    model,
    run_of_chains,
)
from tests.support.pairwise import chosen, diagonal, pairwise
from tests.support.registry import POLICIES
from tests.support.whole_drafts import as_tensors

needed_native()


def measured(draft, sampling, batch_size, rule="coupled", **options):
    return run_of_chains(SmallTransformer(draft, **options), sampling, batch_size, rule)


@pytest.mark.parametrize("batch_size", [1, 4])
@pytest.mark.parametrize(
    ("sampling", "options", "follows"),
    [
        (SamplingParams(), {"num_draft_tokens": 4}, True),
        (SamplingParams(temperature=0.8, top_p=0.9), {"num_draft_tokens": 3, "temperature": 0.0}, True),
        (SamplingParams(), {"length": Heuristic(max_draft_tokens=6)}, True),
        (SamplingParams(), {"length": Threshold(threshold=0.3, max_draft_tokens=5)}, True),
        (SamplingParams(repetition_penalty=1.3), {"num_draft_tokens": 4}, True),
        (MIXED, {"num_draft_tokens": 4}, None),  # a batch follows where its rows are all greedy, or all sampled
    ],
    ids=["greedy", "greedy drafts", "heuristic", "threshold", "penalty", "mixed"],
)
def test_both_ways_draft_alike(sampling, options, follows, batch_size):
    stepwise, native = PassByPass(DRAFT), Counted(DRAFT)
    assert measured(native, sampling, batch_size, **options) == measured(stepwise, sampling, batch_size, **options)
    if follows is not None:
        assert (native.num_passes < stepwise.num_passes / 2) == follows


@pairwise(
    {
        "sampling, options": {
            "sampled": (WARM, {"num_draft_tokens": 4}),
            "many": (MANY, {"num_draft_tokens": 4}),
            "heuristic": (MANY, {"length": Heuristic(max_draft_tokens=6)}),
            "own heat": (MIXED, {"num_draft_tokens": 4, "temperature": 1.2}),
            "threshold": (WARM, {"length": Threshold(threshold=0.3, max_draft_tokens=5)}),
            "entropy": (WARM, {"length": Entropy(max_draft_tokens=5)}),
        },
        "batch_size": (1, 4),
        "rule": ("standard", "coupled"),
    }
)
def test_both_ways_sample_alike(sampling, options, batch_size, rule):
    stepwise, native = PassByPass(DRAFT), Counted(DRAFT)
    found = [measured(model, sampling, batch_size, rule, **options) for model in (native, stepwise)]
    assert found[0] == found[1]
    assert native.num_passes < stepwise.num_passes / 2


WAYS = {
    "greedy": (SamplingParams(), "standard", None),
    "greedy drafts": (WARM, "standard", 0.0),
    "sampled": (MANY, "standard", None),
    "coupled": (MANY, "coupled", None),
    "mixed": (MIXED, "coupled", None),
}
LONG_POLICIES = {name: long for name, (long, _) in POLICIES.items()}


# How numbers of draws are named, which is what "coupled" and "mixed" add, is no policy's business.
@chosen(
    {"policy": LONG_POLICIES, "sampling, rule, temperature": WAYS, "batch_size": (1, 4)},
    lambda policy, way, batch: {
        (way, batch), (policy, batch), way if way in ("coupled", "mixed") else (policy, way),
    },
)  # fmt: skip
def test_every_policy_is_asked_alike_both_ways(policy, sampling, rule, temperature, batch_size):
    stepwise, native = PassByPass(DRAFT), Counted(DRAFT)
    options = {"length": policy, "temperature": temperature}
    found = [measured(model, sampling, batch_size, rule, **options) for model in (native, stepwise)]
    assert found[0] == found[1]
    if sampling is not MIXED:
        assert native.num_passes < stepwise.num_passes / 2


# Policies meet all ways above: here it is the cache that differs.
@diagonal({"policy": {"fixed": Fixed(4)} | LONG_POLICIES, "sampling, rule, temperature": WAYS, "batch_size": (1, 4)})
def test_a_view_drafts_alike_both_ways_on_the_oracles_cache(policy, sampling, rule, temperature, batch_size):
    stepwise, native = PassByPass(VIEW), Counted(VIEW)
    found = [
        run_of_chains(Quantized(ORACLE, view, length=policy, temperature=temperature), sampling, batch_size, rule)
        for view in (native, stepwise)
    ]
    assert found[0] == found[1]
    assert stepwise.num_passes > 0
    if sampling is not MIXED:
        assert native.num_passes == 0


@pytest.mark.parametrize("sampling", [SamplingParams(), MANY], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch_size", [1, 4, 9])
def test_a_policy_is_told_the_same_both_ways(sampling, batch_size):
    policies = Curious(), Curious()
    found = [
        measured(wrap(DRAFT), sampling, batch_size, length=policy)
        for wrap, policy in zip((PassByPass, Counted), policies, strict=True)
    ]
    assert found[0] == found[1]
    assert policies[0].told == policies[1].told
    drafted = found[0][-1]["num_drafted"]
    assert min(drafted) == 0
    assert max(drafted) > 3


@pytest.mark.parametrize("sampling", [SamplingParams(), MANY], ids=["greedy", "sampled"])
@pytest.mark.parametrize("batch_size", [4, 9])
def test_a_policy_is_told_the_same_of_a_view_both_ways(sampling, batch_size):
    """Some rows may draft nothing while others do: their pending token is not fed."""
    policies = Curious(), Curious()
    found = [
        run_of_chains(Quantized(ORACLE, wrap(VIEW), length=policy), sampling, batch_size)
        for wrap, policy in zip((PassByPass, Counted), policies, strict=True)
    ]
    assert found[0] == found[1]
    assert policies[0].told == policies[1].told
    drafted = found[0][-1]["num_drafted"]
    assert min(drafted) == 0
    assert max(drafted) > 3


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

    def before(self, depth: int, entropy: torch.Tensor) -> None:
        self.depths.append(depth)
        self.limits = np.where(self.ends <= depth, np.minimum(self.limits, depth), 99)

    def after(self, depth: int, confidence: torch.Tensor) -> None:
        assert confidence.shape == (len(self.limits), depth + 1)
        self.before(depth + 1, confidence[:, depth])


@pytest.mark.parametrize("before_a_draw", [True, False])
def test_chains_stop_where_a_watch_ends_them_and_limits_never_rise(before_a_draw):
    rows, limits, ends = np.arange(4), np.array([6, 6, 0, 2]), np.array([3, 1, 5, 5])
    draft = model(2)
    cache = draft.new_cache(4, 32)
    watch = Ending(limits, ends, before_a_draw, not before_a_draw)
    call = torch.tensor([[1, 2]] * 4), torch.tensor([2, 1, 0, 2])
    ids, peaks = as_tensors(draft.greedy_chains, *call, cache, rows, limits, watch)
    whole, high = as_tensors(draft.greedy_chains, *call, draft.new_cache(4, 32), rows, limits)
    drafted = np.minimum(limits, ends)
    assert ids.shape == (4, 3)
    is_drafted = torch.from_numpy(np.arange(3) < drafted[:, None])
    assert torch.equal(ids, whole[:, :3] * is_drafted)
    assert torch.equal(peaks[:, :3][is_drafted], high[:, :3][is_drafted])
    assert watch.depths == ([0, 1, 2, 3] if before_a_draw else [1, 2, 3])
    # A row that was ended before a draw had read all of its ids.
    is_read = before_a_draw & (ends <= drafted) & (drafted > 0)
    assert np.array_equal(cache.lengths, call[1].numpy() + np.maximum(drafted - 1, 0) + is_read)


@pytest.mark.parametrize("rule", ["standard", "coupled"])
@pytest.mark.parametrize("batch_size", [1, 4])
def test_a_staged_draft_samples_its_inner_chains_alike_both_ways(batch_size, rule):
    models = PassByPass(DRAFT), Counted(DRAFT)
    sources = [Staged(model(3), SmallTransformer(inner, num_draft_tokens=2), 5) for inner in models]
    found = [run_of_chains(source, MANY, batch_size, rule) for source in sources]
    assert found[0] == found[1]
    assert models[1].num_passes < models[0].num_passes / 2


def test_laws_of_torch_are_sampled_pass_by_pass():
    stepwise, native = PassByPass(DRAFT), Counted(DRAFT)
    with laws_by("torch"):
        assert measured(native, WARM, 4, "standard") == measured(stepwise, WARM, 4, "standard")
    assert native.num_passes == stepwise.num_passes


def test_randomness_that_keeps_every_call_is_asked_for_each():
    keys, at = seed_keys([1]), np.array([4])
    assert all(Recorder(inner).chain_keys("draft") is None for inner in (Keyed.at(keys, at), Coupled(keys, at)))


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
