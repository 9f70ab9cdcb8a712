"""Bookkeeping without a model: rows that join and leave, and what a drawn decision means for each of them."""

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.contracts import Draft, Ending
from specdec.contracts.token_tree import Tree
from specdec.engine.outcome import StepOutcome, Walk, emissions, record
from specdec.engine.slots import IDLE, Slots
from specdec.requests import Request
from specdec.sampling import SamplingParams
from tests.reference.verdicts import scalar_outcome
from tests.support.texts.records import rows_of


def request(prompt: list[int], room: int = 10) -> Request:
    return Request(np.array(prompt), len(prompt) + room, SamplingParams(), (), (), 0)


def seat(row: int, request: Request) -> bool:
    return True


def slots_of(requests: list[Request], num_rows: int, capacity: int) -> Slots:
    slots = Slots(num_rows, capacity)
    slots.requests += requests
    slots.queue()
    return slots


def test_requests_are_seated_in_order_and_idle_rows_are_reused_lowest_first():
    slots = slots_of([request([i + 1] * (i + 1)) for i in range(5)], 3, 20)
    assert slots.admit(seat).tolist() == [0, 1, 2]
    assert slots.admit(seat).tolist() == []
    assert slots.num_committed.tolist() == [1, 2, 3]
    slots.release(rows_of(1))
    assert slots.rows.tolist() == [0, 2]
    assert slots.admit(seat).tolist() == [1]
    assert slots.occupants.tolist() == [0, 3, 2]
    assert slots.ids[1, :4].tolist() == [4, 4, 4, 4]
    slots.release(rows_of(0, 2))
    assert slots.admit(seat).tolist() == [0]
    assert slots.rows.tolist() == [0, 1]
    slots.release(rows_of(0, 1))
    assert not slots.rows.size
    assert (slots.occupants == IDLE).all()


def test_a_reused_row_shows_nothing_of_its_predecessor():
    slots = slots_of([request([1, 2, 3]), request([4])], 1, 20)
    slots.admit(seat)
    slots.append(rows_of(0), np.array([[5, 6, 7]]), rows_of(3))
    assert slots.output(0) == [5, 6, 7]
    slots.release(rows_of(0))
    slots.admit(seat)
    assert slots.output(0) == []
    slots.append(rows_of(0), np.array([[8, 9]]), rows_of(2))
    assert slots.output(0) == [8, 9]
    assert slots.ids[0, : slots.num_committed[0]].tolist() == [4, 8, 9]


def test_requests_without_room_never_wait():
    slots = slots_of([request([1], 0), request([2], 1), request([3], 0)], 2, 4)
    assert slots.admit(seat).tolist() == [0]
    assert slots.occupants.tolist() == [1, IDLE]
    assert not slots_of([request([1], 0)], 1, 4).waiting
    assert not slots_of([], 0, 1).waiting


@given(st.lists(st.lists(st.integers(0, 9), max_size=4), min_size=1, max_size=5), st.randoms())
def test_append_writes_each_block_behind_its_own_row_and_nowhere_else(blocks, random):
    slots = slots_of([request([9] * random.randint(1, 5)) for _ in blocks], len(blocks), 12)
    rows = slots.admit(seat)
    random.shuffle(rows)
    expected = {int(r): slots.ids[r, : slots.num_committed[r]].tolist() + b for r, b in zip(rows, blocks, strict=True)}
    counts = np.array([len(b) for b in blocks])
    padded = np.array([b + [-1] * (4 - len(b)) for b in blocks])
    slots.append(rows, padded, counts)
    for row, ids in expected.items():
        assert slots.ids[row, : slots.num_committed[row]].tolist() == ids
    assert (slots.ids >= 0).all(), "padding is never written"


@st.composite
def trees(draw, chains=False):
    """Return one row: tokens, parents, scouts, sources, stop."""
    size = draw(st.integers(0, 6))
    parents = list(range(-1, size - 1)) if chains else [draw(st.integers(-1, i - 1)) for i in range(size)]
    scouts: list[bool] = []
    for parent in parents:
        scouts.append((parent >= 0 and scouts[parent]) or draw(st.integers(0, 4)) == 0)
    tokens = [draw(st.integers(0, 3)) for _ in parents]
    sources = [draw(st.integers(0, 2)) for _ in parents]
    stop = draw(st.sampled_from([0, *(i + 1 for i in range(size) if not scouts[i])]))
    return tokens, parents, scouts, sources, stop


def walk_of(parents, stop):
    """Return the walks from the root to ``stop`` in trees whose parents are given without the root."""
    scored = torch.from_numpy(np.pad(parents + 1, ((0, 0), (1, 0)), constant_values=-1))
    tree = Tree(scored, scored, torch.zeros(len(scored)))
    return Walk(scored.numpy(), tree.depth.numpy(), tree.path(torch.from_numpy(stop)).numpy())


def rooted(values):
    """Return values of scored nodes; that of the root means nothing."""
    return np.pad(values, ((0, 0), (1, 0)), constant_values=8)


def meaning_of(outcome):
    """Return the record of a step that ends so."""
    rows = np.arange(len(outcome.stop))
    draft = Draft(torch.from_numpy(outcome.tokens), torch.from_numpy(outcome.num_nodes))
    return record(outcome, draft, requests=rows, num_committed=rows, shortened=rows > 0, seconds={}, name="")


def resolved(rows, as_chains):
    """Return what becomes of ragged rows, padded with values that mean nothing, and its record; blocks stand whole."""
    width = max(len(row[0]) for row in rows)

    def padded(column, fill):
        return np.array([row[column] + fill(len(row[column])) for row in rows], dtype=np.int64).reshape(
            len(rows), width
        )

    stop = np.array([row[4] for row in rows])
    tokens, next_ids = padded(0, lambda n: [7] * (width - n)), np.arange(len(rows)) + 100
    walk = None if as_chains else walk_of(padded(1, lambda n: list(range(n - 1, width - 1))), stop)
    made = StepOutcome(
        tokens=tokens,
        num_nodes=np.array([len(row[0]) for row in rows]),
        is_scout=rooted(padded(2, lambda n: [n % 2 == 0] * (width - n))).astype(bool),
        source=rooted(padded(3, lambda n: [9] * (width - n))),
        stop=stop,
        next_ids=next_ids,
        walk=walk,
        **emissions(tokens, stop, next_ids, walk, (), np.zeros(len(rows), dtype=np.bool_)),
        judge="",
    )
    assert (made.endings == Ending.NONE).all()
    return made, meaning_of(made)


def assert_outcome_is_the_scalar_one(rows, as_chains):
    made, outcome = resolved(rows, as_chains)
    assert (made.walk is None) == as_chains
    for b, (tokens, parents, scouts, sources, stop) in enumerate(rows):
        wanted = scalar_outcome(tokens, parents, scouts, sources, stop, 100 + b)
        accepted = len(wanted.path) - 1
        assert outcome.num_accepted[b] == accepted
        if made.walk is not None:
            assert made.walk.path[b, : accepted + 1].tolist() == wanted.path
        rest = outcome.tokens.shape[1] - accepted - 1
        assert outcome.tokens[b].tolist() == wanted.block + [-1] * rest
        assert outcome.ranks[b].tolist() == wanted.ranks + [-1] * rest
        assert outcome.path_sources[b].tolist() == wanted.sources + [-1] * rest
        assert outcome.node_sources[b].tolist() == wanted.node_sources + [-1] * (rest + accepted - len(tokens))
        assert outcome.tried_sources[b].tolist() == wanted.tried_sources + [-1] * (rest + accepted - len(tokens))
        assert outcome.num_drafted[b] == wanted.num_drafted
        assert outcome.num_scouts[b] == wanted.num_scouts
        assert outcome.draft_depth[b] == wanted.draft_depth
        assert outcome.num_children_at_stop[b] == wanted.num_children_at_stop
        assert outcome.num_emitted[b] == accepted + 1
        assert outcome.stopped_at_leaf[b] == (wanted.num_children_at_stop == 0)


@settings(max_examples=150)
@given(st.lists(trees(), min_size=1, max_size=4))
def test_outcomes_of_ragged_trees_are_those_of_single_trees(rows):
    assert_outcome_is_the_scalar_one(rows, as_chains=False)


@settings(max_examples=100)
@given(st.lists(trees(chains=True), min_size=1, max_size=4))
def test_chains_give_the_same_outcome_with_and_without_parents(rows):
    assert_outcome_is_the_scalar_one(rows, as_chains=True)
    assert_outcome_is_the_scalar_one(rows, as_chains=False)
