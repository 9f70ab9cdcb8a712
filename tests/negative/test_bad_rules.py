"""A rule whose verdict means nothing is named, with the request and the fault; source and oracle are not blamed."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch

from oracles.tabular import TabularLM
from specdec import Draft, Laws, SamplingParams, SpeculativeDecoder, Verdict
from specdec.contracts import VerificationRule
from specdec.verify import RULES
from tests.reference.tables import random_table
from tests.support.drafting.sources import RandomTrees
from tests.support.models.counting import POISONS, SIZE, Counting, Poisoned, guessing

SAMPLED = SamplingParams(temperature=1.0)
# Requests 0 and 1 have room for three and two drafted tokens in the first step.
PROMPTS, LENGTHS = [[0], [1, 2]], 4


@dataclass(frozen=True)
class Wrong:
    """Judge as ``inner`` does, then change the verdict."""

    change: Callable[[Draft, Verdict], Verdict]
    inner: VerificationRule = RULES["standard"]
    name: str = "wrong"
    lossless: bool = True
    coupled: bool = False
    native_judge: None = None

    @property
    def trees(self) -> bool:
        return self.inner.trees

    def __call__(self, draft: Draft, target_laws: Laws | torch.Tensor) -> Verdict:
        return self.change(draft, self.inner(draft, target_laws))


def stops(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Draft, Verdict], Verdict]:
    """Return a change of the stops' probabilities ``[B, N + 1]``."""
    return lambda draft, v: Verdict(Laws.from_probs(change(v.stop_probs.clone())), v.width, v.next_law)


def following(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Draft, Verdict], Verdict]:
    """Return a change of the next law's probabilities ``[B, V]``."""
    return lambda draft, v: Verdict(
        v.stops, v.width, lambda stop: Laws.from_probs(change(v.next_law(stop).dense(SIZE)))
    )


def put(row: int, column: int, value: float) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change of one number of one row."""

    def change(probs: torch.Tensor) -> torch.Tensor:
        probs[row, column] = value
        return probs

    return change


def only_at(node: int) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a change that puts all the mass of request 1 on one node."""

    def change(probs: torch.Tensor) -> torch.Tensor:
        probs[1] = torch.eye(probs.shape[1])[node]
        return probs

    return change


def points(node: int) -> Callable[[Draft, Verdict], Verdict]:
    """Return verdicts that are certain to stop at one node, whatever the draft."""
    return lambda draft, v: Verdict(Laws.points(torch.full_like(draft.num_nodes, node)), v.width, v.next_law)


NO_LAW = r"stop_probs hold NaN or a negative number, or do not sum to 1"
OUTSIDE = r"stop_probs give weight to padding, a scout or what is no node"
NO_NEXT = r"next_law holds NaN, or does not sum to 1"
FAULTS = {
    "nan": (stops(put(1, 0, math.nan)), 1, NO_LAW),
    "nan on padding": (stops(put(1, 3, math.nan)), 1, NO_LAW),
    "infinity": (stops(put(0, 1, math.inf)), 0, NO_LAW),
    "half a law": (stops(lambda probs: probs / 2), 0, NO_LAW),
    "nothing": (stops(lambda probs: probs * 0), 0, NO_LAW),
    "negative": (stops(lambda probs: torch.cat([probs[:, :1] - 1, probs[:, 1:] + 1 / 3], dim=1)), 0, NO_LAW),
    "weight on padding": (stops(only_at(3)), 1, OUTSIDE),
    "a little weight on padding": (stops(put(1, 3, 1e-9)), 1, OUTSIDE),
    "certain of padding": (points(3), 1, OUTSIDE),
    "certain of no node": (points(7), 0, OUTSIDE),
    "certain of a negative node": (points(-2), 0, OUTSIDE),
    "next law of nan": (following(put(0, 5, math.nan)), 0, NO_NEXT),
    "counts for a next law": (following(lambda probs: probs * 3), 0, NO_NEXT),
    "no next law": (following(lambda probs: probs * 0), 0, NO_NEXT),
}


@pytest.mark.parametrize("certainty", [1.0, 0.9])
@pytest.mark.parametrize("return_logprobs", [False, True])
@pytest.mark.parametrize(("change", "request_index", "fault"), FAULTS.values(), ids=FAULTS)
def test_a_broken_verdict_names_the_rule_and_the_request(change, request_index, fault, return_logprobs, certainty):
    decoder = SpeculativeDecoder(Counting(certainty=certainty, max_context=5), guessing(3), Wrong(change))
    with pytest.raises(ValueError, match=f"rule 'wrong', request {request_index}: its {fault}"):
        decoder.generate(PROMPTS, LENGTHS, SAMPLED, return_logprobs=return_logprobs)


@pytest.mark.parametrize("node", [3, 7])
def test_greedy_verdicts_are_checked_too(node):
    decoder = SpeculativeDecoder(Counting(max_context=5), guessing(3), Wrong(points(node)))
    with pytest.raises(ValueError, match=r"rule 'wrong', request \d: its stop_probs"):
        decoder.generate(PROMPTS, LENGTHS)


def scouts_of(draft: Draft) -> torch.Tensor:
    """Return ``[B, N + 1]`` float64: 1 for scouts."""
    real = torch.arange(draft.width) < draft.num_nodes[:, None]
    return torch.nn.functional.pad(draft.is_scout & real, (1, 0)).double()


def likes_scouts_a_little(draft: Draft, verdict: Verdict) -> Verdict:
    return Verdict(Laws.from_probs(verdict.stop_probs + 1e-9 * scouts_of(draft)), verdict.width, verdict.next_law)


def is_certain_of_scouts(draft: Draft, verdict: Verdict) -> Verdict:
    """Stop at a row's first scout, or where it is likeliest."""
    stop = (scouts_of(draft) * 2 + verdict.stop_probs).argmax(1)
    return Verdict(Laws.points(stop), verdict.width, verdict.next_law)


@pytest.mark.parametrize("change", [likes_scouts_a_little, is_certain_of_scouts])
def test_weight_on_a_scout_is_named(change):
    def where_there_are_scouts(draft: Draft, verdict: Verdict) -> Verdict:
        return verdict if draft.is_scout is None or not draft.width else change(draft, verdict)

    trees = RandomTrees(random_table(3, 2, 7))
    decoder = SpeculativeDecoder(TabularLM.random(3, 2, 0), trees, Wrong(where_there_are_scouts, RULES["multi_draft"]))
    with pytest.raises(ValueError, match=rf"rule 'wrong', request \d: its {OUTSIDE}"):
        decoder.generate([[1, 2], [0], [2]], 12, SAMPLED)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (lambda draft, v: None, r"returned NoneType; return a Verdict"),
        (lambda draft, v: v.stop_probs, r"returned Tensor; return a Verdict"),
        (
            stops(lambda probs: probs[:, 1:]),
            r"stops have the shape \(2, 3\), not that of the nodes, root first: \(2, 4\)",
        ),
        (stops(lambda probs: probs[:1]), r"stops have the shape \(1, 4\), not .* \(2, 4\)"),
    ],
)
def test_a_verdict_of_another_form_is_named(change, fault):
    decoder = SpeculativeDecoder(Counting(certainty=0.9), guessing(3), Wrong(change))
    with pytest.raises(ValueError, match=f"rule 'wrong'.*{fault}"):
        decoder.generate(PROMPTS, LENGTHS, SAMPLED)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("poison", POISONS.values(), ids=POISONS)
@pytest.mark.parametrize("rule", RULES)
def test_undefined_logits_of_padding_are_nobodys_fault(rule, poison, temperature):
    """Padding holds id 0, behind which this oracle is undefined; no request ever comes there."""
    oracle = Poisoned(poison, after=0)
    oracle.max_context = 5
    result = SpeculativeDecoder(oracle, guessing(3), rule).generate([[1], [2, 3]], 4, SamplingParams(temperature))
    assert result.tokens == [[2, 3, 4, 5], [4, 5, 6]]
