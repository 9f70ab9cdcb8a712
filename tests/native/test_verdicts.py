"""Native verdicts on chains and trees: those of the torch operations, for whatever else the batch holds."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch

from specdec.contracts import Draft, Verdict
from specdec.laws import Laws
from specdec.native import NATIVE_DTYPES, NativeVerdicts, Offered, compiled_verdicts, native_for
from specdec.rules import MultiDraft, Standard
from tests.native.build import SHARED, builds
from tests.support.backends import laws_by

BUILDS = builds()
NAN = float("nan")
NEAR = {torch.float64: 1e-15, torch.float32: 1e-6}
both_types = pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)


@pytest.fixture(autouse=True)
def _native() -> Iterator[None]:
    with laws_by("native"):
        yield


def chosen(generator: np.random.Generator, batch: int, width: int, size: int, dtype: torch.dtype) -> tuple[Draft, Laws]:
    """Return ragged chains of chosen ids, and laws of a target: rows with zeros, of one id, shared ones, and points."""
    table = generator.random((7, size)) * (generator.random((7, size)) < 0.7)
    table[:, generator.integers(size)] = 1.0
    table[0], table[0, generator.integers(size)] = 0, 1
    probs = torch.from_numpy(table / table.sum(1, keepdims=True)).to(dtype)
    at = torch.from_numpy(generator.integers(-1, 7, (batch, width + 1)))
    ids = torch.from_numpy(generator.integers(0, size, (batch, width + 1)))
    tokens = torch.from_numpy(generator.integers(0, size, (batch, width)))
    tokens = torch.where(torch.from_numpy(generator.random((batch, width)) < 0.4), ids[:, :width], tokens)
    return Draft(tokens, torch.from_numpy(generator.integers(0, width + 1, batch))), Laws(probs, at, ids)


def drawn(generator: np.random.Generator, batch: int, width: int, size: int, dtype: torch.dtype) -> tuple[Draft, Laws]:
    """Return the same with ids drawn from laws of their own: some equal to the target's, some points."""
    draft, laws = chosen(generator, batch, width, size, dtype)
    mixed = torch.from_numpy(generator.random((5, size))).to(dtype) * (laws.table[:5] + 0.01)
    table = torch.cat([mixed / mixed.sum(1, keepdim=True), laws.table])
    own = torch.from_numpy(generator.integers(-1, 5, (batch, width)))
    same = torch.from_numpy(generator.random((batch, width)) < 0.3) & (laws.index[:, :width] >= 0)
    index = torch.where(same, laws.index[:, :width] + 5, own)
    numbers = Laws(table, index.clamp(min=0), torch.zeros_like(index))
    ids = torch.from_numpy(generator.random((batch, width, 1))).to(dtype)
    if width:
        tokens = (numbers.dense(size).cumsum(-1) < ids).sum(-1).clamp(max=size - 1)
        draft = Draft(torch.where(index < 0, draft.tokens, tokens), draft.num_nodes)
    return replace(draft, laws=Laws(table, index, draft.tokens)), laws


def grown(generator: np.random.Generator, draft: Draft) -> Draft:
    """Return a draft's nodes as trees: any parents, scouts, two sources, ids drawn without their siblings'."""
    batch, width = draft.tokens.shape
    above = [[int(generator.integers(-1, node)) for node in range(width)] for _ in range(batch)]
    parents = torch.tensor(above, dtype=torch.int64).reshape(batch, width)
    scouts, without, source = (torch.from_numpy(generator.random((batch, width)) < p) for p in (0.2, 0.7, 0.3))
    names = ("a", "b")
    return replace(
        draft, parents=parents, is_scout=scouts, without_replacement=without, source=source.long(), source_names=names
    )


def judged(backend: str, draft: Draft, laws: Laws) -> Verdict:
    with laws_by(backend):
        return (Standard() if draft.parents is None else MultiDraft())(draft, laws)


@both_types
@pytest.mark.parametrize("make", [chosen, drawn], ids=["chosen", "drawn"])
@pytest.mark.parametrize("size", [1, 2, 16, 33, 300])
def test_verdicts_on_chains_are_those_of_torch_operations(size, make, dtype):
    generator = np.random.default_rng(size)
    for case in range(40):
        batch, width = int(generator.integers(1, 5)), case % 5
        draft, laws = make(generator, batch, width, size, dtype)
        found, wanted = (judged(backend, draft, laws) for backend in ("native", "torch"))
        assert found.stop_probs.dtype == torch.float64
        assert torch.equal(found.stop_probs, wanted.stop_probs)
        for node in range(width + 1):
            stop = torch.full((batch,), node).minimum(draft.num_nodes)
            own, other = found.next_law(stop).dense(size), wanted.next_law(stop).dense(size)
            assert own.dtype == dtype
            assert (own - other).abs().max() <= NEAR[dtype]
            assert torch.equal(own > 0, other > 0), "what is rejected or not allowed has probability exactly 0"


@both_types
@pytest.mark.parametrize("make", [chosen, drawn], ids=["chosen", "drawn"])
@pytest.mark.parametrize("size", [1, 2, 16, 33, 300])
def test_verdicts_on_trees_are_those_of_torch_operations(size, make, dtype):
    generator = np.random.default_rng(size)
    for case in range(40):
        batch, width = int(generator.integers(1, 5)), case % 8
        draft, laws = make(generator, batch, width, size, dtype)
        draft = grown(generator, draft)
        found, wanted = (judged(backend, draft, laws) for backend in ("native", "torch"))
        assert (found.stop_probs - wanted.stop_probs).abs().max() <= NEAR[dtype]
        for node in range(width + 1):
            stop = torch.full((batch,), node).minimum(draft.num_nodes)
            own, other = found.next_law(stop).dense(size), wanted.next_law(stop).dense(size)
            assert (own - other).abs().max() <= NEAR[dtype]


@pytest.mark.parametrize("backend", ["native", "torch"])
def test_an_id_that_was_drawn_meets_a_law_that_is_nan(backend):
    probs = torch.full((1, 2, 4), 0.25, dtype=torch.float64)
    probs[0, 0] = NAN
    drawn_from = Laws.from_probs(torch.full((1, 1, 4), 0.25, dtype=torch.float64))
    draft = Draft(torch.tensor([[1]]), torch.tensor([1]), laws=drawn_from)
    assert judged(backend, draft, Laws.from_probs(probs)).stop_probs.isnan().all()


@pytest.mark.parametrize("backend", ["native", "torch"])
@pytest.mark.parametrize("rule", [Standard(), MultiDraft()], ids=lambda rule: rule.name)
def test_to_a_point_ids_are_compared_beside_rows_that_draw_too(rule, backend):
    own = torch.tensor([[[1, 3e-8, 0, 0]], [[0.25, 0.25, 0.25, 0.25]]], dtype=torch.float32)
    target = Laws(torch.full((1, 4), 0.25), torch.tensor([[-1, -1], [0, 0]]), torch.zeros(2, 2, dtype=torch.int64))
    draft = Draft(torch.tensor([[1], [1]]), torch.tensor([1, 1]), laws=Laws.from_probs(own))
    with laws_by(backend):
        assert rule(draft, target).stop_probs.tolist() == [[1, 0], [0, 1]]


def test_what_padding_was_drawn_from_is_not_read():
    draft, laws = drawn(np.random.default_rng(8), 2, 3, 20, torch.float64)
    assert draft.laws is not None
    index, point = draft.laws.index.clone(), draft.laws.point.clone()
    index[:, 1:], point[:, 1:] = -1, -1
    odd = replace(draft, num_nodes=torch.tensor([1, 1]), laws=Laws(draft.laws.table, index, point))
    assert torch.equal(judged("native", odd, laws).stop_probs, judged("torch", odd, laws).stop_probs)
    narrow = replace(odd, laws=Laws(draft.laws.table, index.int(), point.clamp(min=0)))
    assert torch.equal(judged("native", narrow, laws).stop_probs, judged("native", odd, laws).stop_probs)


def test_laws_of_another_type_than_the_targets_are_judged_by_torch_operations():
    draft, laws = drawn(np.random.default_rng(8), 3, 3, 20, torch.float64)
    assert draft.laws is not None
    other = replace(draft, laws=Laws(draft.laws.table.float(), draft.laws.index, draft.laws.point))
    assert torch.equal(judged("native", other, laws).stop_probs, judged("torch", other, laws).stop_probs)


@both_types
def test_a_law_that_is_nan_gives_nan_and_leaves_its_neighbours_alone(dtype):
    probs = torch.full((2, 3, 4), 0.25, dtype=dtype)
    probs[0, 1] = NAN
    verdict = Standard()(Draft(torch.tensor([[1, 2], [1, 2]]), torch.tensor([2, 2])), probs)
    assert verdict.stop_probs.isnan().tolist() == [[False, True, True], [False, False, False]]
    following = verdict.next_law(torch.tensor([1, 1])).dense()
    assert following.isnan().all(-1).tolist() == [True, False]
    assert following[1, 2] == 0


def test_a_batch_gives_each_row_the_bits_that_it_has_alone():
    draft, laws = drawn(np.random.default_rng(5), 6, 4, 100, torch.float32)
    assert draft.laws is not None
    stop = draft.num_nodes // 2
    whole = judged("native", draft, laws)
    for row in range(6):
        own = slice(row, row + 1)
        part = Draft(draft.tokens[own], draft.num_nodes[own], laws=draft.laws[own])
        alone = judged("native", part, laws[own])
        assert torch.equal(alone.stop_probs, whole.stop_probs[own])
        assert torch.equal(alone.next_law(stop[own]).table, whole.next_law(stop).table[own])


def test_every_build_gives_the_same_bits():
    draft, laws = drawn(np.random.default_rng(6), 4, 3, 47, torch.float32)
    assert draft.laws is not None
    table, own = (laws.table, laws.index, laws.point), (draft.laws.table, draft.laws.index, draft.laws.point)
    tree = grown(np.random.default_rng(7), draft)
    offers = Offered(draft.tokens, draft.num_nodes, own)
    branching = offers._replace(above=tree.tree.above, is_scout=tree.is_scout, source=tree.source)
    natives = [NativeVerdicts(build.library(SHARED / "laws.cpp")) for build in BUILDS]
    shipped = compiled_verdicts()
    assert shipped is not None
    for native in natives:
        for offered in (offers, branching, branching._replace(without_replacement=tree.without_replacement)):
            assert torch.equal(native.stops(table, offered), shipped.stops(table, offered))
            for stop in (draft.num_nodes, torch.zeros_like(draft.num_nodes)):
                assert torch.equal(native.next_laws(table, offered, stop), shipped.next_laws(table, offered, stop))


def test_calls_that_cannot_be_are_refused():
    native = compiled_verdicts()
    assert native is not None
    probs = torch.full((1, 2, 3), 1 / 3)
    laws, offers = Laws.from_probs(probs), Offered(torch.tensor([[1]]), torch.tensor([1]))
    table = laws.table, laws.index, laws.point
    assert native_for(table) is not None
    assert native_for((laws.table.half(), *table[1:])) is None
    assert native_for((laws.table, laws.index.int(), laws.point)) is None
    for wrong in (-1, 3):
        with pytest.raises(IndexError, match="beyond"):
            native.stops(table, offers._replace(tokens=torch.tensor([[wrong]])))
        with pytest.raises(IndexError, match="beyond"):
            native.next_laws(table, offers, torch.tensor([wrong]))
        with pytest.raises(IndexError, match="beyond"):
            native.stops((laws.table, torch.tensor([[0, -1]]), torch.tensor([[0, wrong]])), offers)
    with pytest.raises(IndexError, match="beyond"):
        native.stops((laws.table, laws.index + 1, laws.point), offers)
    for above in (-1, 1):
        with pytest.raises(IndexError, match="a parent that does not come before its node"):
            native.stops(table, offers._replace(above=torch.tensor([[above]])))
    own = torch.full((1, 3), 1 / 3), torch.tensor([[0]]), torch.tensor([[0]])
    native.stops(table, offers._replace(drawn=own))
    with pytest.raises(IndexError, match="beyond"):
        native.stops(table, offers._replace(drawn=(own[0], own[1] + 1, own[2])))
    with pytest.raises(ValueError, match=r"drawn are torch.float64 over 3 ids, and the target's laws torch.float32"):
        native.stops(table, offers._replace(drawn=(own[0].double(), *own[1:])))
    with pytest.raises(ValueError, match=r"drawn are torch.float32 over 2 ids"):
        native.next_laws(table, offers._replace(drawn=(own[0][:, :2], *own[1:])), offers.num_nodes)
    with pytest.raises(ValueError, match=r"num_nodes must be int64 \(1,\) on the CPU, not torch.int32"):
        native.stops(table, offers._replace(num_nodes=offers.num_nodes.int()))
    with pytest.raises(ValueError, match=r"is_scout must be bool \(1, 1\) on the CPU, not torch.bool \(1, 2\)"):
        native.stops(table, offers._replace(is_scout=torch.zeros(1, 2, dtype=torch.bool)))
    with pytest.raises(ValueError, match=r"index must be int64 \(1, 3\) on the CPU"):
        native.stops(table, offers._replace(tokens=torch.tensor([[1, 1]])))
    with pytest.raises(ValueError, match=r"not torch.float16 on cpu"):
        native.next_laws((laws.table.half(), *table[1:]), offers, offers.num_nodes)
