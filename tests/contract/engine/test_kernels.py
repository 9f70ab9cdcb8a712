"""Kernels: one object computes a decoder's laws, draws and verdicts; users choose it, and results name it."""

import copy
import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import Cascade, Merged, PromptLookup, SmallTransformer, Staged
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec import Calibration, Entropy, Kary, SamplingParams, SpeculativeDecoder, Threshold, calibrate
from specdec.contracts import Draft, DraftSource, Needs, Offers, Oracle, Scores
from specdec.drafting import ChainSampler, MemorylessSession
from specdec.drafting.lengths import Fixed, LengthPolicy, chain_offers, open_length
from specdec.exactness import check_draft, output_law
from specdec.kernels import REFERENCE, NativeKernels, best_kernels, native, native_kernels, resolve_kernels
from specdec.kernels.compiled import NativeUnavailable, PackedDrafts, build
from specdec.sampling.randomness import Coupled, Keyed
from specdec.traces import record_chains, record_trees
from specdec.transfers import HOST
from specdec.verify import RULES
from tests.support.backends import kernels_are, needed_kernels, needed_native
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import pairwise

ORACLE, MODEL = TabularLM.random(6, 2, seed=0), TabularLM.random(6, 1, seed=1)
SOURCES = {
    "plain": None,
    "lookup": PromptLookup(3),
    "chain": SmallTransformer(MODEL, 3),
    "tree": SmallTransformer(MODEL, tree=Kary(2, 2)),
}
SAMPLING = (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, min_p=0.01))


def run(source: str, rule: str, kernels: str | None) -> Any:
    decoder = SpeculativeDecoder(ORACLE, SOURCES[source], rule, kernels=kernels)
    return decoder.generate([[1, 2, 1, 2], [3]], 8, list(SAMPLING), seed=5)


def rules_for(source: str) -> list[str]:
    return [name for name, rule in RULES.items() if rule.trees or source != "tree"]


@pytest.fixture
def _no_compiled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any, **__: Any) -> None:
        pytest.fail("compiled code was called")

    for owner, names in (
        (NativeKernels, ["laws", "penalise", "draw", "race", "softmax", "entropies"]),
        (PackedDrafts, ["__init__", "draw", "law"]),
    ):
        for name in names:
            monkeypatch.setattr(owner, name, called)


@pytest.mark.usefixtures("_no_compiled_call")
@pytest.mark.parametrize("source", SOURCES)
def test_the_reference_calls_no_compiled_code_and_its_rules_judge(source):
    for rule in rules_for(source):
        result = run(source, rule, "reference")
        assert (result.kernels, result.judge) == ("reference", rule)


@pytest.mark.usefixtures("_no_compiled_call")
@pytest.mark.parametrize("source", SOURCES)
def test_native_kernels_are_called_and_named(source):
    needed_kernels()
    with pytest.raises(pytest.fail.Exception, match="compiled code was called"):
        run(source, rules_for(source)[0], "native")


def test_kernels_are_chosen_by_name():
    assert resolve_kernels("reference", HOST) is REFERENCE
    assert resolve_kernels(None, HOST) is best_kernels()
    with pytest.raises(ValueError, match=r"kernels must be 'native', 'reference' or None .*, not 'cuda'"):
        SpeculativeDecoder(ORACLE, kernels="cuda")
    with kernels_are(NativeUnavailable("no compiler")):
        assert resolve_kernels(None, HOST) is REFERENCE
        with pytest.raises(ValueError, match="had here: no compiler; use kernels='reference'"):
            SpeculativeDecoder(ORACLE, kernels="native")


def test_native_kernels_are_refused_for_an_oracle_elsewhere():
    with pytest.raises(ValueError, match="computes on the CPU, and the oracle is on meta"):
        resolve_kernels("native", torch.device("meta"))


EVERYWHERE: dict[str, DraftSource] = {
    "lookup": PromptLookup(3),
    "chain": SmallTransformer(MODEL, 3),
    "tree": SmallTransformer(MODEL, tree=Kary(2, 2)),
    "threshold": SmallTransformer(MODEL, length=Threshold(Calibration.independent(0.7, 0.1), max_draft_tokens=3)),
    "entropy": SmallTransformer(MODEL, length=Entropy(max_draft_tokens=3)),
    "staged": Staged(MODEL, PromptLookup(2), num_draft_tokens=3),
    "merged": Merged([PromptLookup(2), SmallTransformer(MODEL, 2)]),
    "cascade": Cascade([PromptLookup(2), SmallTransformer(MODEL, 2)]),
}


@pytest.mark.parametrize("source", EVERYWHERE)
def test_nobody_computes_by_other_kernels_than_the_decoders(source, monkeypatch):
    asked: list[str] = []
    decoders = [
        SpeculativeDecoder(ORACLE, EVERYWHERE[source], rule, kernels="reference")
        for rule, one in RULES.items()
        if one.trees or not EVERYWHERE[source].offers.trees
    ]
    monkeypatch.setattr(native, "native_kernels", lambda: asked.append("native"))
    for decoder in decoders:
        ways = [SAMPLING[0], *[SAMPLING[1]] * 3]
        result = decoder.generate([[1, 2, 1, 2], [3], [2, 3, 2], [4]], 5, ways, seed=5, batch_size=3)
        assert result.drafter == decoder.draft.name
        if not decoder.rule.coupled and source in ("lookup", "chain", "staged"):
            output_law(decoder, [1, 2], 1, SamplingParams(temperature=0.7, top_k=2), mates=[[0], [1, 2, 0]])
    assert asked == []


@pytest.mark.parametrize("source", ["lookup", "chain", "tree", "threshold"])
def test_the_reference_lets_no_model_draft_by_itself(source):
    needed_native()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    model = tiny_transformer(6, torch.float32, 2, NativeTransformer)
    drafters = {"chain": SmallTransformer(model, 3), "tree": SmallTransformer(model, tree=Kary(2, 2))}
    draft = drafters.get(source, EVERYWHERE["lookup"])
    rule = "multi_draft" if source == "tree" else "standard"
    for sampling in (SamplingParams(), SamplingParams(temperature=0.8)):
        found = {
            kernels: SpeculativeDecoder(oracle, draft, rule, kernels=kernels).generate([[1, 2, 1]], 8, sampling).drafter
            for kernels in ("native", "reference")
        }
        own = f"native: {draft.name}" if source in drafters else draft.name
        assert found == {"native": own, "reference": draft.name}


class Noted:
    """Has a draw of its own."""

    def choose(self, *args: Any) -> Any:
        CALLS.append(args[3])
        return super().choose(*args)  # type: ignore[misc]


class Mixed(Noted, Keyed):
    """Draws by a mixin."""


class MixedRaces(Noted, Coupled):
    """Races by a mixin."""


CALLS: list[str] = []


@pytest.mark.parametrize(("streams", "rule"), [(Mixed.at, "standard"), (MixedRaces, "coupled")])
def test_a_draw_by_a_mixin_is_called(streams, rule):
    CALLS.clear()
    decoder = SpeculativeDecoder(ORACLE, PromptLookup(3), rule)
    decoder.randomness = streams if rule == "coupled" else lambda keys, at: Mixed(keys, (at,))
    result = decoder.generate([[1, 2, 1, 2]], 8, SAMPLING[1], seed=5)
    assert result.judge == rule
    assert set(CALLS) >= ({"target"} if rule == "coupled" else {"stop", "next"})


def test_streams_and_decoders_are_copied_and_pickled():
    needed_kernels()
    decoder = SpeculativeDecoder(ORACLE, PromptLookup(3))
    wanted = decoder.generate([[1, 2, 1, 2]], 8, SAMPLING[1], seed=5).tokens
    for copied in (copy.deepcopy(decoder), pickle.loads(pickle.dumps(decoder))):
        assert copied.kernels is native_kernels()
        assert copied.generate([[1, 2, 1, 2]], 8, SAMPLING[1], seed=5).tokens == wanted


def test_nobody_tries_twice_to_compile(monkeypatch):
    tries: list[int] = []

    def unavailable(*_: Any) -> None:
        tries.append(1)
        raise NativeUnavailable("no compiler")

    monkeypatch.setattr(build, "_library", unavailable)
    monkeypatch.setattr(build, "_outcomes", {})
    native_kernels.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(NativeUnavailable, match="no compiler"):
                native_kernels()
    finally:
        native_kernels.cache_clear()
    assert tries == [1]


def test_what_compiled_code_does_not_read_is_computed_by_torch():
    needed_kernels()
    logits = torch.randn(2, 5).bfloat16()
    assert torch.equal(NativeKernels().entropies(logits.softmax(-1)), REFERENCE.entropies(logits.softmax(-1)))


class Training(TabularLM):
    """A table whose logits carry gradients, as those of a model do that is being trained."""

    def score(self, *args: Any, **named: Any) -> Scores:
        scores = super().score(*args, **named)
        return scores if scores.logits is None else replace(scores, logits=scores.logits.requires_grad_())


@pairwise({
    "draft": {"plain": None, "chain": "chain", "tree": "tree", "staged": "staged"},
    "kernels": {"reference": "reference", "best": None}, "return_logprobs": (False, True),
})  # fmt: skip
def test_logits_that_carry_gradients_are_judged_as_others_are(draft, kernels, return_logprobs):
    def run_of(make: type[TabularLM]) -> Any:
        model = make(MODEL.table)
        source = {
            "chain": SmallTransformer(model, 3),
            "tree": SmallTransformer(model, tree=Kary(2, 2)),
            "staged": Staged(model, SmallTransformer(make(ORACLE.table), 2), 3),
        }.get(draft)
        decoder = SpeculativeDecoder(make(ORACLE.table), source, "multi_draft", kernels=kernels)
        return decoder.generate([[1, 2, 1, 2], [3]], 8, list(SAMPLING), seed=5, return_logprobs=return_logprobs)

    found, wanted = run_of(Training), run_of(TabularLM)
    assert (found.tokens, found.logprobs, found.judge) == (wanted.tokens, wanted.logprobs, wanted.judge)


class Own:
    """Draft by weights ``[V, V]``, as the guide says for a model of one's own."""

    name, needs, vocab_size = "own", Needs(), None

    def __init__(self, length: LengthPolicy, weights: torch.Tensor) -> None:
        self.length, self.weights = length, weights

    @property
    def offers(self) -> Offers:
        return chain_offers(self.length, laws=True)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> Any:
        sampler = ChainSampler(open_length(self.length, num_rows), None, oracle.device)
        weights = self.weights

        class Session(MemorylessSession):
            def draft(self, rows: Any, context: Any, limits: Any, randomness: Any) -> Draft:
                before = torch.from_numpy(context.ids[np.arange(len(rows)), context.num_committed - 1])
                return sampler(
                    rows,
                    context,
                    limits,
                    randomness,
                    lambda depth, tokens, live: weights[tokens[:, depth - 1] if depth else before].unsqueeze(1),
                )

        return Session(sampler.length, sampler.device)


@pytest.mark.parametrize("kernels", ["reference", None])
@pytest.mark.parametrize("length", [Fixed(3), Threshold(threshold=0.1), Entropy(0.1)])
def test_weights_that_are_trained_draft_as_others_do(length, kernels):
    def run_of(weights: torch.Tensor) -> Any:
        decoder = SpeculativeDecoder(ORACLE, Own(length, weights), kernels=kernels)
        return decoder.generate([[1, 2], [3]], 8, SamplingParams(temperature=1.0), seed=5)

    weights = MODEL.table.log()
    found, wanted = run_of(torch.nn.Parameter(weights)), run_of(weights)
    assert found.tokens == wanted.tokens
    assert found.stats.num_drafted == wanted.stats.num_drafted > 0


@pytest.mark.usefixtures("_no_compiled_call")
def test_what_makes_decoders_of_its_own_takes_kernels_too():
    sampling, prompts = SamplingParams(temperature=0.8, top_p=0.9), [[1, 2, 1, 2], [3]]
    how: Any = {"max_new_tokens": 4, "sampling": sampling, "kernels": "reference"}
    check_draft(SmallTransformer(MODEL, 2), ORACLE, prompts, **how)
    calibrate(ORACLE, lambda length: SmallTransformer(MODEL, length=length), prompts, num_draft_tokens=2, **how)
    record_chains(ORACLE, lambda length: SmallTransformer(MODEL, length=length), prompts, 2, **how)
    shape = Kary(2, 2)
    record_trees(ORACLE, lambda tree: SmallTransformer(MODEL, tree=tree), prompts, shape, **how)
