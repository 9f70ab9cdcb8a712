"""The rule that is named is the rule that runs: a declared judge is compared with it, and who judged is told."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles.tabular import TabularLM
from specdec import Kary, Laws, NativeJudge, Rule, SamplingParams, SpeculativeDecoder, Verdict
from specdec.contracts import Draft
from specdec.laws import as_laws
from specdec.verify import RULES, MultiDraft, SampleAndMatch, Standard, chain_verdicts, multi_draft, sample_and_match
from specdec.verify.native_judge import JudgeDiffers, confirm_judge
from tests.support.backends import needed_kernels
from tests.support.pairwise import pairwise

ORACLE, MODEL = TabularLM.random(6, 2, seed=0), TabularLM.random(6, 1, seed=1)
SOURCES = {
    "lookup": PromptLookup(3),
    "chain": SmallTransformer(MODEL, 3),
    "greedy chain": SmallTransformer(MODEL, 3, temperature=0),
    "tree": SmallTransformer(MODEL, tree=Kary(2, 2)),
    "greedy tree": SmallTransformer(MODEL, tree=Kary(2, 2), temperature=0),
}
JUDGED = [name for name, rule in RULES.items() if rule.native_judge is not None]


@pytest.fixture(autouse=True)
def _native() -> None:
    needed_kernels()


def run(source: str, rule: Any, temperature: float) -> Any:
    sampling = SamplingParams(temperature=temperature)
    return SpeculativeDecoder(ORACLE, SOURCES[source], rule).generate([[1, 2, 1, 2], [3]], 8, sampling, seed=5)


@pytest.mark.parametrize("name", JUDGED)
def test_our_rules_agree_with_the_judges_that_they_declare(name):
    assert confirm_judge(RULES[name], needed_kernels().walks) == RULES[name].native_judge is not None
    assert run("lookup", name, 0.0).judge == f"native: {name}"


def everything(self: Any, draft: Draft, target_laws: Any) -> Verdict:
    """Accept whatever was drafted."""
    return Verdict(Laws.points(draft.num_nodes), draft.width + 1, as_laws(target_laws).gather)


def nothing(self: Any, draft: Draft, target_laws: Any) -> Verdict:
    raise RuntimeError("asked")


@pairwise(
    {"source": (*SOURCES,), "rule": JUDGED, "temperature": (0.0, 0.8)},
    lambda source, rule, _: RULES[rule].trees or "tree" not in source,
)
def test_a_rule_that_is_edited_in_place_runs(source, rule, temperature, monkeypatch):
    monkeypatch.setattr(type(RULES[rule]), "__call__", nothing)
    with pytest.warns(JudgeDiffers, match="__call__ raises RuntimeError: asked"), pytest.raises(RuntimeError):
        run(source, rule, temperature)
    monkeypatch.setattr(type(RULES[rule]), "__call__", everything)
    with pytest.warns(JudgeDiffers, match="its law of the stop is another one"):
        result = run(source, rule, temperature)
    assert result.judge == rule
    assert result.stats.num_accepted == result.stats.num_drafted or "tree" in source


@pytest.mark.parametrize(
    ("rule", "place", "helper", "wrong"),
    [
        (
            Standard(),
            chain_verdicts,
            "_acceptance",
            lambda draft, _: torch.ones(draft.tokens.shape, dtype=torch.float64),
        ),
        (MultiDraft(), multi_draft, "match_ids", lambda draft, *_: draft.num_nodes),
        (SampleAndMatch(), sample_and_match, "_eligible", lambda draft: draft.is_verified & False),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_an_edited_helper_is_noticed_by_the_next_decoder(rule, place, helper, wrong, monkeypatch):
    assert confirm_judge(rule, needed_kernels().walks) is not None
    monkeypatch.setattr(place, helper, wrong)
    with pytest.warns(JudgeDiffers):
        assert confirm_judge(rule, needed_kernels().walks) is None


class Lenient(Standard):
    """Accept with ``share`` of what is left, too; 0 is exact."""

    name: ClassVar[str] = "lenient"
    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __init__(self, share: float) -> None:
        object.__setattr__(self, "share", share)

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        verdict = super().__call__(draft, target_laws)
        last = torch.nn.functional.one_hot(draft.num_nodes, draft.width + 1)
        mixed = (1 - self.share) * verdict.stop_probs + self.share * last
        return Verdict(Laws.from_probs(mixed), verdict.width, verdict._next)


def test_rules_of_one_class_are_compared_one_by_one():
    assert confirm_judge(Lenient(0.0), needed_kernels().walks) is NativeJudge.OFFERED
    for _ in range(2):
        with pytest.warns(JudgeDiffers):
            assert confirm_judge(Lenient(0.5), needed_kernels().walks) is None
    assert confirm_judge(Lenient(0.0), needed_kernels().walks) is NativeJudge.OFFERED


class OnChains(MultiDraft):
    """Wrong where nothing branches."""

    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        return (everything if draft.is_chain else MultiDraft.__call__)(self, draft, target_laws)


class OnBranches(MultiDraft):
    """Forget that ids were drawn without their elder siblings."""

    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        return super().__call__(replace(draft, without_replacement=None), target_laws)


class OfAllSources(MultiDraft):
    """Take ids of others' siblings out of the laws."""

    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        return super().__call__(replace(draft, source=None), target_laws)


class PastScouts(SampleAndMatch):
    """Enter scouts."""

    native_judge: ClassVar[NativeJudge | None] = NativeJudge.MATCHED

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        return super().__call__(replace(draft, is_scout=None), target_laws)


class WrongNext(Standard):
    """Draw what follows from the target's law, residual or not."""

    native_judge: ClassVar[NativeJudge | None] = NativeJudge.OFFERED

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        verdict = super().__call__(draft, target_laws)
        return Verdict(verdict.stops, verdict.width, as_laws(target_laws).gather)


@pytest.mark.parametrize("kind", [OnChains, OnBranches, OfAllSources, PastScouts, WrongNext])
def test_a_judge_that_is_wrongly_declared_is_not_used(kind):
    with pytest.warns(JudgeDiffers):
        assert confirm_judge(kind(), needed_kernels().walks) is None


def test_a_call_of_its_own_loses_the_judge_and_nothing_else_does():
    class Own(MultiDraft):
        def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
            return super().__call__(draft, target_laws)

    class Named(MultiDraft):
        name: ClassVar[str] = "named"

    assert Own.native_judge is None
    assert run("tree", Own(), 0.8).judge == "multi_draft"
    assert run("tree", Named(), 0.8).judge == "native: named"
    assert run("tree", Own(), 0.8).tokens == run("tree", Named(), 0.8).tokens


@dataclass(frozen=True)
class Declared(Rule):
    """A rule that declares what is no judge."""

    native_judge: Any = "offered"
    name: ClassVar[str] = "declared"
    lossless: ClassVar[bool] = True

    def __call__(self, draft: Draft, target_laws: Any) -> Verdict:
        raise AssertionError


@pytest.mark.parametrize("wrong", ["offered", 1, True])
def test_what_is_no_judge_is_refused(wrong):
    with pytest.raises(ValueError, match=r"native_judge is .*; give a member of specdec.NativeJudge, or None"):
        SpeculativeDecoder(ORACLE, None, Declared(wrong))


def test_the_rule_of_a_decoder_stays_what_it_was_made_with():
    decoder: Any = SpeculativeDecoder(ORACLE)
    with pytest.raises(AttributeError, match="rule"):
        decoder.rule = RULES["multi_draft"]
