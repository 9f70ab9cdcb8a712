"""The published formulas, held to published figures, edge cases and each other."""

import numpy as np
import pytest

from specdec import theory

# Leviathan et al. 2023 (arXiv 2211.17192), Table 1: alpha, gamma, operations, speed at c = c_hat = 0.
TABLE_1 = [
    (0.6, 2, 1.53, 1.96),
    (0.7, 3, 1.58, 2.53),
    (0.8, 2, 1.23, 2.44),
    (0.8, 5, 1.63, 3.69),
    (0.9, 2, 1.11, 2.71),
    (0.9, 10, 1.60, 6.86),
]


@pytest.mark.parametrize(("alpha", "gamma", "operations", "speed"), TABLE_1)
def test_published_table(alpha: float, gamma: int, operations: float, speed: float) -> None:
    assert round(theory.walltime_improvement(alpha, gamma, c=0.0), 2) == speed
    assert round(theory.operations_factor(alpha, gamma, c_hat=0.0), 2) == operations


def test_expected_tokens_at_the_edges() -> None:
    assert theory.expected_tokens(0.0, 5) == 1.0
    assert theory.expected_tokens(1.0, 5) == 6.0
    assert theory.expected_tokens(0.7, 0) == 1.0
    assert theory.expected_tokens(0.8, 5) == pytest.approx((1 - 0.8**6) / 0.2, rel=1e-12)


def test_walltime_and_operations_without_a_draft_are_one() -> None:
    assert theory.walltime_improvement(0.9, 0, c=0.3) == 1.0
    assert theory.operations_factor(0.9, 0, c_hat=0.3) == 1.0


@pytest.mark.parametrize("alpha", [0.1, 0.5, 0.8, 0.95, 0.999])
def test_optimal_gamma_beats_every_other_length(alpha: float) -> None:
    for c in (0.001, 0.01, 0.05, 0.3, 0.7):
        best = theory.optimal_gamma(alpha, c)
        speeds = [theory.walltime_improvement(alpha, gamma, c) for gamma in range(3 * best + 50)]
        assert int(np.argmax(speeds)) == best, c


def test_optimal_gamma_is_zero_when_nothing_helps() -> None:
    assert theory.optimal_gamma(0.5, 0.5) == 0
    assert theory.optimal_gamma(0.5, 2.0) == 0
    assert theory.optimal_gamma(0.0, 0.0) == 0
    assert theory.optimal_gamma(1.0, 1.0) == 0


@pytest.mark.parametrize(("alpha", "c"), [(0.5, 0.0), (1.0, 0.2)])
def test_optimal_gamma_refuses_an_unbounded_optimum(alpha: float, c: float) -> None:
    with pytest.raises(ValueError, match="no draft length is best"):
        theory.optimal_gamma(alpha, c)


def test_acceptance_of_the_two_ways_of_drawing() -> None:
    p, q = [0.6, 0.2, 0.1, 0.1], [0.7, 0.2, 0.05, 0.05]
    assert theory.acceptance(p, q) == pytest.approx(0.9, abs=1e-12)
    assert theory.coupled_acceptance(p, q) == pytest.approx(0.8818, abs=5e-5)
    assert theory.coupled_acceptance(p, p) == pytest.approx(1.0, abs=1e-12)
    assert theory.coupled_acceptance([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]) == 0.0
    assert theory.coupled_acceptance([0.25, 0.75], [0.0, 1.0]) == pytest.approx(0.75, abs=1e-12)


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda: theory.expected_tokens(1.1, 2), "alpha"),
        (lambda: theory.expected_tokens(-0.1, 2), "alpha"),
        (lambda: theory.expected_tokens(float("nan"), 2), "alpha"),
        (lambda: theory.expected_tokens(0.5, -1), "gamma"),
        (lambda: theory.expected_tokens(0.5, True), "gamma"),
        (lambda: theory.expected_tokens(0.5, 1.5), "gamma"),  # type: ignore[arg-type]
        (lambda: theory.walltime_improvement(0.5, 2, -0.1), "c must be a finite number, 0 or more"),
        (lambda: theory.operations_factor(0.5, 2, float("inf")), "c_hat"),
        (lambda: theory.optimal_gamma(2.0, 0.1), "alpha"),
        (lambda: theory.expected_tokens(0.5, float("inf")), "gamma"),  # type: ignore[arg-type]
        (lambda: theory.expected_tokens(0.5, float("nan")), "gamma"),  # type: ignore[arg-type]
        (lambda: theory.lockstep_expected_tokens(0.5, 2, 0), "batch"),
        (lambda: theory.predicted_speedup(0.0, 1.0), "block_efficiency"),
        (lambda: theory.predicted_speedup(1.0, 0.0), "width_cost"),
        (lambda: theory.predicted_speedup(1.0, 1.0, -1.0), "propose_cost"),
        (lambda: theory.WidthCurve((2, 3), (1.0, 1.1)), "num_nodes must ascend from 1"),
        (lambda: theory.WidthCurve((1, 3), (1.0,)), "num_nodes must ascend from 1"),
        (lambda: theory.WidthCurve((1, 2, 3), (1.0, 1.2, 1.1)), "never fall"),
        (lambda: theory.WidthCurve((1, 2), (1.0, float("nan"))), "never fall"),
        (lambda: theory.WidthCurve((1,), (1.0,), 0), "batch_size"),
        (lambda: theory.acceptance([0.5, 0.6], [0.5, 0.5]), "target_probs"),
        (lambda: theory.coupled_acceptance([0.5, 0.5], [1.0]), "draft_probs"),
    ],
)
def test_bad_input_names_the_argument(call: object, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        call()  # type: ignore[operator]
