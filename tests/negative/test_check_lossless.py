"""``check_lossless`` sees what a careless user gets wrong, or says what it cannot see."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from drafts import SmallTransformer
from oracles import TabularLM
from specdec import RULES, NativeJudge, Rule, SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.contracts import BoolArray, Budget, Context, Draft, Randomness, Verdict
from specdec.exactness import check_lossless, oracle_law, output_law, rule_distance
from specdec.laws import Laws, as_laws
from specdec.verify import Standard
from specdec.verify.chain_verdicts import standard
from tests.reference.tables import law_after, random_table
from tests.support.drafting.sources import Chains

ORACLE, TABLE = TabularLM(random_table(2, 2, 41)), random_table(2, 2, 42)
PROMPT, T1 = [1, 0], SamplingParams(temperature=1.0)


class LateSource(Chains):
    """Draws its third token from a colder law than it declares."""

    def drawn(self, laws, depth, randomness):
        return super().drawn(laws**3 / (laws**3).sum(-1, keepdim=True) if depth == 2 else laws, depth, randomness)


@dataclass(frozen=True)
class LateRule(Standard):
    """Let the third token of a draft stand, whatever the target says."""

    name: ClassVar[str] = "late"

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        verdict = super().__call__(draft, target_laws)
        if draft.width < 3:
            return verdict
        stops = verdict.stop_probs
        late = draft.num_nodes >= 3
        stops[late, 3] += stops[late, 2]
        stops[late, 2] = 0
        return replace(verdict, stops=Laws.from_probs(stops))


CASES = {
    "source": SpeculativeDecoder(ORACLE, LateSource(TABLE, 3)),
    "rule": SpeculativeDecoder(ORACLE, Chains(TABLE, 3), LateRule()),
}


@pytest.mark.parametrize("case", CASES)
def test_a_fault_from_the_third_drafted_token_on_is_seen(case: str) -> None:
    with pytest.raises(AssertionError, match="the output law is off by a total variation"):
        check_lossless(CASES[case], PROMPT)


@pytest.mark.parametrize("case", CASES)
def test_a_check_that_cannot_reach_it_says_so_or_is_told_that_less_is_enough(case: str) -> None:
    name = CASES[case].draft.name
    refused = (
        rf"max_new_tokens=3 lets a step draft 2 tokens, draft '{name}' offers 3, and a fault from token 3 of a draft "
        r"on would not be seen: give max_new_tokens=4, .* or depth=2 if that is enough"
    )
    for way in ({}, {"effect": 0.1}):
        with pytest.raises(ValueError, match=refused):
            check_lossless(CASES[case], PROMPT, 3, **way)
    check_lossless(CASES[case], PROMPT, 3, T1, depth=2)


def test_an_oracle_that_is_too_large_to_enumerate_is_refused_with_the_way_out() -> None:
    oracle = TabularLM.random(vocab_size=600, order=1, seed=0)
    with pytest.raises(ValueError, match=r"360,000 beginnings over 600 ids are too many .* check_lossless with eff"):
        oracle_law(oracle, [1], 3, SamplingParams(temperature=1.0))


def test_a_draft_without_a_fault_passes_at_its_own_depth_and_plain_decoding_too() -> None:
    check_lossless(SpeculativeDecoder(ORACLE, Chains(TABLE, 3)), PROMPT)
    check_lossless(SpeculativeDecoder(ORACLE), PROMPT)


def test_no_rows_are_refused_by_samples_too() -> None:
    decoder = SpeculativeDecoder(ORACLE, Chains(TABLE, 3))
    with pytest.raises(ValueError, match="batch_size must be an integer, 1 or more, not 0"):
        check_lossless(decoder, PROMPT, effect=0.5, batch_size=0)


def test_a_check_of_no_seeds_is_refused() -> None:
    with pytest.raises(ValueError, match="num_seeds must be an integer, 1 or more, not 0"):
        check_lossless(SpeculativeDecoder(ORACLE, Chains(TABLE, 3), "coupled"), PROMPT, num_seeds=0)


@pytest.mark.parametrize("rule", ["standard", "coupled"])
def test_a_depth_below_0_is_refused(rule: str) -> None:
    with pytest.raises(ValueError, match="depth=-1 compares nothing: give 0 or more, or None"):
        check_lossless(SpeculativeDecoder(ORACLE, Chains(TABLE, 3), rule), PROMPT, depth=-1)


# ---- Faults that temperature 1 alone, in one batch of equal rows, does not show ----

THREE = TabularLM.random(3, 2, 0)
MODEL = SmallTransformer(TabularLM.random(3, 2, 1), 2)


@dataclass(frozen=True)
class Judging(Rule):
    """Judge as ``standard`` does, but for one change."""

    change: Callable[[Draft, Laws], Verdict]
    name: str = "judging"
    lossless: bool = True
    native_judge: NativeJudge | None = None

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        return self.change(draft, as_laws(target_laws))


def takes_points_for_tables(draft: Draft, target: Laws) -> Verdict:
    return standard(draft, target if target.all_points else Laws.from_probs(target.table[target.index]))


def lets_0_pass_if_greedy(draft: Draft, target: Laws) -> Verdict:
    if not target.all_points:
        return standard(draft, target)
    fits = ((draft.tokens == target.point[:, : draft.width]) | (draft.tokens == 0)) & draft.is_verified
    return Verdict(Laws.points(fits.long().cumprod(1).sum(1)), draft.width + 1, target.gather)


def accepted(draft: Draft, target: Laws, ratio: Callable[[Tensor, Tensor], Tensor]) -> Verdict:
    """Return the verdict of ``standard`` with another probability of accepting."""
    verdict = standard(draft, target)
    if target.all_points or draft.laws is None:
        return verdict
    p, q = target[:, : draft.width].probs_of(draft.tokens), draft.laws.probs_of(draft.tokens)
    stands = torch.where(draft.is_verified, ratio(p, q).double(), 0.0)
    reached = torch.nn.functional.pad(stands.cumprod(1), (1, 0), value=1.0)
    stops = reached * (1 - torch.nn.functional.pad(stands, (0, 1)))
    return Verdict(Laws.from_probs(stops), verdict.width, verdict.next_law)


def lets_zeros_pass(draft: Draft, target: Laws) -> Verdict:
    return accepted(draft, target, lambda p, q: torch.where(p > 0, (p / q).clamp(max=1), 1.0))


def divides_in_float32(draft: Draft, target: Laws) -> Verdict:
    return accepted(draft, target, lambda p, q: (p.float() / q.float()).clamp(max=1))


def keeps_all_if_alone(draft: Draft, target: Laws) -> Verdict:
    verdict = standard(draft, target)
    is_loose = len(draft.tokens) == 1 and not target.all_points
    return Verdict(Laws.points(draft.num_nodes), verdict.width, verdict.next_law) if is_loose else verdict


def keeps_all_if_alone_and_greedy(draft: Draft, target: Laws) -> Verdict:
    is_loose = len(draft.tokens) == 1 and target.all_points
    return (
        Verdict(Laws.points(draft.num_nodes), draft.width + 1, target.gather) if is_loose else standard(draft, target)
    )


def draws_from_the_50_likeliest(draft: Draft, target: Laws) -> Verdict:
    verdict = standard(draft, target)

    def next_law(stop: Tensor) -> Laws:
        law = verdict.next_law(stop)
        if law.all_points or law.table.shape[1] <= 50:
            return law
        kept = law.dense().topk(50)
        probs = torch.zeros_like(law.dense()).scatter(1, kept.indices, kept.values)
        return Laws.from_probs(probs / probs.sum(1, keepdim=True))

    return Verdict(verdict.stops, verdict.width, next_law)


@dataclass(frozen=True)
class DeclaresAtOne(Chains):
    """Draws a token at the request's temperature, and declares its law at temperature 1."""

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        batch, has_room = len(budget.max_depth), torch.from_numpy(budget.max_depth > 0)
        if not has_room.any():
            return Draft.empty(batch, torch.device("cpu"))
        paths = [tuple(row[:n]) for row, n in zip(context.ids.tolist(), context.num_committed, strict=True)]
        logits = torch.from_numpy(np.log(np.stack([law_after(self.table, path) for path in paths]))).unsqueeze(1)
        known = logits, Draft.empty(batch, torch.device("cpu")), torch.zeros(1, dtype=torch.int64)
        drawn = randomness.choose(context.warping.laws(*known)[:, 0].with_points(~has_room), 0, 0, "draft")
        declared = context.warping.laws(*known, temperature=1.0).with_points(~has_room.unsqueeze(1))
        return Draft(drawn.unsqueeze(1), has_room.long(), laws=declared)


@dataclass(frozen=True)
class Crossed:
    """Verify a row if the next one drafted id 0, in steps of so many rows or more."""

    least: int
    lossless: ClassVar[bool] = True

    def take(self, draft: Draft) -> BoolArray:
        is_real: BoolArray = np.arange(draft.width) < draft.num_nodes.numpy()[:, None]
        if len(is_real) < self.least or not draft.width:
            return is_real
        return is_real & (np.roll(draft.tokens.numpy()[:, :1], -1, 0) == 0)


@dataclass(frozen=True)
class ByChance(Chains):
    """Draws 0, 1 or 2 tokens, by a generator of its own."""

    chance: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        lengths = np.minimum(budget.max_depth, self.chance.integers(0, 3, len(budget.max_depth)))
        return super().draft(context, replace(budget, max_depth=lengths), randomness)


def judging(change: Callable[[Draft, Laws], Verdict], judge: NativeJudge | None = None) -> SpeculativeDecoder:
    return SpeculativeDecoder(THREE, MODEL, Judging(change, native_judge=judge))


def budgeted(budget: SharedBudget | Crossed) -> SpeculativeDecoder:
    two = TabularLM.random(2, 2, 1)
    return SpeculativeDecoder(two, SmallTransformer(TabularLM.random(2, 2, 2), 1), budget=budget)


# What makes the decoder, and what is said of it.
UNSEEN_AT_ONE = {
    "greedy rows beside sampled ones": (lambda: judging(takes_points_for_tables), "output law .*, temperature=0.0\n"),
    "greedy rows": (lambda: judging(lets_0_pass_if_greedy), "greedy|temperature=0.0"),
    "what the target excludes": (lambda: judging(lets_zeros_pass), "output law .*, temperature=0.8, top_p=0.9"),
    "a row alone": (lambda: judging(keeps_all_if_alone), "at one position .* where a request is alone in its batch"),
    "a greedy row alone": (
        lambda: judging(keeps_all_if_alone_and_greedy),
        "3 of 3 greedy requests, each alone, differ",
    ),
    "many ids": (lambda: judging(draws_from_the_50_likeliest), "at one position of many ids where the token is drawn"),
    "many ids, by __call__ alone": (
        lambda: judging(draws_from_the_50_likeliest, NativeJudge.OFFERED),
        "at one position of many ids where the token is drawn",
    ),
    "a law at another temperature": (
        lambda: SpeculativeDecoder(THREE, DeclaresAtOne(random_table(3, 2, 42), 1)),
        "output law .*, temperature=0.8, top_p=0.9",
    ),
}


@pytest.mark.parametrize("name", UNSEEN_AT_ONE)
def test_what_temperature_1_does_not_show_is_seen_by_default(name: str) -> None:
    make, said = UNSEEN_AT_ONE[name]
    check_lossless(make(), PROMPT, sampling=T1, mates=[[0], [2, 2, 1]])
    with pytest.raises(AssertionError, match=said):
        check_lossless(make(), PROMPT)


@pytest.mark.parametrize(("least", "mates"), [(2, [[1]]), (3, [])])
def test_a_budget_whose_rows_decide_about_each_other_is_seen(least: int, mates: list[list[int]]) -> None:
    made = budgeted(Crossed(least))
    law = output_law(made, [0, 1], 2, T1, mates=[[1], [0]])
    assert law == pytest.approx(oracle_law(made.oracle, [0, 1], 2, T1), abs=1e-12), "one row's law shows nothing"
    with pytest.raises(AssertionError, match=rf"joint law of {least} of {least} rows is off .*, budget Crossed, temp"):
        check_lossless(made, [0, 1], mates=mates)


def test_a_rule_that_has_a_table_of_its_own_vocabulary_passes() -> None:
    class OfTwo(Standard):
        def __call__(self, draft: Draft, target_laws: Laws) -> Verdict:
            assert bool((torch.ones(2)[draft.tokens] == 1).all())
            return super().__call__(draft, target_laws)

    check_lossless(SpeculativeDecoder(ORACLE, Chains(TABLE, 1), OfTwo()), [1, 0])


def test_a_sound_budget_passes() -> None:
    check_lossless(budgeted(SharedBudget(1)), [0, 1], mates=[[1]])


def test_a_run_that_does_not_repeat_is_not_called_biased() -> None:
    with pytest.raises(
        AssertionError, match=r"not reproducible: the same numbers gave .* in a second run, .* 'chains'"
    ):
        check_lossless(SpeculativeDecoder(ORACLE, ByChance(TABLE, 2)), PROMPT)


def test_float32_is_named_where_a_law_is_off_by_its_rounding() -> None:
    with pytest.raises(AssertionError, match="stops or laws that were made in float32 look like that"):
        check_lossless(judging(divides_in_float32), PROMPT)


def test_mates_have_as_many_samplings_as_they_are() -> None:
    with pytest.raises(ValueError, match="mates_sampling has 1 entries for 2 mates: give one for each"):
        output_law(SpeculativeDecoder(ORACLE), PROMPT, 2, mates=[[0], [1]], mates_sampling=[T1])


@pytest.mark.parametrize("name", RULES)
def test_a_lossless_rule_has_the_targets_law_at_one_position_in_every_form(name: str) -> None:
    found = rule_distance(RULES[name])
    assert [*found] == ["drawn", "zeros", "chosen", "greedy", "mixed", "alone"]
    assert (max(found.values()) < 1e-12) == RULES[name].lossless
