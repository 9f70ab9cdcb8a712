"""Block verification: the paper's figures, its law coin by coin, and never fewer tokens than token by token."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.contracts import Draft
from specdec.laws import Laws
from specdec.verify import BlockVerification, Standard
from tests.reference.coins import block_stops
from tests.reference.tables import random_table, sequence_law
from tests.support.drafting.block_law import (
    PROMPT,
    Shape,
    assert_verdicts_agree,
    block_law,
    drafts_of,
    enumerated,
    expected_accepted,
    target_probs,
    total_variation,
)
from tests.support.drafting.rule_cases import CHAINS, TABLES

P, Q = np.array([1 / 3, 2 / 3]), np.array([2 / 3, 1 / 3])
TARGET, DRAFT = random_table(3, 2, 41), random_table(3, 2, 42)


def chain(length, fixed=()):
    return Shape(tuple(range(-1, length - 1)), fixed)


def test_the_expected_accepted_tokens_are_the_papers():
    by_block, by_token = (
        [expected_accepted(rule, chain(length), Q, P) for length in (1, 2, 3, 4)]
        for rule in (BlockVerification(), Standard())
    )
    assert by_block == pytest.approx([2 / 3, 11 / 9, 5 / 3, 166 / 81], abs=1e-14)
    assert by_token == pytest.approx([2 / 3, 10 / 9, 38 / 27, 130 / 81], abs=1e-14)


seeds = given(
    seed=st.integers(0, 2**31), order=st.integers(0, 2), length=st.integers(1, 4), zeros=st.sampled_from([0, 0.4])
)


def random_tables(seed, order, zeros):
    return random_table(3, order, seed, zeros), random_table(3, order, seed + 1, zeros / 2)


@settings(deadline=None, derandomize=True, max_examples=100)
@seeds
def test_it_never_accepts_less_than_token_by_token(seed, order, length, zeros):
    target, draft = random_tables(seed, order, zeros)
    by_block, by_token = (
        expected_accepted(rule, chain(length), draft, target) for rule in (BlockVerification(), Standard())
    )
    assert by_block >= by_token - 1e-12


@settings(deadline=None, derandomize=True, max_examples=15)
@seeds
def test_the_joint_law_of_the_block_is_the_targets(seed, order, length, zeros):
    target, draft = random_tables(seed, order, zeros)
    length = min(length, 3)
    made = block_law(BlockVerification(), chain(length), draft, target)
    assert total_variation(made, sequence_law(target, PROMPT, length + 1)) < 1e-12


@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
def test_it_accepts_what_the_weights_of_beginnings_promise(tables):
    """The probability of i tokens or more, given these, is w_i: what no rule with these laws can exceed."""
    target, draft = tables
    for length in (1, 2, 3):
        found = 0.0
        for item in drafts_of(chain(length), draft):
            weight = 1.0
            probs = target_probs(chain(length), [item], target, padding=0)[0].numpy()
            for node, token in enumerate(item.tokens):
                weight = min(1.0, weight * probs[node, token] / item.laws[node][token])
                found += item.probability * weight
        assert expected_accepted(BlockVerification(), chain(length), draft, target) == pytest.approx(found, abs=1e-12)


@pytest.mark.parametrize("tables", TABLES.values(), ids=TABLES)
def test_it_stops_at_the_largest_index_whose_coin_says_yes(tables):
    target, draft_table = tables
    for shape in (chain(1), chain(2), chain(4)):
        drawn, draft, probs = enumerated(shape, target, draft_table)
        found = BlockVerification()(draft, probs).stop_probs.numpy()
        for row, item in enumerate(drawn):
            wanted = block_stops(item.tokens, probs[row, :-1].numpy(), np.array(item.laws))
            assert np.abs(found[row, :-1] - wanted).max() < 1e-12


@pytest.mark.parametrize("target", [tables[0] for tables in TABLES.values()], ids=TABLES)
def test_tokens_that_were_chosen_are_judged_as_token_by_token(target):
    shape = CHAINS["deterministic"]
    _, draft, probs = enumerated(shape, target, DRAFT)
    one_hot = dataclasses.replace(draft, laws=Laws.from_probs(draft.node_laws.dense(3)))
    wanted = Standard()(draft, probs)
    for made in (BlockVerification()(draft, probs), BlockVerification()(one_hot, probs)):
        assert_verdicts_agree(made, wanted, shape.num_nodes + 1, 1e-14)


def test_greedy_targets_are_compared_by_id_and_nothing_is_as_wide_as_the_vocabulary(monkeypatch):
    _, draft, probs = enumerated(chain(3), TABLES["greedy target"][0], DRAFT)
    wanted = Standard()(draft, probs).stop_probs
    monkeypatch.setattr(Laws, "dense", lambda *_: pytest.fail("a table was built"))
    verdict = BlockVerification()(draft, Laws.points(probs.argmax(-1)))
    assert verdict.next_law(verdict.stops.point).all_points
    assert torch.equal(torch.nn.functional.one_hot(verdict.stops.point, 5).double(), wanted)


def test_tokens_that_were_chosen_need_nothing_as_wide_as_the_vocabulary_but_what_follows(monkeypatch):
    drawn, draft, probs = enumerated(CHAINS["deterministic"], TARGET, DRAFT)
    monkeypatch.setattr(Laws, "dense_view", lambda *_: pytest.fail("a table was read"))
    assert BlockVerification()(draft, probs).stop_probs.sum().item() == pytest.approx(len(drawn))


def test_in_single_precision_sums_hold_and_whatever_can_be_drawn_is_defined():
    generator = torch.Generator().manual_seed(1)
    probs = torch.rand(64, 6, 500, generator=generator).pow(4)
    probs = probs / probs.sum(-1, keepdim=True)
    near = probs[:, :5] * (1 + 1e-6 * torch.rand(64, 5, 500, generator=generator))  # p and q up to rounding
    far = torch.rand(64, 5, 500, generator=generator).pow(4)
    for laws in (near, probs[:, :5], far):
        drawn_from = laws / laws.sum(-1, keepdim=True)
        tokens = torch.multinomial(drawn_from.flatten(0, 1), 1, generator=generator).view(64, 5)
        draft = Draft(tokens, torch.arange(64) % 6, laws=Laws.from_probs(drawn_from))
        single, double = (BlockVerification()(draft, probs.to(dtype)) for dtype in (torch.float32, torch.float64))
        assert (single.stop_probs.sum(1) - 1).abs().max() < 1e-12
        if laws is far:
            assert (single.stop_probs - double.stop_probs).abs().max() < 1e-5
        for stop in range(6):
            rows = single.stop_probs[:, stop] > 0
            masses = single.next_law(torch.full((64,), stop)).dense(500)[rows].sum(1)
            assert bool(((masses - 1).abs() < 1e-5).all())


def test_a_chain_of_the_targets_own_laws_stands_whole():
    for dtype in (torch.float32, torch.float64):
        drawn, draft, probs = enumerated(chain(4), TARGET, TARGET)
        probs = probs.to(dtype)
        draft = dataclasses.replace(draft, laws=Laws.from_probs(draft.node_laws.dense(3).to(dtype)))
        assert BlockVerification()(draft, probs).stop_probs[:, 4].tolist() == [1.0] * len(drawn)


def test_a_tree_is_refused_with_the_rules_that_judge_it():
    tree = Draft(torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[-1, -1]]))
    with pytest.raises(ValueError, match=r"'block' judges chains only.*'multi_draft', 'traversal' or 'sample"):
        BlockVerification()(tree, torch.full((1, 3, 3), 1 / 3))
