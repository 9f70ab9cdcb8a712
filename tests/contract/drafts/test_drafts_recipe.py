"""The recipe for a draft source works as it is written."""

from specdec.sampling import SamplingParams
from tests.support.drafting.draft_rows import Rows, StopBelow, chains
from tests.support.pages import run_recipe


def test_the_recipes_code_runs_and_its_sources_conform():
    names = run_recipe("draft-sources.md", 4)
    rows = Rows(names["alternate"])
    rows.seat({0: [1, 2], 1: [5]})
    assert chains(rows.propose({0: 3, 1: 9})) == [[1, 2, 1], [5, 5, 5, 5]]


def test_its_drawing_source_declares_the_rows_own_counts_and_takes_a_policy():
    own_words = run_recipe("draft-sources.md", 4)["OwnWords"]
    rows = Rows(own_words(3), sampling=SamplingParams(temperature=1.0))
    rows.seat({0: [4, 4, 4, 1], 1: [2]})
    law = rows.propose({0: 9, 1: 9}).node_laws[0, 2].dense(6)
    assert law[4] / law[1] == 3.1 / 1.1
    rows = Rows(own_words(length=StopBelow(0.5)), sampling=SamplingParams(temperature=1.0))
    rows.seat({0: [3] * 30, 1: [0, 1, 2, 3, 4, 5]})
    assert rows.propose({0: 9, 1: 9}).num_nodes.tolist() == [5, 1]
