"""The recipe for a draft source works as it is written."""

import re
from pathlib import Path
from typing import Any

from specdec.sampling import SamplingParams
from tests.support.draft_rows import Rows, StopBelow, chains

RECIPE = Path(__file__).parents[2] / "docs" / "guides" / "draft-sources.md"


def run_recipe() -> dict[str, Any]:
    """Run the code of the recipe from top to bottom and return its names."""
    names: dict[str, Any] = {"__name__": "recipe"}
    blocks = re.findall(r"```python\n(.*?)```", RECIPE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, str(RECIPE), "exec"), names)
    return names


def test_the_recipes_code_runs_and_its_sources_conform():
    names = run_recipe()
    rows = Rows(names["alternate"])
    rows.seat({0: [1, 2], 1: [5]})
    assert chains(rows.propose({0: 3, 1: 9})) == [[1, 2, 1], [5, 5, 5, 5]]


def test_its_drawing_source_declares_the_rows_own_counts_and_takes_a_policy():
    own_words = run_recipe()["OwnWords"]
    rows = Rows(own_words(3), sampling=SamplingParams(temperature=1.0))
    rows.seat({0: [4, 4, 4, 1], 1: [2]})
    law = rows.propose({0: 9, 1: 9}).node_laws[0, 2].dense(6)
    assert law[4] / law[1] == 3.1 / 1.1
    rows = Rows(own_words(length=StopBelow(0.5)), sampling=SamplingParams(temperature=1.0))
    rows.seat({0: [3] * 30, 1: [0, 1, 2, 3, 4, 5]})
    assert rows.propose({0: 9, 1: 9}).num_nodes.tolist() == [5, 1]
