"""``compare_runs`` tells a numerical tie from a bug, of the engine's or the oracle's."""

import numpy as np
import pytest
import torch

from oracles import TabularLM
from specdec import SpeculativeDecoder
from specdec.contracts import Scores
from specdec.exactness import compare_runs
from tests.reference.tables import random_table

TABLE = random_table(4, 1, 91)
PROMPTS = [[0], [1, 2], [3]]


class Wobbly(TabularLM):
    """Logits that move by up to ``size`` with the width of the pass."""

    dtype = torch.float32  # by which noise is judged

    def __init__(self, table, size):
        super().__init__(table)
        self.size = size

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=()):
        scores = super().score(tokens, parents, num_nodes, cache, rows, want, hidden)
        if scores.logits is None:
            return scores
        logits = scores.logits.clone()
        logits[..., 0] += self.size * (tokens.shape[1] % 3)
        return Scores(logits)


def _runs(oracle):
    return SpeculativeDecoder(oracle).generate(PROMPTS, 6)


def test_equal_runs_are_identical():
    run = _runs(TabularLM(TABLE))
    comparison = compare_runs(TabularLM(TABLE), PROMPTS, run, run.tokens)
    assert comparison.identical
    assert comparison.num_bugs == 0
    assert comparison.table() == "3 of 3 requests are identical"


def test_without_noise_every_divergence_is_a_bug():
    run = _runs(TabularLM(TABLE))
    other = [list(ids) for ids in run.tokens]
    other[1][3] = (other[1][3] + 1) % 4
    comparison = compare_runs(TabularLM(TABLE), PROMPTS, run, other)
    (found,) = comparison.divergences
    assert (found.request, found.position, found.first, found.second) == (1, 3, run.tokens[1][3], other[1][3])
    assert found.noise == 0.0
    assert found.verdict == "state bug"
    logits = np.sort(np.log(TABLE[run.tokens[1][2]]))
    assert found.margin == pytest.approx(logits[-1] - logits[-2], abs=1e-12)
    assert "state bug" in comparison.table().splitlines()[2]


VERDICTS = [
    (2e-4, "numerical tie"),
    (-2e-4, "numerical tie"),
    (1e-7, "state bug"),
    (0.5, "the oracle's scores depend on the pass"),
]


@pytest.mark.parametrize(("size", "verdict"), VERDICTS)
def test_a_divergence_is_a_tie_only_where_the_noise_bridges_the_gap(size, verdict):
    near = np.array([[0.4, 0.4 * np.exp(-1e-4), 0.12, 0.08]] * 4)
    near /= near.sum(-1, keepdims=True)
    oracle = Wobbly(near, size)
    (found,) = compare_runs(oracle, [[2]], [[0, 0]], [[0, 1]]).divergences
    assert found.position == 1
    assert found.margin == pytest.approx(abs(1e-4 + size), rel=1e-6)
    assert found.noise == pytest.approx(abs(size), rel=1e-6)
    assert found.verdict == verdict


def test_ids_far_from_the_best_are_a_bug_whatever_the_noise_between_the_best_two():
    near = np.array([[0.45, 0.4499, 0.06, 0.0401]] * 4)
    (found,) = compare_runs(Wobbly(near, 1e-3), [[2]], [[0]], [[2]]).divergences
    assert found.verdict == "state bug"
    assert found.gap > found.margin


def test_a_run_that_ends_early_is_a_bug():
    (found,) = compare_runs(Wobbly(TABLE, 1e-3), [[2]], [[0, 1]], [[0]]).divergences
    assert (found.position, found.first, found.second) == (1, 1, None)
    assert found.verdict == "state bug"


def test_different_numbers_of_outputs_are_refused():
    with pytest.raises(ValueError, match="3, 2 and 3"):
        compare_runs(TabularLM(TABLE), PROMPTS, [[1], [2]], [[1], [2], [3]])
