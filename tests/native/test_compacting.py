"""Trees without their absent nodes: compiled code leaves what numpy's way does, and refuses what cannot be."""

import numpy as np
import pytest

from specdec.drafting.assembly import compacted
from specdec.native import compiled_compacting


@pytest.fixture(autouse=True)
def _native() -> None:
    if compiled_compacting() is None:
        pytest.skip("compiled code is not to be had here: no compiler, or another processor")


def trees(generator, rows, size):
    """Return the ids of ragged trees of one plan, its parents and the laws' owners."""
    parents = np.sort([int(generator.integers(-1, node)) for node in range(size)]).astype(np.int64)
    owners = np.cumsum(np.diff(parents, prepend=-1) > 0)
    ids = generator.integers(0, 50, (rows, size))
    ids[generator.random((rows, size)) < 0.25] = -1
    for node, above in enumerate(parents):
        if above >= 0:
            ids[ids[:, above] < 0, node] = -1
    return ids, parents, owners


def by_numpy(
    ids: np.ndarray, parents: np.ndarray, owners: np.ndarray, num_laws: int, places: np.ndarray, batch: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return what ``specdec.native.NativeCompacting`` does."""
    size, first = len(parents), np.zeros((batch, 1), dtype=np.int64)
    whole = np.full((batch, size), -1)
    whole[places], first[places, 0] = ids, num_laws * np.arange(len(places))
    kept = compacted(whole >= 0, parents)
    tokens = np.where(kept.is_padding, 0, np.take_along_axis(whole, kept.order, 1))
    law = np.where(kept.is_padding, -1, first + owners[kept.order])
    return kept.num_nodes, tokens, kept.parents, law, ~kept.is_padding


def test_what_is_left_is_what_numpy_leaves():
    generator, native = np.random.default_rng(0), compiled_compacting()
    assert native is not None
    widths, absent = set(), 0
    for case in range(200):
        batch, size = int(generator.integers(1, 7)), case % 9
        places = np.flatnonzero(generator.random(batch) < 0.8)
        ids, parents, owners = trees(generator, len(places), size)
        call = ids, parents, owners, int(owners.max(initial=0)) + 1, places, batch
        for ours, theirs in zip(native(*call), by_numpy(*call), strict=True):
            assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert ours.tolist() == theirs.tolist()
        widths.add(native(*call).tokens.shape[1])
        absent += int((ids < 0).sum())
    assert widths >= set(range(8))
    assert absent > 500


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("ids", np.zeros((2, 3), dtype=np.int32)),
        ("parents", np.array([-1, 0])),
        ("parents", np.array([-1, 1, 1])),
        ("owners", np.zeros(4, dtype=np.int64)),
        ("places", np.array([0.9, 2.2])),
        ("places", np.array([0])),
        ("places", np.array([0, 3])),
        ("places", np.array([-1, 1])),
    ],
)
def test_what_does_not_fit_is_refused(name, value):
    native = compiled_compacting()
    assert native is not None
    given = {
        "ids": np.zeros((2, 3), dtype=np.int64),
        "parents": np.array([-1, 0, 0]),
        "owners": np.array([0, 1, 1]),
        "num_laws": 2,
        "places": np.array([0, 2]),
        "batch": 3,
    }
    assert native(**given).num_nodes.tolist() == [3, 0, 3]
    with pytest.raises(ValueError, match="must"):
        native(**given | {name: value})
