"""Recursive rejection over siblings: figures, exactness on random trees and in the engine, and what bounds it."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import specdec.verify.multi_draft
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder, theory
from specdec.exactness import check_draft, check_lossless
from specdec.laws import Laws
from specdec.verify import MultiDraft, SampleAndMatch, Standard, Traversal
from tests.reference.tables import random_table, sequence_law
from tests.support.backends import laws_by
from tests.support.drafting.block_law import PROMPT, Shape, as_draft, drafts_of, enumerated, target_probs
from tests.support.drafting.rule_cases import CHAINS, TABLES, TREES, tables_for
from tests.support.drafting.sources import Chains, RandomTrees, SiblingTrees
from tests.support.pairwise import pairwise

P, Q = np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.7, 0.2, 0.05, 0.05])
TARGET, DRAFT = random_table(3, 2, 41), random_table(3, 2, 42)


def siblings(num_draws, replacement):
    return Shape((-1,) * num_draws, without_replacement=not replacement)


def acceptance(shape, target, draft):
    """Return the probability that a step goes on into a child of the pending token."""
    drawn = list(drafts_of(shape, draft))
    verdict = MultiDraft()(as_draft(shape, drawn, len(target)), target_probs(shape, drawn, target))
    return sum(item.probability * (1 - float(verdict.stop_probs[row, 0])) for row, item in enumerate(drawn))


@pytest.mark.parametrize(
    ("replacement", "figures"), [(True, [0.9, 0.91, 0.919]), (False, [0.9, 0.9 + 1 / 30, 1.0])], ids=["with", "without"]
)
def test_acceptance_at_one_position_with_one_two_and_three_draws(replacement, figures):
    made = [acceptance(siblings(k, replacement), P, Q) for k in (1, 2, 3)]
    assert made == pytest.approx(figures, abs=1e-12)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(2, 5), k=st.integers(1, 3), replacement=st.booleans())
def test_the_rule_never_exceeds_the_optimum_of_its_own_draws(seed, size, k, replacement):
    # Laws of full support: k distinct ids can be drawn from size of them.
    p, q = np.random.default_rng(seed).dirichlet(np.full(size, 0.7), size=2) * 0.99 + 0.01 / size
    k = k if replacement else min(k, size)
    made = acceptance(siblings(k, replacement), p, q)
    assert made <= theory.transport_optimum(p, q, k, replacement=replacement) + 1e-9
    assert made >= theory.acceptance(p, q) - 1e-12


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize("shape", CHAINS.values(), ids=CHAINS)
def test_on_chains_it_is_the_standard_rule_number_for_number(shape, dtype):
    for tables in TABLES.values():
        check_as_standard(shape, tables, dtype)


def check_as_standard(shape, tables, dtype):
    drawn, draft, probs = enumerated(shape, *tables)
    probs = probs.to(dtype)
    if draft.laws is not None:
        draft = dataclasses.replace(draft, laws=Laws.from_probs(draft.laws.dense().to(dtype)))
    flagged = dataclasses.replace(draft, without_replacement=torch.ones_like(draft.tokens, dtype=torch.bool))
    wanted = Standard()(draft, probs)
    for verdict in (MultiDraft()(draft, probs), MultiDraft()(flagged, probs)):
        assert torch.equal(verdict.stop_probs, wanted.stop_probs)
        for stop in range(shape.num_nodes + 1):
            at = torch.full((len(drawn),), stop)
            assert torch.equal(verdict.next_law(at).dense(3), wanted.next_law(at).dense(3))


@pytest.mark.parametrize("rule", [MultiDraft(), Traversal()], ids=lambda rule: rule.name)
def test_deterministic_candidates_are_judged_as_by_the_rule_that_reads_no_laws(rule):
    shape = Shape((-1, -1, -1, 0, 0, 2), fixed=(1, 1, 0, 2, 0, 1))
    _, draft, probs = enumerated(shape, TARGET, DRAFT)
    made, wanted = rule(draft, probs), SampleAndMatch()(draft, probs)
    assert torch.allclose(made.stop_probs, wanted.stop_probs, rtol=0, atol=1e-14)


def accepted_and_drafted(rule, shape, tables):
    """Return, for each path of ids, P(it is accepted) and P(it is among the verified nodes)."""
    target, draft_table = tables
    drawn = list(drafts_of(shape, draft_table))
    stop_probs = rule(as_draft(shape, drawn), target_probs(shape, drawn, target)).stop_probs
    accepted, drafted = {}, {}
    for row, item in enumerate(drawn):
        paths = {node: shape.path(node, item.tokens) for node in range(shape.num_nodes) if node not in shape.scouts}
        for path in set(paths.values()):
            drafted[path] = drafted.get(path, 0.0) + item.probability
        for node, path in paths.items():
            for n in range(1, len(path) + 1):
                mass = item.probability * float(stop_probs[row, node + 1])
                accepted[path[:n]] = accepted.get(path[:n], 0.0) + mass
    return accepted, drafted


def excess(rule, shape, tables):
    """Return by how much a path's acceptance exceeds its target probability or that of being drafted, at most."""
    accepted, drafted = accepted_and_drafted(rule, shape, tables)
    return max(
        mass - min(sequence_law(tables[0], PROMPT, len(path))[path], drafted[path]) for path, mass in accepted.items()
    )


@pytest.mark.parametrize("shape", TREES.values(), ids=TREES)
@pytest.mark.parametrize("rule", [MultiDraft(), SampleAndMatch(), Traversal()], ids=lambda rule: rule.name)
def test_no_path_is_accepted_more_often_than_the_target_or_the_draft_allow(rule, shape):
    found = {name: excess(rule, shape, tables) for name, tables in tables_for(shape).items()}
    assert max(found.values()) < 1e-12, found


def test_a_rule_that_forgets_the_residual_accepts_too_often(monkeypatch):
    monkeypatch.setattr(specdec.verify.multi_draft, "residual_probs", lambda p, q: (p, torch.tensor(True)))
    with laws_by("torch"):
        assert max(excess(MultiDraft(), siblings(3, replacement=True), tables) for tables in TABLES.values()) > 1e-2


def test_greedy_targets_are_compared_by_id_and_nothing_is_as_wide_as_the_vocabulary(monkeypatch):
    shape = Shape((-1, -1, -1, 0, 1, 1))
    drawn = list(drafts_of(shape, DRAFT))
    probs = target_probs(shape, drawn, TABLES["greedy target"][0])
    draft = as_draft(shape, drawn)
    wanted = SampleAndMatch()(draft, Laws.points(probs.argmax(-1))).stop_probs
    monkeypatch.setattr(Laws, "dense", lambda *_: pytest.fail("a table was built"))
    verdict = MultiDraft()(draft, Laws.points(probs.argmax(-1)))
    assert verdict.stops.all_points
    assert verdict.next_law(verdict.stops.point).all_points
    assert torch.equal(torch.nn.functional.one_hot(verdict.stops.point, shape.num_nodes + 2).double(), wanted)


SOURCES = {
    "without replacement": SiblingTrees(DRAFT, max_nodes=3),
    "with replacement": RandomTrees(DRAFT, max_nodes=3),
    "chains": Chains(DRAFT, 2),
}
SAMPLINGS = {
    "sampled": SamplingParams(temperature=1.0),
    "top-p": SamplingParams(temperature=0.8, top_p=0.85),
    "penalties": SamplingParams(temperature=0.9, repetition_penalty=1.4, frequency_penalty=0.5, min_new_tokens=2),
}
MATES = [[0], [1, 2, 0, 1], [2, 2, 1]]


@pairwise({"source": SOURCES, "sampling": SAMPLINGS, "backend": ("native", "torch")})
def test_the_engines_output_law_is_the_oracles(source, sampling, backend):
    for eos_id in (None, 0):
        decoder = SpeculativeDecoder(TabularLM(TARGET, eos_id), source, "multi_draft")
        with laws_by(backend):
            check_lossless(decoder, PROMPT, 3, sampling, depth=2, mates=MATES)


@pytest.mark.parametrize("rule", ["multi_draft", "traversal"])
def test_larger_trees_over_four_tokens_keep_the_law(rule):
    decoder = SpeculativeDecoder(TabularLM(TARGET), SiblingTrees(DRAFT, max_nodes=4), rule)
    check_lossless(decoder, PROMPT, 4, SamplingParams(temperature=1.0))


def test_the_source_without_replacement_conforms_and_has_what_it_says():
    source = SiblingTrees(random_table(5, 2, 44), max_nodes=6, max_depth=3)
    oracle = TabularLM(random_table(5, 2, 45))
    check_draft(source, oracle, max_new_tokens=12)
    decoder = SpeculativeDecoder(oracle, source, "multi_draft")
    records = decoder.generate([[i % 5] for i in range(30)], 24, SamplingParams(temperature=1.0)).records.columns()
    assert min(records["num_drafted"]) == 0
    assert max(records["num_drafted"]) == source.max_nodes
    assert max(records["num_scouts"]) >= 2
    assert max(records["num_accepted"]) == source.max_depth
    assert any(rank >= 2 for ranks in records["ranks"] for rank in ranks)
