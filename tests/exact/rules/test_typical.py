"""Typical acceptance: which tokens stand, by hand; that it is lossy, and that whoever asks is told."""

import math

import pytest
import torch

from drafts import SmallTransformer
from oracles import TabularLM
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft
from specdec.exactness import check_lossless
from specdec.laws import Laws
from specdec.verify import RULES, Typical
from tests.reference.tables import random_table

TARGET, DRAFT = TabularLM(random_table(3, 2, 41)), TabularLM(random_table(3, 2, 42))
SAMPLED = SamplingParams(temperature=1.0)
LAWS = torch.tensor([[0.9, 0.08, 0.02], [0.4, 0.35, 0.25], [0.2, 0.2, 0.6]], dtype=torch.float64)


def stop(rule, tokens, parents=None, **given):
    draft = Draft(torch.tensor([tokens]), torch.tensor([len(tokens)]), parents and torch.tensor([parents]), **given)
    verdict = rule(draft, LAWS[[node % 3 for node in range(len(tokens) + 1)]].unsqueeze(0))
    assert verdict.stops.all_points
    return int(verdict.stops.point)


def test_a_token_stands_if_it_is_above_the_smaller_threshold():
    entropy = -float((LAWS[0] * LAWS[0].log()).sum())
    by_entropy = 0.08 * math.exp(entropy)  # the delta at which token 1 of the first law is at the threshold
    for epsilon, delta, wanted in (
        (0.0799, 9.0, 1),
        (0.08, 9.0, 0),
        (0.5, by_entropy * 0.999, 1),
        (0.5, by_entropy * 1.001, 0),
    ):
        assert stop(Typical(epsilon, delta), [1]) == wanted, (epsilon, delta)


def test_what_follows_a_token_that_falls_does_not_stand():
    assert [stop(RULES["typical"], tokens) for tokens in ([0, 0, 2], [0, 0, 1], [2, 0, 2])] == [3, 3, 0]
    assert stop(Typical(0.3, 9.0), [0, 2, 2]) == 1


def test_the_longest_path_is_followed_and_of_equal_ones_the_first():
    rule = Typical(0.3, 9.0)  # laws of nodes: 0 .9, 1 .4 .35, 2 .6 again from node 3 on .9
    assert stop(rule, [0, 0, 0], [-1, -1, 1]) == 1, "the third token has .2 after node 2"
    assert stop(rule, [0, 0, 2], [-1, -1, 1]) == 3
    assert stop(rule, [0, 0], [-1, -1]) == 1
    assert stop(rule, [0, 0, 2], [-1, -1, 1], is_scout=torch.tensor([[False, False, True]])) == 1


def test_the_next_token_is_drawn_from_the_targets_law():
    verdict = RULES["typical"](Draft(torch.tensor([[2, 0]]), torch.tensor([2])), LAWS.unsqueeze(0))
    assert torch.equal(verdict.next_law(torch.tensor([0])).dense(), LAWS[:1])


def test_to_points_ids_are_compared():
    points = Laws.points(torch.tensor([[1, 2, 0], [1, 2, 0]]))
    draft = Draft(torch.tensor([[1, 2], [1, 1]]), torch.tensor([2, 2]))
    assert Typical(0.9, 9.0)(draft, points).stops.point.tolist() == [2, 1]


@pytest.mark.parametrize(
    "source", [SmallTransformer(DRAFT, 2), SmallTransformer(DRAFT, tree=Kary(2, 2))], ids=["chain", "tree"]
)
def test_the_suite_fails_it_and_greedy_output_is_plain_decodings(source):
    decoder = SpeculativeDecoder(TARGET, source, "typical")
    with pytest.raises(AssertionError, match="off by a total variation of 0"):
        check_lossless(decoder, [1, 2], 3, SAMPLED)
    check_lossless(decoder, [1, 2], 3, SamplingParams())
    prompts = [[1, 2], [0], [2, 2, 1]]
    assert decoder.generate(prompts, 20).tokens == SpeculativeDecoder(TARGET).generate(prompts, 20).tokens


def test_results_say_that_it_is_lossy_and_with_which_parameters():
    assert not Typical.lossless
    for rule, told in (("typical", "epsilon=0.09, delta=0.3"), (Typical(0.2, 0.5), "epsilon=0.2, delta=0.5")):
        result = SpeculativeDecoder(TARGET, SmallTransformer(DRAFT, 2), rule).generate([[1]], 4, SAMPLED)
        assert result.exactness == f"lossy: typical({told})"
        assert result.judge == "typical"
        assert f"lossy: typical({told})" in repr(result)


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({"epsilon": 1.5}, r"epsilon=1.5 must lie in \[0, 1\)"),
        ({"epsilon": -0.1}, "epsilon must be"),
        ({"delta": math.inf}, "delta must be"),
    ],
)
def test_thresholds_out_of_range_are_refused(options, fault):
    with pytest.raises(ValueError, match=fault):
        Typical(**options)
