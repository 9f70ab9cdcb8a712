"""Every rule, without the engine: integrated over drafts and stops, a block has the target's joint law, to 1e-12."""

import dataclasses

import numpy as np
import pytest
import torch

from specdec.contracts import Draft
from specdec.laws import Laws, as_laws
from specdec.verify import RULES, resolve_rule
from tests.reference.tables import random_table
from tests.support.drafting.block_law import as_draft, drafts_of, enumerated, target_probs
from tests.support.drafting.rule_cases import (
    CHAINS,
    RANDOM_TREES,
    TABLES,
    TOLERANCE,
    TREES,
    Lenient,
    deviation,
    tables_for,
)

LOSSLESS = [rule for rule in RULES.values() if rule.lossless]
# Chains under all of them, trees under those that judge trees.
CASES = [(rule, name, shape) for rule in LOSSLESS for name, shape in (CHAINS | (TREES if rule.trees else {})).items()]


@pytest.mark.parametrize(("rule", "name", "shape"), CASES, ids=[f"{rule.name}-{name}" for rule, name, _ in CASES])
def test_lossless_rules_give_the_targets_joint_law(rule, name, shape):
    found = {tables: deviation(rule, shape, pair) for tables, pair in tables_for(shape).items()}
    assert max(found.values()) < TOLERANCE, found


def test_the_random_trees_have_everything_that_trees_may_have():
    assert any(shape.scouts for shape in RANDOM_TREES.values())
    for without in (True, False):
        chosen = [shape for shape in RANDOM_TREES.values() if shape.without_replacement == without]
        assert any(max(map(shape.parents.count, shape.parents)) == 3 for shape in chosen)
        assert any(shape.depth() >= 3 for shape in chosen)
        assert any({None} < set(shape.fixed) for shape in chosen)


@pytest.mark.parametrize(
    "rule", [rule for rule in LOSSLESS if rule.trees and not rule.coupled], ids=lambda rule: rule.name
)
def test_the_joint_law_is_the_targets_on_random_trees(rule):
    tables = random_table(3, 2, 43, zeros=0.3), random_table(3, 2, 42)
    found = {seed: deviation(rule, shape, tables) for seed, shape in RANDOM_TREES.items()}
    assert max(found.values()) < TOLERANCE, found


def scalar_walk(tokens, parents, verified, ids):
    """Return where a walk ends that goes into the first verified child that carries the target's id; nodes from 0."""
    node = -1
    while True:
        fits = (i for i, p in enumerate(parents) if p == node and verified[i] and tokens[i] == ids[node + 1])
        child = next(fits, None)
        if child is None:
            return node + 1
        node = child


@pytest.mark.parametrize("name", [name for name in RULES if RULES[name].native_judge is not None])
@pytest.mark.parametrize("width", [0, 1, 6])
def test_rules_that_are_judged_natively_stop_where_ids_part(name, width):
    """Compiled code compares ids in their place."""
    rule, numbers = resolve_rule(name), np.random.default_rng(width)
    tokens, ids = numbers.integers(2, size=(64, width)), numbers.integers(2, size=(64, width + 1))
    sizes = numbers.integers(width + 1, size=64)
    verified = np.arange(width) < sizes[:, None]
    chain = np.broadcast_to(np.arange(-1, width - 1), (64, width))
    cases = {"chains": (chain, None, verified)}
    if rule.trees:
        parents = np.array([[numbers.integers(-1, i) for i in range(width)] for _ in range(64)], dtype=np.int64)
        parents = parents.reshape(64, width)
        is_leaf = ~(parents[:, None, :] == np.arange(width)[:, None]).any(2)
        scouts = is_leaf & (numbers.random((64, width)) < 0.3)
        cases |= {"trees": (parents, None, verified), "scouts": (parents, scouts, verified & ~scouts)}
    for case, (parents, scouts, may_enter) in cases.items():
        draft = Draft(
            torch.from_numpy(tokens),
            torch.from_numpy(sizes),
            None if case == "chains" else torch.from_numpy(parents),
            is_scout=None if scouts is None else torch.from_numpy(scouts),
        )
        verdict = rule(draft, Laws.points(torch.from_numpy(ids)))
        stops = [scalar_walk(*row) for row in zip(tokens, parents, may_enter, ids, strict=True)]
        assert verdict.stops.all_points
        assert verdict.stops.point.tolist() == stops
        following = verdict.next_law(verdict.stops.point)
        assert following.point.tolist() == [row[stop] for row, stop in zip(ids.tolist(), stops, strict=True)]


LOSSY = [Lenient(), *(rule for rule in RULES.values() if not rule.lossless)]


@pytest.mark.parametrize("rule", LOSSY, ids=lambda rule: rule.name)
def test_rules_that_call_themselves_lossy_are(rule):
    assert max(deviation(rule, CHAINS["three"], tables) for tables in TABLES.values()) > 1e-2


@pytest.mark.parametrize("name", RULES)
def test_rows_of_different_length_are_judged_as_they_are_alone(name):
    rule, (target, draft_table) = resolve_rule(name), TABLES["different"]
    shape = CHAINS["three"]
    drawn = list(drafts_of(shape, draft_table))
    draft, probs = as_draft(shape, drawn, padding=0), target_probs(shape, drawn, target, padding=0)
    lengths = torch.arange(len(drawn)) % 4
    together = rule(dataclasses.replace(draft, num_nodes=lengths), probs)
    for length in range(4):
        rows = torch.nonzero(lengths == length).squeeze(1)
        short = Draft(
            draft.tokens[rows, :length], lengths[rows], laws=Laws.from_probs(draft.node_laws[rows, :length].dense(3))
        )
        alone = rule(short, probs[rows, : length + 1])
        assert torch.equal(together.stop_probs[rows, : length + 1], alone.stop_probs)
        assert float(together.stop_probs[rows, length + 1 :].sum()) == 0.0


@pytest.mark.parametrize("tables", TABLES)
def test_every_stop_that_can_happen_has_a_defined_next_law(tables):
    for rule in RULES.values():
        check_next_laws(rule, *TABLES[tables])


def check_next_laws(rule, target, draft_table):
    drawn = list(drafts_of(CHAINS["three"], draft_table))
    probs = target_probs(CHAINS["three"], drawn, target)
    verdict = rule(as_draft(CHAINS["three"], drawn), probs)
    assert torch.allclose(verdict.stop_probs.sum(-1), torch.ones(len(drawn), dtype=torch.float64), atol=1e-14)
    for stop in range(4):
        rows = verdict.stop_probs[:, stop] > 0
        law = verdict.next_law(torch.full((len(drawn),), stop)).dense(3)[rows]
        assert torch.allclose(law.sum(-1), torch.ones(len(law), dtype=law.dtype), atol=1e-12)
        assert bool((law[probs[rows, stop] == 0] == 0).all()), "an id of target probability 0 never follows"


@pytest.mark.parametrize("name", [name for name in RULES if not RULES[name].trees])
def test_rules_for_chains_refuse_trees_and_name_a_rule_for_them(name):
    drawn = list(drafts_of(TREES["deep"], TABLES["different"][1]))
    probs = target_probs(TREES["deep"], drawn, TABLES["different"][0])
    with pytest.raises(ValueError, match="sample_and_match"):
        resolve_rule(name)(as_draft(TREES["deep"], drawn), probs)


def test_unknown_rules_are_refused_with_the_known_names():
    with pytest.raises(ValueError, match=r"unknown.*sample_and_match"):
        resolve_rule("standart")


def test_laws_of_points_and_of_one_hot_tables_are_judged_alike():
    target, other = TABLES["both greedy"]
    for draft_table, stop in ((other, 0), (target, 3)):  # the first token falls; all stand
        _, draft, probs = enumerated(CHAINS["three"], target, draft_table)
        points = Laws.points(probs.argmax(-1))
        for rule in RULES.values():
            by_table, by_point = rule(draft, probs), rule(draft, points)
            assert torch.allclose(by_table.stop_probs, by_point.stop_probs, atol=1e-15), rule.name
            assert by_point.stop_probs[0, stop] == 1, rule.name
        assert np.array_equal(as_laws(probs).dense(3).numpy(), probs.numpy())
