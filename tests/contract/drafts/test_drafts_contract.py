"""What every exported draft source must do, whoever wrote it."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

import drafts
from oracles.tabular import TabularLM
from specdec import Grown, Kary, Paths, ReRanked
from specdec.contracts import Draft, DraftSource
from specdec.exactness import check_draft
from specdec.sampling import SamplingParams
from tests.support.drafting.draft_rows import PROMPTS, Rows, chains
from tests.support.models.eagle3_heads import host_of
from tests.support.pairwise import Axis, chosen, first_of
from tests.support.registry import OTHERS, SIX_IDS, SOURCES

VOCAB = 6
MODEL, NGRAM_MODEL = SIX_IDS.model, SIX_IDS.ngrams
# Sources of trees, given the depth.
TREES: dict[str, Callable[[int], DraftSource]] = {
    "binary": lambda k: drafts.SmallTransformer(MODEL, tree=Kary(2, min(k, 3))),
    "paths": lambda k: drafts.SmallTransformer(MODEL, tree=Paths([(0,) * k, (1, 0), (2,)])),
    "grown": lambda k: drafts.SmallTransformer(MODEL, tree=Grown(9, k, width=3, min_confidence=0.01)),
    "greedy, grown": lambda k: drafts.SmallTransformer(MODEL, tree=Grown(9, k), temperature=0),
    "ngram": lambda k: drafts.NGram(NGRAM_MODEL, sampled=True, tree=Kary(2, min(k, 3))),
    "greedy ngram, re-ranked": lambda k: drafts.NGram(NGRAM_MODEL, tree=ReRanked(7, k, 3)),
    "greedy, re-ranked": lambda k: drafts.SmallTransformer(MODEL, tree=ReRanked(7, k, 3), temperature=0),
}
# By name, then way: sources of so many tokens, and those that are none.
ROWS: dict[str, dict[str, Callable[[int], DraftSource]]] = {
    name: {way: partial(make, SIX_IDS) for way, make in ways.items()} for name, ways in SOURCES.items()
}
WITH_TREES = ROWS | {name: {"tree": make} for name, make in TREES.items()}
OTHER_ROWS: dict[str, dict[str, Callable[[], DraftSource]]] = {
    name: {way: partial(make, SIX_IDS) for way, make in ways.items()} for name, ways in OTHERS.items()
}
COMBINED = {"Cascade", "Merged", "Staged"}
SAMPLINGS = {
    "sampled": SamplingParams(temperature=0.9, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.4),
    "greedy": SamplingParams(),
}


def ways_of(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {f"{name}: {way}": make for name, ways in rows.items() for way, make in ways.items()}


def name_of(way: str) -> str:
    return way.partition(": ")[0]


def every(rows: dict[str, dict[str, Any]], **axes: Axis) -> pytest.MarkDecorator:
    """Return a parametrisation: in its quick part each way occurs, and each name with each value."""
    return chosen(
        {"make": ways_of(rows), **axes}, lambda way, *values: {way, *((name_of(way), value) for value in values)}
    )


def row_of(draft: Draft, row: int) -> tuple[list[tuple[int, int]], torch.Tensor]:
    """Return the parents and ids of a row, and the dense laws of its nodes."""
    size = int(draft.num_nodes[row])
    parents = range(-1, size - 1) if draft.parents is None else draft.parents[row, :size].tolist()
    ids = draft.tokens[row, :size].tolist()
    return list(zip(parents, ids, strict=True)), draft.node_laws[row, :size].dense(VOCAB).double()


def assert_same(first: tuple[list[Any], torch.Tensor], second: tuple[list[Any], torch.Tensor]) -> None:
    assert first[0] == second[0]
    torch.testing.assert_close(first[1], second[1], rtol=1e-12, atol=0)


@every(ROWS)
def test_a_source_declares_itself(make):
    source = make(3)
    assert isinstance(source, DraftSource)
    assert source.offers.max_depth == 3
    assert source.offers.max_nodes >= 3 if source.offers.trees else source.offers.max_nodes == 3
    assert source.offers.reproducible
    assert source.vocab_size in (None, VOCAB)


@every(ROWS, sampling=SAMPLINGS)
def test_drafts_keep_to_their_budgets(make, sampling):
    rows = Rows(make(4), sampling=sampling)
    rows.seat(PROMPTS)
    draft = rows.propose({0: 3, 1: 0, 2: 50, 3: 1})
    assert draft.tokens.dtype == draft.num_nodes.dtype == torch.int64
    per_level = 1 if draft.parents is None else 3  # the combinations of this file have three chains at most
    assert (draft.num_nodes <= per_level * torch.tensor([3, 0, 4, 1])).all()
    assert draft.width == draft.num_nodes.max() > 0
    assert draft.node_laws.shape == draft.tokens.shape
    assert ((draft.tokens >= 0) & (draft.tokens < VOCAB)).all()


@every(WITH_TREES, budget=(0, -1))
def test_without_a_budget_nothing_is_drafted(make, budget):
    rows = Rows(make(4))
    rows.seat(PROMPTS)
    assert chains(rows.propose(dict.fromkeys(PROMPTS, budget))) == [[]] * 4


@every(ROWS)
def test_no_draft_tokens_are_legal_and_fewer_are_not(make):
    rows = Rows(make(0))
    rows.seat(PROMPTS)
    assert chains(rows.propose(dict.fromkeys(PROMPTS, 9))) == [[]] * 4
    with pytest.raises(ValueError, match="num_draft_tokens"):
        make(-1)


# Combinations draw in streams of their own, where (row, node) names no draw of the whole: check_draft looks at them.
@every({name: ways for name, ways in ROWS.items() if name not in COMBINED}, sampling=SAMPLINGS)
def test_declared_laws_are_those_drawn_from(make, sampling):
    source = make(4)
    rows = Rows(source, sampling=sampling)
    rows.seat(PROMPTS)
    draft = rows.propose({0: 3, 1: 0, 2: 50, 3: 1})
    assert {draw.purpose for draws in rows.draws for draw in draws} <= {"draft"}
    drawn = {(row, draw.name[-1]): draw for row, draws in enumerate(rows.draws) for draw in draws}
    for row, size in enumerate(draft.num_nodes.tolist()):
        for node in range(size):
            declared, token = draft.node_laws[row, node], int(draft.tokens[row, node])
            # Without a draw the token is the source's own choice, and must be declared a point mass.
            draw, law = drawn.pop((row, node), None), declared.dense(VOCAB).double()
            assert law[token] == 1 if draw is None else draw.ids == [token]
            assert draw is None or torch.equal(draw.law, law)
            assert source.offers.laws or int(declared.index) < 0
    assert not drawn, "a row drew from a real law and dropped the token"


@every(WITH_TREES, sampling=SAMPLINGS)
def test_a_row_drafts_the_same_alone_in_another_slot(make, sampling):
    together = Rows(make(4), sampling=sampling)
    together.seat(PROMPTS)
    batch = together.propose({0: 3, 1: 0, 2: 50, 3: 2})
    for row, budget in {0: 3, 2: 50, 3: 2}.items():
        alone = Rows(make(4), sampling=sampling)
        alone.seat({1: PROMPTS[row]}, seeds={1: row})
        assert_same(row_of(alone.propose({1: budget}), 0), row_of(batch, row))


@every(WITH_TREES, sampling=SAMPLINGS)
@pytest.mark.parametrize("seed", first_of(0, 1, 2, 3))
def test_after_any_history_drafts_are_those_of_a_fresh_session(make, sampling, seed):
    """Rows accept all, some or nothing, sit out steps, and are cut back by any amount, prompts included."""
    generator = np.random.default_rng(seed)
    rows = Rows(make(4), sampling=sampling)
    rows.seat(PROMPTS)
    for _ in range(10):
        active = sorted(generator.choice(4, generator.integers(1, 5), replace=False).tolist())
        draft = rows.propose({row: int(generator.integers(0, 6)) for row in active})
        new_ids, keep = {}, {}
        for row, chain in zip(active, chains(draft), strict=True):
            length = len(rows.ids[row])
            is_cut = generator.random() < 0.25
            keep[row] = int(generator.integers(1, length + 1)) if is_cut else length
            accepted = chain[: int(generator.integers(0, len(chain) + 1))] if not is_cut else []
            others = generator.integers(0, VOCAB, generator.integers(0, 4)).tolist()
            new_ids[row] = [*accepted, *others]
        rows.settle(new_ids, keep)
    rows.prompt_lengths = {row: len(ids) for row, ids in rows.ids.items()}
    fresh = Rows(make(4), sampling=sampling)
    fresh.seat(rows.ids)
    budgets = dict.fromkeys(PROMPTS, 50)
    worn, new = rows.propose(budgets), fresh.propose(budgets)
    for row in PROMPTS:
        assert_same(row_of(worn, row), row_of(new, row))


@every(WITH_TREES, sampling=SAMPLINGS, is_told={"ended": True, "taken over": False})
def test_rows_leave_and_are_reused(make, sampling, is_told):
    rows = Rows(make(4), sampling=sampling)
    rows.seat(PROMPTS)
    draft = rows.propose(dict.fromkeys(PROMPTS, 50))
    rows.settle({row: [*chain, 1] for row, chain in enumerate(chains(draft))})
    if is_told:
        rows.session.end(np.array([1, 3]))
    rows.seat({3: [5, 1, 5], 1: [0]})
    fresh = Rows(make(4), sampling=sampling)
    fresh.seat(rows.ids)
    rows.prompt_lengths = fresh.prompt_lengths
    budgets = dict.fromkeys(PROMPTS, 50)
    worn, new = rows.propose(budgets), fresh.propose(budgets)
    for row in PROMPTS:
        assert_same(row_of(worn, row), row_of(new, row))


# Of the other names one way is enough: the tests above look at each.
@chosen({"make": ways_of(WITH_TREES)}, lambda way: {way if name_of(way) in COMBINED else name_of(way)})
def test_check_draft_finds_no_fault(make):
    source = make(3)
    oracle = host_of(source, TabularLM.random(VOCAB, 2, 5, eos_id=5))
    check_draft(source, oracle, [*PROMPTS.values()], max_new_tokens=8)


@every(OTHER_ROWS, sampling={"warped": SAMPLINGS["sampled"], "plain": None})
def test_check_draft_finds_no_fault_in_the_others(make, sampling):
    source = make()
    assert isinstance(source, DraftSource)
    oracle = host_of(source, TabularLM.random(VOCAB, 2, 5, eos_id=5))
    check_draft(source, oracle, [*PROMPTS.values()], max_new_tokens=8, sampling=sampling)


@pytest.mark.parametrize("name", ["NGram", "SmallTransformer"])
def test_another_vocabulary_is_refused_with_the_reason(name):
    for make in ROWS[name].values():
        with pytest.raises(ValueError, match="vocabulary of 6 ids, but the oracle's has 7"):
            make(3).open(TabularLM.random(7, 1, 0), 1, 8)
