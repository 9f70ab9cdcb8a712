"""The calibration itself: its level under the truth, its power at the effect that it states, its count of tests."""

import ast
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from tests.support.calibration import LEVEL, NUM_COMPARISONS, SUITE_FALSE_ALARM, detectable, p_value

ROOT = Path(__file__).parents[1]
LAW = np.array([0.4, 0.3, 0.2, 0.1])


def test_the_levels_add_up_to_the_suites_rate():
    assert LEVEL * sum(NUM_COMPARISONS.values()) <= SUITE_FALSE_ALARM * (1 + 1e-12)


@pytest.mark.parametrize("rare", [1e-6, 1e-4, 0.01, 0.3, 0.5])
@pytest.mark.parametrize("size", [5, 100, 9790])
def test_small_p_values_are_as_rare_as_they_say(size, rare):
    """Exactly, by all outcomes of two cells, however few are expected in one of them."""
    came = np.arange(size + 1)
    masses = stats.binom.pmf(came, size, rare)
    values = [p_value("draws follow their law", np.array([size - n, n]), np.array([1 - rare, rare])) for n in came]
    for level in (0.5, 0.05, 1e-3, 1e-6, 1e-8):
        assert masses[np.array(values) <= level].sum() <= level


def test_p_values_of_many_cells_are_as_rare_as_they_say():
    law = np.array([0.9, *[0.1 / 30] * 30])
    counts = np.random.default_rng(0).multinomial(300, law, size=4000)
    values = np.array([p_value("draws follow their law", row, law) for row in counts])
    for level in (0.5, 0.1, 0.01):
        # Five standard errors of a share of 4,000.
        assert (values <= level).mean() <= level + 5 * np.sqrt(level / 4000)


def test_the_stated_effect_is_seen_with_the_stated_power():
    size = 3000
    effect = detectable(size, LAW)
    # The least visible law at that total variation moves mass in proportion to the law itself.
    shifted = LAW * np.where([True, True, False, False], 1, 0)
    half = LAW[:2].sum()
    moved = LAW + effect * (shifted / half - np.where(shifted > 0, 0, LAW) / (1 - half))
    counts = np.random.default_rng(1).multinomial(size, moved, size=400)
    seen = sum(p_value("draws follow their law", row, LAW) < LEVEL for row in counts)
    assert seen >= 0.97 * 400


def test_impossible_ids_are_seen_at_once():
    assert p_value("draws follow their law", np.array([999, 1]), np.array([1.0, 0.0])) == 0.0


def test_every_p_value_of_the_suite_is_counted():
    """No test outside ``calibration.py`` computes a p-value of its own."""
    own = {"calibration.py", "test_calibration.py"}
    for path in ROOT.rglob("*.py"):
        if path.name in own or "pvalue" not in (text := path.read_text()):
            continue
        found = {node.attr for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Attribute)}
        assert "pvalue" not in found, f"{path.name} has a bare p-value: use calibration.p_value"
