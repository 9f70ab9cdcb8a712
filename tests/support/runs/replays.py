"""Replays of sampled records beside enumerated laws and beside runs."""

import math

import numpy as np
import pytest

from specdec.traces import DenseRecords, Replay
from tests.reference.block_laws import Joint, begins_given

# With two-sided z this far out a true mean is flagged once in a million tests.
ALARM = 4.9


def weights_of(made: Replay) -> np.ndarray:
    """Return the probability of each step of a replay; 1 where its course is certain."""
    return made.columns.get("probability", np.ones(len(made.columns["request"])))


def assert_steps_are_those_of_the_law(dense: DenseRecords, made: Replay, law: Joint, prompt: int = 2) -> None:
    """Fail unless steps begin where a joint law says, and what they emit makes up the outputs.

    Args:
        dense: of prompts of one length.
        made: its replay.
        law: of blocks and of where they begin.
        prompt: ids of each prompt.
    """
    assert sum(law.values()) == pytest.approx(1)
    for request, output in enumerate(dense.outputs):
        rows, begins = made.columns["request"] == request, np.zeros(len(output))
        begins[made.columns["num_committed"][rows] - prompt] = weights_of(made)[rows]
        np.testing.assert_allclose(begins, begins_given(law, tuple(output)), atol=1e-10)
    emitted = (weights_of(made) * made.columns["num_emitted"]).sum()
    assert emitted == pytest.approx(sum(map(len, dense.outputs)))
    assert not made.num_steps_error
    assert made.claim.endswith("given the outputs, which are draws")


def of_requests(made: Replay, name: str | None = None) -> np.ndarray:
    """Return the expected steps of each request, or what a column of theirs sums up to."""
    columns = made.columns
    return np.bincount(columns["request"], weights_of(made) * (1 if name is None else columns[name]))


def gap(expected: np.ndarray, ran: np.ndarray) -> float:
    """Return how far two means are apart, in standard errors."""
    error = math.sqrt(sum(values.var(ddof=1) / len(values) for values in (expected, ran)))
    return abs(float(expected.mean() - ran.mean())) / error
