"""Native penalties: those of the torch operations, bit for bit, in every build."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from specdec.contracts import Adjustments
from specdec.kernels import REFERENCE, NativeKernels, best_kernels
from specdec.kernels.compiled import NATIVE_DTYPES
from tests.native.build import SHARED, builds
from tests.support.backends import needed_kernels

BUILDS = builds()
both_types = pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
STRENGTHS = ((1.0, 1.3, 0.8), (0.0, 0.5, -1.0), (0.0, 0.7, -0.2))  # of each penalty, nothing among them

needed_kernels()


def past_of(generator: np.random.Generator, batch: int, length: int, size: int) -> Adjustments:
    """Return ragged rows with repeated ids, and no ids beyond them; some without penalties."""
    ends = generator.integers(0, length + 1, batch)
    stands = np.arange(length) < ends[:, None]
    strengths = np.array([generator.choice(values, batch) for values in STRENGTHS])
    strengths[:, generator.random(batch) < 0.2] = [[1.0], [0.0], [0.0]]
    ids = np.where(stands, generator.integers(0, size, (batch, length)), -7)
    none, nothing = np.zeros(0, dtype=np.int64), np.zeros(batch)
    ends_of_biases = np.zeros(batch, dtype=np.int64)
    return Adjustments(
        ids, ends, generator.integers(0, length + 1, batch), strengths, ends_of_biases, none, none * 1.0, nothing, none
    )


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
    natives = [NativeKernels(build.library(SHARED / "laws.cpp")) for build in BUILDS]
    for _ in range(10):
        logits, *rest = asked(generator, torch.float32, 50)
        wanted = logits.clone()
        best_kernels().penalise(wanted, *rest)
        for native in natives:
            found = logits.clone()
            native.penalise(found, *rest)
            assert torch.equal(found, wanted)


def test_calls_that_cannot_be_are_refused():
    native, ids, none = NativeKernels(), np.zeros((2, 3), dtype=np.int64), np.zeros(0, dtype=np.int64)
    logits, paths = torch.zeros(2, 2, 5), torch.ones(2, 2, 1, dtype=torch.bool)
    drafted, numbers = torch.zeros(2, 1, dtype=torch.int64), np.array([3, 2])
    strengths = np.array([[1.3, 1.0], [0.0, 0.0], [0.0, 0.0]])
    past = Adjustments(ids, numbers, numbers, strengths, none, none, none, none, none)
    foreign = np.array([[0], [9]])
    native.penalise(logits, drafted + torch.from_numpy(foreign), paths, replace(past, ids=ids + foreign))
    for wrong in (-1, 5):
        with pytest.raises(IndexError, match="beyond the 5 of the vocabulary"):
            native.penalise(logits, drafted, paths, replace(past, ids=ids + wrong))
        with pytest.raises(IndexError, match="beyond the 5 of the vocabulary"):
            native.penalise(logits, drafted + wrong, paths, past)
        with pytest.raises(IndexError, match=r"; \[-?\d, 2\] of 3 ids stand"):
            native.penalise(logits, drafted, paths, replace(past, num_committed=np.array([wrong, 2])))
    for others in (
        (logits.mT.contiguous().mT, drafted, paths, past),
        (logits, drafted, paths, replace(past, ids=ids.astype(np.int32))),
        (logits, drafted, paths, replace(past, num_committed=numbers[:1])),
        (logits, drafted.int(), paths, past),
        (logits, drafted, paths[:, :1], past),
        (logits, drafted, paths, replace(past, penalties=strengths[:2])),
    ):
        with pytest.raises(ValueError, match=r"Before\.\w+ (is|has the shape) .*(read|contig|not)"):
            native.penalise(*others)
