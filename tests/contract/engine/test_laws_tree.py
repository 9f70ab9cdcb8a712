"""Laws and trees against plain arithmetic, entry by entry."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec import Draft, Laws
from specdec.contracts.token_tree import Tree, ancestors_of, is_chain
from specdec.laws import argmax, as_laws, excluding, residual, residual_mass, where
from tests.support.models.scoring import path_to

SIZE = 4


@st.composite
def laws_of(draw, number):
    """Return laws of shape ``[number]`` (tables, points or both) and the same as dense float64 rows."""
    kinds = draw(st.lists(st.booleans(), min_size=number, max_size=number))
    generator = np.random.default_rng(draw(st.integers(0, 2**31)))
    rows = generator.dirichlet(np.full(SIZE, 0.4), size=number) * (generator.random((number, SIZE)) > 0.3)
    rows[:, 0] += rows.sum(-1) == 0
    rows /= rows.sum(-1, keepdims=True)
    points = generator.integers(0, SIZE, number)
    dense = np.where(np.array(kinds)[:, None], np.eye(SIZE)[points], rows)
    if all(kinds):
        return Laws.points(torch.from_numpy(points)), dense
    index = torch.tensor([-1 if kind else i for i, kind in enumerate(kinds)])
    return Laws(torch.from_numpy(rows), index, torch.from_numpy(points)), dense


def assert_equal(laws, dense, rows=slice(None)):
    assert np.abs(laws.dense(SIZE).numpy() - dense)[rows].max(initial=0) < 1e-14


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_laws_are_read_alike_as_tables_and_as_points(data, number):
    laws, dense = data.draw(laws_of(number))
    assert_equal(laws, dense)
    for token in range(SIZE):
        ids = torch.full((number,), token)
        assert np.abs(laws.probs_of(ids).numpy() - dense[:, token]).max() < 1e-15
    assert_equal(laws[torch.arange(number - 1, -1, -1)], dense[::-1])
    assert_equal(as_laws(torch.from_numpy(dense)), dense)
    other, other_dense = data.draw(laws_of(number))
    for dim in (0, 1):
        stacked = Laws.stack([laws, other], dim).dense(SIZE).numpy()
        assert np.abs(stacked - np.stack([dense, other_dense], dim)).max() == 0
    side = np.arange(number) % 2 == 0
    assert_equal(where(torch.from_numpy(side), laws, other), np.where(side[:, None], dense, other_dense))
    both = Laws.stack([laws, other], 1)
    assert_equal(both.gather(torch.from_numpy(side).long()), np.where(side[:, None], other_dense, dense))


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_residuals_are_what_is_left_of_the_target(data, number):
    (target, p), (draft, q) = data.draw(laws_of(number)), data.draw(laws_of(number))
    left = np.maximum(p - q, 0)
    mass = left.sum(-1)
    assert np.abs(residual_mass(target, draft).numpy() - mass).max() < 1e-14
    law = residual(target, draft).dense(SIZE).numpy()
    assert np.isfinite(law).all(), "where nothing is left no NaN appears"
    assert np.abs(law.sum(-1) - 1).max() < 1e-12
    assert (law[p == 0] == 0).all()
    some = mass > 1e-12
    if not target.all_points:
        assert np.abs(law[some] - left[some] / mass[some, None]).max(initial=0) < 1e-9


@settings(max_examples=100, deadline=None)
@given(st.data(), st.integers(1, 5))
def test_excluding_renormalises_what_no_marked_token_carries(data, number):
    target, p = data.draw(laws_of(number))
    generator = np.random.default_rng(data.draw(st.integers(0, 99)))
    tokens, mask = generator.integers(0, SIZE, (number, 3)), generator.random((number, 3)) < 0.5
    law = excluding(target, torch.from_numpy(tokens), torch.from_numpy(mask)).dense(SIZE).numpy()
    for b in range(number):
        left = p[b].copy()
        left[[t for t, marked in zip(tokens[b], mask[b], strict=True) if marked]] = 0
        wanted = left / left.sum() if left.sum() > 0 and not target.all_points else p[b]
        assert np.abs(law[b] - wanted).max() < 1e-12


def test_laws_keep_float64_and_share_rows_of_one_table():
    probs = torch.rand(2, 3, SIZE, dtype=torch.float64)
    laws = Laws.from_probs(probs)
    assert laws.dense().dtype == torch.float64
    assert laws.shape == (2, 3)
    shared = Laws(probs[0], torch.tensor([[0, 0, 2]]), torch.zeros(1, 3, dtype=torch.int64))
    assert torch.equal(shared.dense()[0], probs[0, [0, 0, 2]])
    assert Laws.points(torch.tensor([1])).table.numel() == 0, "greedy laws build nothing as wide as the vocabulary"
    assert Laws.stack([shared[:, 0], shared[:, 1]], 1).table.shape[0] == 6


parents_of = st.lists(st.integers(0, 5), min_size=0, max_size=6).map(
    lambda picks: [min(pick, i) - 1 for i, pick in enumerate(picks)]
)


@pytest.mark.parametrize("shape", [(), (2,), (2, 1)])
def test_dense_laws_are_a_copy(shape):
    laws = Laws.from_probs(torch.full((*shape, 4), 0.25))
    laws.dense().zero_()
    assert laws.table.eq(0.25).all()
    assert torch.equal(laws.dense_view(), laws.dense())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_the_likeliest_id_is_the_lowest_of_equals_and_the_first_nan(dtype):
    logits = torch.tensor([[[1.0, 3.0, 3.0], [1.0, torch.nan, 3.0], [-torch.inf] * 3]], dtype=dtype)
    ids, peaks = argmax(logits)
    assert ids.tolist() == logits.argmax(-1).tolist() == [[1, 1, 0]]
    assert peaks[0, 0] == 3
    assert peaks[0, 1].isnan()
    assert peaks[0, 2] == -torch.inf


@settings(max_examples=150, deadline=None)
@given(parents_of)
def test_ancestors_depths_and_paths_are_those_of_a_walk_to_the_root(parents):
    draft = Draft(torch.arange(len(parents)).unsqueeze(0), torch.tensor([len(parents)]), torch.tensor([parents]).long())
    reach = ancestors_of(draft.parents)[0]
    for i, j in itertools.product(range(len(parents)), repeat=2):
        assert bool(reach[i, j]) == (j in path_to(parents, i))
    tree = draft.tree
    assert draft.after(np.array([9])).tokens.tolist() == [[9, *range(len(parents))]]
    assert tree.above.tolist() == [[parent + 1 for parent in parents]]
    for node in range(tree.size):
        path = [0, *(n + 1 for n in path_to(parents, node - 1))]
        stop = torch.tensor([node])
        assert int(tree.depth_of(stop)) == int(tree.depth[0, node]) == len(path) - 1
        assert tree.path(stop)[0, : len(path)].tolist() == path
        assert torch.nonzero(tree.ancestors[0, node]).flatten().tolist() == path


@pytest.mark.parametrize("parents", [None, [[-1, 0, 1], [-1, 0, 1]]])
def test_chains_stay_chains_behind_the_root(parents):
    tokens = torch.tensor([[1, 2, 3], [4, 5, 6]])
    draft = Draft(tokens, torch.tensor([3, 1]), None if parents is None else torch.tensor(parents))
    tree = draft.tree
    assert tree.parents is None
    assert tree.parents is None
    assert draft.after(np.array([7, 8])).tokens.tolist() == [[7, 1, 2, 3], [8, 4, 5, 6]]
    assert tree.depth.tolist() == [[0, 1, 2, 3]] * 2
    assert tree.is_real.tolist() == [[True] * 4, [True, True, False, False]]
    explicit = Tree(tree.tokens, torch.tensor([[-1, 0, 1, 2]] * 2), tree.num_nodes)
    assert torch.equal(explicit.ancestors, tree.ancestors)
    assert torch.equal(explicit.depth, tree.depth)
    for stop in (torch.tensor([0, 1]), torch.tensor([3, 2])):
        assert torch.equal(explicit.depth_of(stop), tree.depth_of(stop))


def test_one_row_that_branches_makes_a_tree():
    assert is_chain(None)
    assert is_chain(torch.tensor([[-1, 0], [-1, 0]]))
    assert not is_chain(torch.tensor([[-1, 0], [-1, -1]]))
    draft = Draft(torch.zeros(2, 2).long(), torch.tensor([2, 2]), torch.tensor([[-1, 0], [-1, -1]]))
    assert draft.tree.parents.tolist() == [[-1, 0, 1], [-1, 0, 0]]
    assert draft.tree.parents is not None


def test_an_empty_draft_is_its_root():
    draft = Draft.empty(2, torch.device("cpu"))
    tree = draft.after(np.array([4, 5]))
    assert (tree.tokens.tolist(), tree.parents, tree.num_nodes.tolist()) == ([[4], [5]], None, [1, 1])
    assert draft.tree.num_nodes.tolist() == [1, 1]
    assert draft.width == 0
