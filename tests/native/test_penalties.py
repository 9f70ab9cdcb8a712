"""Native penalties: those of the torch operations, bit for bit, in every build."""

from typing import Any

import numpy as np
import pytest
import torch

from specdec.kernels import REFERENCE, Past, best_kernels
from specdec.kernels.compiled import NATIVE_DTYPES, NativeLaws, laws_library
from tests.native.build import SHARED, builds
from tests.support.backends import needed_kernels

BUILDS = builds()
both_types = pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
STRENGTHS = ((1.0, 1.3, 0.8), (0.0, 0.5, -1.0), (0.0, 0.7, -0.2))  # of each penalty, nothing among them

needed_kernels()


def past_of(generator: np.random.Generator, batch: int, length: int, size: int) -> Past:
    """Return ragged rows with repeated ids, some without penalties."""
    rows = np.flatnonzero(generator.random(batch) < 0.8)
    ends = generator.integers(0, length + 1, (len(rows), 1))
    stands = np.arange(length) < ends
    strengths = np.array([generator.choice(values, len(rows)) for values in STRENGTHS]).reshape(3, len(rows))
    ids = np.where(stands, generator.integers(0, size, (len(rows), length)), 0)
    produced = stands & (np.arange(length) >= generator.integers(0, length + 1, (len(rows), 1)))
    none = np.zeros(0, dtype=np.int64)
    return Past(rows, strengths, ids, stands, produced, none, none, False)


def asked(generator: np.random.Generator, dtype: torch.dtype, size: int) -> tuple[Any, ...]:
    """Return logits, drafted ids, the paths that they lie on, and what stands before."""
    batch, width, length = int(generator.integers(1, 6)), int(generator.integers(0, 7)), int(generator.integers(1, 30))
    logits = torch.from_numpy(generator.normal(0, 2, (batch, width + 1, size))).to(dtype)
    logits[torch.from_numpy(generator.random(logits.shape) < 0.1)] = -torch.inf
    logits[torch.from_numpy(generator.random(logits.shape) < 0.1)] = 0.0
    tokens = torch.from_numpy(generator.integers(0, size, (batch, width)))
    paths = torch.from_numpy(generator.random((batch, width + 1, width)) < 0.4)
    return logits, tokens, paths, past_of(generator, batch, length, size)


@both_types
@pytest.mark.parametrize("size", [2, 17, 300])
def test_penalties_are_those_of_torch_operations(size, dtype):
    generator = np.random.default_rng(size)
    changed = 0
    for _ in range(60):
        logits, *rest = asked(generator, dtype, size)
        found, wanted = logits.clone(), logits.clone()
        best_kernels().penalise(found, *rest)
        REFERENCE.penalise(wanted, *rest)
        assert torch.equal(found, wanted)
        changed += int((found != logits).sum())
    assert changed > 300


def test_every_build_gives_the_same_bits():
    generator = np.random.default_rng(2)
    natives = [NativeLaws(build.library(SHARED / "laws.cpp")) for build in BUILDS]
    shipped = NativeLaws(laws_library())
    for _ in range(10):
        logits, tokens, paths, past = asked(generator, torch.float32, 50)
        given = past.ids, past.stands, past.produced, tokens[past.rows], paths[past.rows], past.strengths
        wanted = logits[past.rows]
        shipped.penalise(wanted, *given)
        for native in natives:
            found = logits[past.rows]
            native.penalise(found, *given)
            assert torch.equal(found, wanted)


def test_calls_that_cannot_be_are_refused():
    native = NativeLaws(laws_library())
    logits, ids, stands = torch.zeros(1, 2, 5), np.zeros((1, 3), dtype=np.int64), np.ones((1, 3), dtype=np.bool_)
    drafted, paths = torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 2, 1, dtype=torch.bool)
    strengths = np.ones((3, 1))
    native.penalise(logits, ids, stands, stands, drafted, paths, strengths)
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="beyond the 5 of the vocabulary"):
            native.penalise(logits, ids + wrong, stands, stands, drafted, paths, strengths)
        with pytest.raises(IndexError, match="beyond the 5 of the vocabulary"):
            native.penalise(logits, ids, stands, stands, drafted + wrong, paths, strengths)
    for others in (
        (logits.half(), ids, stands, stands, drafted, paths, strengths),
        (logits.mT.contiguous().mT, ids, stands, stands, drafted, paths, strengths),
        (logits, ids[:, :2], stands, stands, drafted, paths, strengths),
        (logits, ids.astype(np.int32), stands, stands, drafted, paths, strengths),
        (logits, ids, stands, stands.astype(np.int64), drafted, paths, strengths),
        (logits, ids, stands, stands, drafted.int(), paths, strengths),
        (logits, ids, stands, stands, drafted, paths[:, :1], strengths),
        (logits, ids, stands, stands, drafted, paths, strengths[:2]),
    ):
        with pytest.raises(ValueError, match=r"float16 is neither|Before\.\w+ (is|has the shape) .*(read|contig|not)"):
            native.penalise(*others)
