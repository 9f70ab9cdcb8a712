"""The best acceptance that several candidates allow: published figures, two routes to one number, edge cases."""

import itertools

import numpy as np
import pytest

from specdec import theory

P, Q = [0.6, 0.2, 0.1, 0.1], [0.7, 0.2, 0.05, 0.05]
RANDOM = [np.random.default_rng(seed).dirichlet(np.full(4, 0.5), size=2) for seed in range(8)]


@pytest.mark.parametrize(
    ("num_draws", "independent", "without"), [(1, 0.9, 0.9), (2, 0.99, 1.0), (3, 1.0, 1.0)], ids=str
)
def test_the_figures_of_the_example(num_draws, independent, without):
    assert theory.transport_optimum(P, Q, num_draws) == pytest.approx(independent, abs=1e-9)
    assert theory.independent_draws_optimum(P, Q, num_draws) == pytest.approx(independent, abs=1e-12)
    assert theory.transport_optimum(P, Q, num_draws, replacement=False) == pytest.approx(without, abs=1e-9)


def smallest_over_all_subsets(p, q, num_draws):
    """Return min over every H of p(H) + 1 - q(H)^k, by trying them all."""
    masks = np.array(list(itertools.product([0, 1], repeat=len(p))))
    return float((masks @ p + 1 - (masks @ q) ** num_draws).min())


@pytest.mark.parametrize("laws", RANDOM, ids=range(len(RANDOM)))
def test_the_programme_its_dual_and_all_subsets_agree(laws):
    p, q = laws
    for num_draws in (1, 2, 3):
        wanted = smallest_over_all_subsets(p, q, num_draws)
        assert theory.independent_draws_optimum(p, q, num_draws) == pytest.approx(wanted, abs=1e-12)
        assert theory.transport_optimum(p, q, num_draws) == pytest.approx(wanted, abs=1e-8)


@pytest.mark.parametrize("laws", RANDOM, ids=range(len(RANDOM)))
def test_one_draw_is_the_standard_rules_acceptance_and_more_draws_never_hurt(laws):
    p, q = laws
    for replacement in (True, False):
        values = [theory.transport_optimum(p, q, k, replacement=replacement) for k in (1, 2, 3)]
        assert values[0] == pytest.approx(theory.acceptance(p, q), abs=1e-8)
        assert values[0] <= values[1] + 1e-8 <= values[2] + 2e-8


def test_laws_with_zeros():
    assert theory.transport_optimum([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], 3) == pytest.approx(0.0, abs=1e-9)
    assert theory.independent_draws_optimum([0.5, 0.5, 0.0], [0.0, 0.0, 1.0], 3) == pytest.approx(0.0, abs=1e-12)
    # Two ids can be drawn, whatever the number of draws: what the target has beyond them is out of reach.
    assert theory.transport_optimum([0.3, 0.3, 0.4], [0.5, 0.5, 0.0], 3, replacement=False) == pytest.approx(0.6)


def test_the_dual_serves_large_vocabularies():
    p, q = np.random.default_rng(0).dirichlet(np.full(50_000, 0.1), size=2)
    values = [theory.independent_draws_optimum(p, q, k) for k in (1, 2, 4, 8)]
    assert values[0] == pytest.approx(theory.acceptance(p, q), abs=1e-9)
    assert all(0.0 < a < b < 1.0 for a, b in itertools.pairwise(values))


def test_two_distinct_draws_have_the_optimum_of_the_programme():
    for seed in range(40):
        generator = np.random.default_rng(seed)
        p, q = generator.dirichlet(np.full(int(generator.integers(2, 7)), 0.5), size=2)
        wanted = theory.transport_optimum(p, q, 2, replacement=False)
        assert theory.distinct_pair_optimum(p, q) == pytest.approx(wanted, abs=1e-8), seed


def test_two_distinct_draws_of_the_example_of_one_id_and_of_one_that_is_nearly_certain():
    assert theory.distinct_pair_optimum(P, Q) == pytest.approx(1.0, abs=1e-12)
    assert theory.distinct_pair_optimum([0.3, 0.7], [1.0, 0.0]) == pytest.approx(0.3, abs=1e-12)
    # 1 - q is 0, or mostly rounding, for the likeliest id; the second candidate is another one all the same.
    for small in (1e-17, 1e-15):
        assert theory.distinct_pair_optimum([0.5, 0.5], [1.0, small]) == pytest.approx(1.0, abs=1e-12)
        assert theory.distinct_pair_optimum([0.3, 0.7, 0.0], [1.0, 0.0, small]) == pytest.approx(0.3, abs=1e-12)
    with pytest.raises(ValueError, match="target_probs"):
        theory.distinct_pair_optimum([0.5, 0.6], [0.5, 0.5])


@pytest.mark.parametrize("optimum", [theory.transport_optimum, theory.independent_draws_optimum])
def test_bad_input_names_the_argument(optimum):
    for num_draws in (0, 1.5, float("inf")):
        with pytest.raises(ValueError, match="num_draws"):
            optimum(P, Q, num_draws)
    with pytest.raises(ValueError, match="target_probs"):
        optimum([0.5, 0.6], [0.5, 0.5], 2)
    with pytest.raises(ValueError, match="draft_probs"):
        optimum(P, Q[:3], 2)
