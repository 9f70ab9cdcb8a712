"""Kernels: one object computes a decoder's laws, draws and verdicts; users choose it, and results name it."""

from typing import Any

import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles import TabularLM
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.exactness import oracle_law, output_law
from specdec.kernels import REFERENCE, NativeKernels, best_kernels, native, native_kernels, resolve_kernels
from specdec.native import NativeLaws, NativePenalties, NativeUnavailable, NativeWalks
from specdec.rules import RULES
from tests.support.backends import kernels_are, needed_kernels

ORACLE, MODEL = TabularLM.random(6, 2, seed=0), TabularLM.random(6, 1, seed=1)
SOURCES = {
    "plain": None,
    "lookup": PromptLookup(3),
    "chain": SmallTransformer(MODEL, 3),
    "tree": SmallTransformer(MODEL, tree=Kary(2, 2)),
}
SAMPLING = (SamplingParams(), SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, min_p=0.01))
COMPILED = (NativeLaws.laws, NativeLaws.keyed, NativeLaws.raced, NativeLaws.entropies)


def run(source: str, rule: str, kernels: str | None) -> Any:
    decoder = SpeculativeDecoder(ORACLE, SOURCES[source], rule, kernels=kernels)
    return decoder.generate([[1, 2, 1, 2], [3]], 8, list(SAMPLING), seed=5)


def rules_for(source: str) -> list[str]:
    return [name for name, rule in RULES.items() if rule.trees or source != "tree"]


@pytest.fixture
def _no_compiled_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def called(*_: Any) -> None:
        pytest.fail("compiled code was called")

    for owner, names in (
        (NativeLaws, [function.__name__ for function in COMPILED]),
        (NativePenalties, ["__call__"]),
        (NativeWalks, ["__call__", "law"]),
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


@pytest.mark.parametrize("source", SOURCES)
def test_both_give_the_same_tokens_of_float64_tables(source):
    needed_kernels()
    for rule in rules_for(source):
        ours, theirs = (run(source, rule, kernels) for kernels in ("native", "reference"))
        assert ours.tokens == theirs.tokens
        assert (ours.kernels, ours.judge) == ("native", f"native: {rule}")


@pytest.mark.parametrize("kernels", ["native", "reference"])
@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match"])
def test_the_law_is_the_oracles_by_both(rule, kernels):
    if kernels == "native":
        needed_kernels()
    sampling = SamplingParams(temperature=0.7, top_k=3)
    decoder = SpeculativeDecoder(ORACLE, SOURCES["tree"], rule, kernels=kernels)
    found, wanted = output_law(decoder, [1, 2], 2, sampling), oracle_law(ORACLE, [1, 2], 2, sampling)
    assert found.keys() == wanted.keys()
    assert max(abs(found[ids] - wanted[ids]) for ids in wanted) < 1e-12


def test_kernels_are_chosen_by_name():
    assert resolve_kernels("reference") is REFERENCE
    assert resolve_kernels(None) is best_kernels()
    with pytest.raises(ValueError, match=r"kernels must be 'native', 'reference' or None .*, not 'cuda'"):
        SpeculativeDecoder(ORACLE, kernels="cuda")
    with kernels_are(NativeUnavailable("no compiler")):
        assert resolve_kernels(None) is REFERENCE
        with pytest.raises(ValueError, match="had here: no compiler; use kernels='reference'"):
            SpeculativeDecoder(ORACLE, kernels="native")


def test_nobody_tries_twice_to_compile(monkeypatch):
    tries: list[int] = []

    def unavailable(*_: Any) -> None:
        tries.append(1)
        raise NativeUnavailable("no compiler")

    monkeypatch.setattr(native, "laws_library", unavailable)
    native._made_once.cache_clear()
    try:
        for _ in range(3):
            with pytest.raises(NativeUnavailable, match="no compiler"):
                native_kernels()
    finally:
        native._made_once.cache_clear()
    assert tries == [1]


def test_what_compiled_code_does_not_read_is_computed_by_torch():
    needed_kernels()
    logits = torch.randn(2, 5).bfloat16()
    assert torch.equal(NativeKernels().entropies(logits.softmax(-1)), REFERENCE.entropies(logits.softmax(-1)))
