"""The script on rules: every rule judges the same drafts, and each is told beside the optimum of one position."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from drafts import SmallTransformer
from experiments.harness.rule_choice import TREES
from experiments.studies import rules
from oracles.graphed import GraphedTransformer
from specdec import Kary, SamplingParams
from specdec.contracts import Draft
from specdec.kernels import best_kernels
from specdec.laws import Laws
from specdec.verify import RULES
from tests.graphed.emulated import emulated_device
from tests.graphed.pairs import PROMPTS, Pair, moved, pair
from tests.support.runs.experiments import write_rows

pytestmark = pytest.mark.usefixtures("documents")
MODELS = ["--oracle", "code-draft", "--model", "code-draft-tiny"]


@pytest.mark.parametrize("tree", ["kary:2x2", "reranked:4x2x2"])
def test_every_rule_stands_beside_the_optimum(tree: str, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rows = [{"text": "def add(a, b):\n"}, {"text": "class Reader:\n"}]
    prompts = write_rows(tmp_path / "own.jsonl", rows)
    sizes = ["--prompts", str(prompts), "--max-new-tokens", "8", "--num-draft-tokens", "3", "--tree", tree]
    assert rules.main([*sizes, *MODELS]) == 0
    printed = capsys.readouterr().out
    chains, trees = printed.split("### Trees")
    shown = [re.findall(r"^\| (\w+)", part, re.MULTILINE) for part in (chains, trees)]
    judging = [name for name, rule in RULES.items() if not rule.coupled]
    assert shown[0][1:] == judging
    assert shown[1][1:] == [name for name in judging if RULES[name].trees]
    judges = dict(re.findall(r"^\| (\w+)[^|]* \| ([\w: ]+?) +\|", chains, re.MULTILINE))
    assert judges["typical"] == "typical"
    assert judges["block"] == ("native: block" if best_kernels().are_compiled else "block")
    assert "typical(epsilon=0.09, delta=0.3), lossy" in chains
    assert "no lossless rule that knows the same laws keeps more than block verification" in " ".join(chains.split())
    assert "No optimum is known for whole trees" in trees


@pytest.mark.parametrize(
    ("option", "value", "words"), [("--temperature", "0", "must be above 0"), ("--max-new-tokens", "1", "must be 2 or")]
)
def test_requests_that_no_rule_judges_are_refused(option: str, value: str, words: str) -> None:
    with pytest.raises(SystemExit, match=f"rules: {option} {words}"):
        rules.main([option, value])


def test_a_temperature_that_is_no_number_is_refused() -> None:
    with pytest.raises(SystemExit, match="rules: SamplingParams: temperature=nan must be"):
        rules.main(["--temperature", "nan"])


def test_prompts_that_are_not_there_are_refused() -> None:
    with pytest.raises(SystemExit, match=r"rules: .*no/such\.jsonl"):
        rules.main(["--prompts", "no/such.jsonl", *MODELS])


def test_drafts_without_a_token_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "measure", lambda *_: [[], []])
    with pytest.raises(SystemExit, match="rules: every draft is empty, so that no rule judges any"):
        rules.main(["--num-prompts", "2", "--max-new-tokens", "8", *MODELS])


def panel(draft: Draft, probs: torch.Tensor) -> rules.KeptTokens:
    judging = {name: rule for name, rule in RULES.items() if not rule.coupled and (rule.trees or draft.is_chain)}
    made = rules.RulePanel(RULES["multi_draft"], judging)
    made(draft, probs)
    (kept,) = made.kept
    return kept


def test_what_is_kept_is_the_figures_of_an_example() -> None:
    p, q = (torch.tensor(law, dtype=torch.float64) for law in ([0.6, 0.2, 0.1, 0.1], [0.7, 0.2, 0.05, 0.05]))
    probs, laws = p.expand(1, 3, 4), Laws.from_probs(q.expand(1, 2, 4).contiguous())
    chain = Draft(torch.tensor([[0, 0]]), torch.tensor([2]), laws=laws)
    found = panel(chain, probs)
    assert found.bound == pytest.approx(0.9)
    assert found.first["standard"] == pytest.approx(6 / 7)
    assert found.tokens["standard"] == pytest.approx(6 / 7 + 36 / 49)
    assert found.tokens["sample_and_match"] == pytest.approx(0.6 + 0.36)
    assert found.tokens["typical"] == 2
    pair = Draft(torch.tensor([[0, 1]]), torch.tensor([2]), torch.tensor([[-1, -1]]), laws=laws)
    assert panel(pair, probs).bound == pytest.approx(0.99)
    distinct = replace(pair, without_replacement=torch.ones(1, 2, dtype=torch.bool))
    assert panel(distinct, probs).bound == pytest.approx(1.0)
    chosen = Draft(torch.tensor([[0, 0]]), torch.tensor([2]))
    assert panel(chosen, probs).bound is None
    assert np.isclose(panel(chosen, probs).tokens["block"], panel(chosen, probs).tokens["standard"])


def test_drafts_of_a_device_are_judged_as_those_of_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (10**10, 10**10))
    monkeypatch.setattr(GraphedTransformer, "weight_bytes", 0)
    asked = {"max_new_tokens": 6, "sampling": SamplingParams(temperature=1.0)}

    def kept_by(models: Pair) -> list[list[rules.KeptTokens]]:
        return rules.measure(models.target, SmallTransformer(models.model, tree=Kary(2, 2)), TREES, PROMPTS[:1], asked)

    here = kept_by(pair())
    with emulated_device():
        there = kept_by(pair(moved))
    for found, wanted in zip(there[0], here[0], strict=True):
        assert found.tokens == pytest.approx(wanted.tokens, rel=1e-5)
        assert found.first == pytest.approx(wanted.first, rel=1e-5)
        assert found.bound == pytest.approx(wanted.bound, rel=1e-5)
    assert here[0][0].bound
