"""``check_lossless`` reaches every token that a step can draft, or says which ones it cannot see."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
from torch import Tensor

from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, Verdict
from specdec.exactness import check_lossless, oracle_law
from specdec.laws import Laws
from specdec.verify import Standard
from tests.reference.tables import random_table
from tests.support.drafting.sources import Chains

ORACLE, TABLE = TabularLM(random_table(2, 2, 41)), random_table(2, 2, 42)
PROMPT = [1, 0]


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
    check_lossless(CASES[case], PROMPT, 3, depth=2)


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
