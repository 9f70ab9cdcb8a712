"""The suffix automaton counts what a search counts, and its drafts are those of a scalar reference."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drafts import SuffixAutomaton
from specdec.contracts import Draft
from specdec.drafting import Automaton
from specdec.drafting import automaton as automata
from tests.reference.suffixes import children_of, ends_of, suffix_draft
from tests.support.drafting.draft_rows import Rows

QUICK = {"max_examples": 60, "deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
TEXT = st.lists(st.integers(0, 2), max_size=16)
ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=4)
OUTPUTS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=12), max_size=3)
SETTINGS = [
    {},
    {"tokens_per_match": 0.5},
    {"tokens_per_match": 4.0, "min_ngram": 2},
    {"min_confidence": 0.4},
    {"max_nodes": 5},
    {"max_nodes": 9, "tokens_per_match": 5.0, "min_confidence": 0.1},
    {"max_nodes": 3, "min_ngram": 2},
]


def parts_of(text: list[int]) -> list[list[int]]:
    return [text[i:j] for i in range(len(text)) for j in range(i + 1, len(text) + 1)]


def state_of(automaton: Automaton, part: list[int]) -> int:
    state = 0
    for one in part:
        state = automaton.following[state][one]
    return state


def assert_counts(automaton: Automaton, text: list[int]) -> None:
    assert automaton.ids == text
    for part in parts_of(text):
        state = state_of(automaton, part)
        ends = ends_of(text, part)
        assert automaton.counts[state] == len(ends)
        assert automaton.latest[state] == max(ends)
        found = [(one, belief) for one, _, belief in automaton.children(state, 9)]
        assert found == [(one, belief) for one, belief, _ in children_of(text, part)]
        assert automaton.children(state) == automaton.children(state, 9)[:1]


@given(built=TEXT, appended=TEXT)
@settings(**QUICK)
def test_states_are_the_parts_of_the_text_and_know_where_they_stand(built, appended):
    automaton = Automaton(built)
    assert_counts(automaton, built)
    for one in appended:
        automaton.append(one)
    assert_counts(automaton, built + appended)
    assert len(automaton.links) <= max(2 * len(built + appended), 1)
    known = {tuple(part) for part in parts_of(built + appended)}
    assert all((*part, one) in known for part in known for one in automaton.following[state_of(automaton, list(part))])


@given(built=TEXT, first=TEXT, second=TEXT, size=st.integers(0, 32), undoable=st.sampled_from([2, 64]))
@settings(**QUICK)
def test_ids_that_were_taken_back_leave_nothing(built, first, second, size, undoable, monkeypatch):
    monkeypatch.setattr(automata, "_UNDOABLE", undoable)
    automaton, size = Automaton(built), min(size, len(built + first))
    for one in first:
        automaton.append(one)
    automaton.cut(size)
    text = (built + first)[:size]
    assert_counts(automaton, text)
    for one in second:
        automaton.append(one)
    assert_counts(automaton, text + second)
    fresh = Automaton(text + second)
    assert sorted(automaton.lengths) == sorted(fresh.lengths)
    assert automaton.match()[1] == fresh.match()[1]


def test_what_a_long_text_remembers_of_its_ids_is_bounded():
    automaton = Automaton()
    for _ in range(500):
        automaton.append(1)
    assert sum(len(step.latest) for step in automaton._steps) < 64 * 500
    automaton.cut(20)
    assert_counts(automaton, [1] * 20)


@given(text=TEXT, other=TEXT)
@settings(**QUICK)
def test_the_longest_suffix_is_followed_through_another_text(text, other):
    automaton, found = Automaton(text), (0, 0)
    for end, one in enumerate(other, 1):
        found = automaton.follow(*found, one)
        length = max(n for n in range(end + 1) if n == 0 or ends_of(text, other[end - n : end]))
        assert found[1] == length
        assert found[0] == state_of(automaton, other[end - length : end])


def rows_of(draft: Draft) -> list[tuple[list[int], list[int], list[float]]]:
    """Return ids, parents and confidences of each row."""
    found = []
    for row, size in enumerate(draft.num_nodes.tolist()):
        parents = list(range(-1, size - 1)) if draft.parents is None else draft.parents[row, :size].tolist()
        assert draft.confidence is not None
        found.append((draft.tokens[row, :size].tolist(), parents, draft.confidence[row, :size].tolist()))
    return found


@pytest.mark.parametrize("arguments", SETTINGS, ids=str)
@given(rows=ROWS, outputs=OUTPUTS, budgets=st.lists(st.integers(0, 7), min_size=4, max_size=4), seed=st.integers(0, 99))
@settings(**QUICK)
def test_every_row_drafts_what_the_scalar_reference_drafts(arguments, rows, outputs, budgets, seed):
    source = SuffixAutomaton(6, store_size=100, **arguments)
    source.remember(outputs)
    generator = np.random.default_rng(seed)
    state = Rows(source, len(rows), 300)
    state.seat(dict(enumerate(rows)))
    for _ in range(3):
        drafted = rows_of(state.propose(dict(enumerate(budgets[: len(rows)]))))
        for row, budget in zip(range(len(rows)), budgets, strict=False):
            wanted = suffix_draft(state.ids[row], min(budget, 6), outputs, **arguments)
            tokens, parents, confidence = drafted[row]
            assert (tokens, parents) == (wanted.tokens, wanted.parents)
            assert confidence == wanted.beliefs
        keep = {row: int(generator.integers(1, len(state.ids[row]) + 1)) for row in range(len(rows))}
        state.settle({row: generator.integers(0, 4, generator.integers(0, 4)).tolist() for row in keep}, keep)
