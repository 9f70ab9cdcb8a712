"""Verification from leaves to root: its law, `block` on chains, and more tokens than `multi_draft` of equal trees."""

import numpy as np
import pytest
import torch

from specdec.laws import Laws
from specdec.verify import BlockVerification, MultiDraft, Traversal
from tests.reference.coins import traversal_stops
from tests.reference.tables import random_table
from tests.support.drafting.block_law import (
    Shape,
    as_draft,
    assert_verdicts_agree,
    drafts_of,
    enumerated,
    expected_accepted,
    target_probs,
)
from tests.support.drafting.rule_cases import CHAINS, TABLES, TREES, tables_for

TARGET, DRAFT = random_table(3, 2, 41), random_table(3, 2, 42)
BINARY = Shape((-1, -1, 0, 0, 1, 1))
DRAWN = {
    "binary": BINARY,
    "binary, distinct": Shape(BINARY.parents, without_replacement=True),
    "two deep beside one": Shape((-1, -1, 0, 2)),
    "three deep": Shape((-1, 0, 0, 1, 1)),
}


@pytest.mark.parametrize("shape", CHAINS.values(), ids=CHAINS)
def test_on_chains_it_is_block_verification(shape):
    for target, draft_table in TABLES.values():
        _, draft, probs = enumerated(shape, target, draft_table)
        made, wanted = Traversal()(draft, probs), BlockVerification()(draft, probs)
        assert_verdicts_agree(made, wanted, shape.num_nodes + 1, 1e-13)


def given_siblings(shape, item):
    """Return ``[N, V]`` what each node was drawn from, given its earlier siblings."""
    laws = np.array(item.laws)
    for node in range(shape.num_nodes) if shape.without_replacement else ():
        earlier = [item.tokens[i] for i in range(node) if shape.parents[i] == shape.parents[node]]
        laws[node, earlier] = 0
    return laws / laws.sum(1, keepdims=True)


@pytest.mark.parametrize("shape", DRAWN.values(), ids=DRAWN)
def test_nodes_are_asked_after_all_that_stands_below_them(shape):
    for target, draft_table in tables_for(shape).values():
        drawn, draft, probs = enumerated(shape, target, draft_table)
        found = Traversal()(draft, probs).stop_probs.numpy()
        for row, item in enumerate(drawn):
            laws = given_siblings(shape, item)
            wanted = traversal_stops(item.tokens, shape.parents, probs[row, :-1].numpy(), laws)
            assert np.abs(found[row, :-1] - wanted).max() < 1e-12


@pytest.mark.parametrize("shape", DRAWN.values(), ids=DRAWN)
def test_it_accepts_no_less_than_top_down_and_more_somewhere(shape):
    gains = [
        expected_accepted(Traversal(), shape, draft, target) - expected_accepted(MultiDraft(), shape, draft, target)
        for target, draft in tables_for(shape).values()
    ]
    assert min(gains) > -1e-12
    assert max(gains) > 1e-2


def test_at_one_position_both_are_one_rule():
    shape = Shape((-1, -1, -1))
    for target, draft_table in TABLES.values():
        _, draft, probs = enumerated(shape, target, draft_table)
        made, wanted = Traversal()(draft, probs), MultiDraft()(draft, probs)
        assert float((made.stop_probs[:, 0] - wanted.stop_probs[:, 0]).abs().max()) < 1e-12


def test_greedy_targets_are_compared_by_id_beside_rows_that_draw_too():
    shape = TREES["deep"]
    drawn = list(drafts_of(shape, DRAFT))
    probs = target_probs(shape, drawn, TABLES["greedy target"][0])
    draft, ids = as_draft(shape, drawn), probs.argmax(-1)
    alone = Traversal()(draft, Laws.points(ids))
    assert alone.stops.all_points
    is_greedy = (torch.arange(len(drawn)) % 2 == 0).unsqueeze(1)
    whole = Laws.from_probs(target_probs(shape, drawn, TARGET))
    mixed = Traversal()(draft, Laws(whole.table, torch.where(is_greedy, -1, whole.index), ids)).stop_probs
    assert torch.equal(mixed[::2], torch.nn.functional.one_hot(alone.stops.point, shape.num_nodes + 2).double()[::2])
    assert torch.equal(mixed[1::2], Traversal()(draft, whole).stop_probs[1::2])
