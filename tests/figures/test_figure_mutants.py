"""Figures that papers quote, worked out by hand; and mutants of the lines that make them, each told by one figure.

They stand beside the mutants of tokens (tests/exact/engine/test_mutants.py). A row names a line and what takes its
place in the running program; the statistic returns the figures that are wrong then, and none for the right program.
"""

import importlib
from pathlib import Path

import pytest

from tests.support.line_mutants import LineMutant, plain_function, wrong_code

GROUPS = [
    importlib.import_module(f"tests.figures.{path.stem}") for path in sorted(Path(__file__).parent.glob("of_*.py"))
]
STATISTICS = [statistic for group in GROUPS for statistic in group.STATISTICS]
MUTANTS = [mutant for group in GROUPS for mutant in group.MUTANTS]


@pytest.mark.parametrize("statistic", STATISTICS, ids=lambda statistic: statistic.__name__)
def test_the_figures_of_the_right_program_are_as_by_hand(statistic):
    assert statistic() == {}


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_moves_its_figure(mutant: LineMutant, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_function(mutant.function), "__code__", wrong_code(mutant))
    assert mutant.figure in mutant.statistic()


def test_every_statistic_tells_a_mutant():
    assert {mutant.statistic for mutant in MUTANTS} == set(STATISTICS)
