"""The recipe for a rule works as it is written: its body runs, is lossless, and says what it cannot judge."""

import pytest
import torch

from specdec import Draft, Laws, Verdict
from tests.support.drafting.block_law import Shape
from tests.support.drafting.rule_cases import CHAINS, TABLES, TOLERANCE, deviation
from tests.support.pages import run_recipe


def test_the_recipes_own_proof_holds():
    run_recipe("rules.md", 3)["test_match_chain"]()


@pytest.mark.parametrize("name", ["MatchChain", "AtMost"])
@pytest.mark.parametrize("shape", CHAINS.values(), ids=CHAINS)
def test_the_recipes_rules_give_the_targets_joint_law(shape: Shape, name: str):
    rule = run_recipe("rules.md", 3)[name]()
    found = {table: deviation(rule, shape, tables) for table, tables in TABLES.items()}
    assert max(found.values()) < TOLERANCE, found


def test_its_numbers_are_those_that_the_text_names():
    target = Laws.from_probs(torch.tensor([[[0.5, 0.2, 0.3], [0.1, 0.6, 0.3], [1 / 3] * 3]], dtype=torch.float64))
    draft = Draft(torch.tensor([[1, 2]]), torch.tensor([2]))
    verdict = run_recipe("rules.md", 3)["MatchChain"]()(draft, target)
    assert verdict.stop_probs[0].tolist() == pytest.approx([0.8, 0.2 * 0.7, 0.2 * 0.3])
    assert verdict.next_law(torch.tensor([0])).dense()[0].tolist() == pytest.approx([0.625, 0, 0.375])
    assert verdict.next_law(torch.tensor([2])).dense()[0].tolist() == pytest.approx([1 / 3] * 3)


def test_the_rule_built_on_another_stops_after_two_tokens_at_the_latest():
    same = Laws.from_probs(torch.full((1, 4, 3), 1 / 3, dtype=torch.float64))
    draft = Draft(torch.tensor([[0, 1, 2]]), torch.tensor([3]), laws=same[:, :3])
    verdict = run_recipe("rules.md", 3)["AtMost"]()(draft, same)
    assert verdict.stop_probs[0].tolist() == pytest.approx([0, 0, 1, 0])
    assert verdict.next_law(torch.tensor([2])).dense()[0].tolist() == pytest.approx([1 / 3] * 3)


def test_a_tree_is_refused_and_a_wrong_body_is_found(monkeypatch):
    names = run_recipe("rules.md", 3)
    tree = Draft(torch.tensor([[1, 2]]), torch.tensor([2]), torch.tensor([[-1, -1]]))
    with pytest.raises(ValueError, match=r"rule 'match_chain' judges chains only; .* or 'sample_and_match'"):
        names["MatchChain"]()(tree, torch.full((1, 3, 3), 1 / 3))

    class Keeps(names["MatchChain"]):  # type: ignore[misc]
        def __call__(self, draft: Draft, target_laws: Laws) -> Verdict:
            verdict = super().__call__(draft, target_laws)
            return Verdict(verdict.stops, verdict.width, target_laws.gather)

    monkeypatch.setitem(names, "MatchChain", Keeps)
    with pytest.raises(AssertionError, match="off by a total variation"):
        names["test_match_chain"]()
