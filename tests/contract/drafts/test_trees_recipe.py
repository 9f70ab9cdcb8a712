"""The page on trees works as it is written."""

from specdec import Chain
from tests.support.drafting.draft_rows import Rows
from tests.support.pages import run_recipe


def test_its_best_tree_is_one_of_that_many_nodes_and_its_shape_keeps_to_its_bounds():
    names = run_recipe("trees.md", 4)
    assert names["best_of_8"].num_nodes == 8
    assert names["pays"].num_nodes <= 8
    assert names["best_of_8"].paths != Chain(8).paths
    shape = names["Likely"]
    source = names["SmallTransformer"](names["small"], tree=shape(share=0.05, max_nodes=5))
    rows = Rows(source, oracle=names["target"])
    rows.seat({0: [1, 2], 1: [0]})
    draft = rows.propose({0: 9, 1: 1})
    assert draft.num_nodes.tolist()[0] <= 5
    assert draft.num_nodes.tolist()[1] == (draft.parents[1] == -1).sum() <= 3
