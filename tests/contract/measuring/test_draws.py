"""Outputs that are draws: which rule draws them, what speed means then, and the guarantee of evidence against a law."""

from dataclasses import asdict
from itertools import product
from math import exp, log
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import drafts
from experiments.harness.arguments import fingerprint
from experiments.harness.arms import EngineArm, Measurement, rooms_of
from experiments.harness.draw_checks import (
    EVERY,
    REFUTED,
    TILT,
    LawEvidence,
    e_value_text,
    evidence_of,
    law_evidence,
    soundness,
    sum_of,
)
from experiments.harness.findings.run_tables import speed_table
from experiments.harness.findings.summary import agreement
from experiments.harness.rule_choice import rule_for, way_of
from experiments.harness.run_outcome import Outcome, check_cells
from experiments.harness.settings import Settings
from oracles import TabularLM
from specdec import SamplingParams
from specdec.exactness import oracle_law
from specdec.prompts import NamedPrompt
from specdec.stats import Stats
from specdec.verify import RULES

CHAIN, TREE = (SimpleNamespace(name=name, offers=SimpleNamespace(trees=name == "tree")) for name in ("chain", "tree"))
SETTINGS = Settings("eager", "float32", "cpu", None, 1, 1)


@pytest.mark.parametrize(
    ("asked", "rules"),
    [
        ("rejection", ("standard", "standard", "multi_draft")),
        ("coupled", ("coupled",) * 3),
        ("sample_and_match", ("standard", "sample_and_match", "sample_and_match")),
        ("multi_draft", ("standard", "multi_draft", "multi_draft")),
        ("traversal", ("standard", "traversal", "traversal")),
    ],
)
def test_a_rule_fits_its_source(asked: str, rules: tuple[str, ...]) -> None:
    assert tuple(rule_for(asked, draft).name for draft in (None, CHAIN, TREE)) == rules  # type: ignore[arg-type]


def test_only_rules_for_chains_are_refused_on_trees() -> None:
    for name, rule in RULES.items():
        if rule.trees:
            assert rule_for(name, TREE) is rule  # type: ignore[arg-type]
        else:
            with pytest.raises(ValueError, match=f"--rule {name} judges chains only, and tree branches: use one of"):
                rule_for(name, TREE)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("heat", "rule", "repeats"), [(0, "rejection", True), (1, "coupled", True), (1, "rejection", False)]
)
def test_arms_repeat_plain_decoding_greedily_and_coupled(heat: float, rule: str, repeats: bool) -> None:
    target, model = TabularLM.pair(4, 1, 0.7, seed=0)
    sampling, prompt = SamplingParams(temperature=heat), NamedPrompt("a", "a", [1])  # type: ignore[arg-type]
    runs = [
        EngineArm(name, target, draft, sampling, rule).run([prompt], [(0, 0)], 30)
        for name, draft in (("plain", None), ("drafted", drafts.SmallTransformer(model, 3)))
    ]
    assert [run.repeats_plain for run in runs] == [repeats] * 2
    assert (runs[0].tokens == runs[1].tokens) == repeats
    assert runs[1].rule == ("coupled" if rule == "coupled" else "standard")


def test_a_run_with_another_rule_is_another_run() -> None:
    keys = {rule: fingerprint({"temperature": 0.8, "rule": rule}, ["a prompt"]) for rule in ("rejection", "coupled")}
    assert len(set(keys.values())) == 2


def test_a_run_says_how_it_drew() -> None:
    assert way_of({"temperature": 0, "rule": "coupled"}) == "greedy"
    assert "by rejection (rule standard on chains" in way_of({"temperature": 0.8, "rule": "rejection"})
    told = way_of({"temperature": 0.8, "top_p": 0.95, "rule": "rejection"})
    assert told.startswith("sampling at temperature 0.8, top-p 0.95, drawn by rejection")
    assert way_of({"temperature": 0.8, "top_p": 1.0, "rule": "coupled"}) == "coupled sampling at temperature 0.8"


def test_evidence_by_hand() -> None:
    laws = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.1, 0.9, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], dtype=torch.float64)
    found = evidence_of(laws, np.array([1, 0, 3]))
    assert (found.tokens, found.impossible) == (2, 1)
    flat = [0.5**0.8 + 2 * 0.25**0.8, 0.1**0.8 + 0.9**0.8]
    sharp = [0.5**1.2 + 2 * 0.25**1.2, 0.1**1.2 + 0.9**1.2]
    assert TILT == 0.2
    assert found.hotter == pytest.approx(log(0.25**0.8 / flat[0] / 0.25) + log(0.1**0.8 / flat[1] / 0.1), rel=1e-12)
    assert found.colder == pytest.approx(log(0.25**1.2 / sharp[0] / 0.25) + log(0.1**1.2 / sharp[1] / 0.1), rel=1e-12)
    assert found.e_value == pytest.approx((exp(found.hotter) + exp(found.colder)) / 2)
    assert sum_of([found, found]) == LawEvidence(4, 2, 2 * found.hotter, 2 * found.colder)
    assert LawEvidence(1, 0, 1e5, 0.0).e_value > REFUTED


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0.7), SamplingParams(temperature=1.3, top_p=0.8)])
def test_the_expected_e_value_of_the_law_itself_is_one(sampling: SamplingParams) -> None:
    """Over all outputs, by their probability from code apart from the engine's warping; under another law it grows."""
    oracle, prompt = TabularLM.random(4, 2, seed=3), np.array([1, 2])
    law = oracle_law(oracle, prompt.tolist(), 3, sampling)
    values = {ids: law_evidence(oracle, prompt, list(ids), sampling) for ids in law}
    assert all(found.tokens == 3 and not found.impossible for found in values.values())
    assert sum(law[ids] * found.e_value for ids, found in values.items()) == pytest.approx(1, abs=1e-9)
    for part in ("hotter", "colder"):
        assert sum(law[ids] * exp(getattr(one, part)) for ids, one in values.items()) == pytest.approx(1, abs=1e-9)
    other = dict.fromkeys(product(range(4), repeat=3), 0.0) | oracle_law(
        oracle, prompt.tolist(), 3, SamplingParams(temperature=3.0)
    )
    assert sum(other[ids] * found.hotter for ids, found in values.items()) > 0


def test_the_law_of_long_outputs_is_checked_in_chunks() -> None:
    oracle, sampling = TabularLM.random(5, 2, seed=1), SamplingParams(temperature=1.0)
    ids = np.random.default_rng(0).integers(0, 5, 300)
    whole = law_evidence(oracle, ids[:7], ids[7:].tolist(), sampling)
    assert whole.tokens == 293
    parts = [law_evidence(oracle, ids[:at], ids[at : at + 1].tolist(), sampling) for at in range(7, 300)]
    assert whole.hotter == pytest.approx(sum(part.hotter for part in parts), rel=1e-9)
    assert whole.colder == pytest.approx(sum(part.colder for part in parts), rel=1e-9)


def a_run(tokens: list[list[int]], reasons: list[str], room: int = 3) -> Measurement:
    rooms = [room] * len(tokens)
    result: Any = SimpleNamespace(finish_reasons=reasons)
    return Measurement(1.0, tokens, "exact", SETTINGS, result, repeats_plain=False, rooms=rooms)


def test_a_draw_is_sound_if_it_has_its_length_and_comes_again() -> None:
    tokens = [[1, 2, 3], [1, 2], [1, 2], [3, 2, 1], [1, 2, 3]]
    reasons = ["length", "length", "eos", "eos", "length"]
    again = [*tokens[:4], [1, 2, 4]]
    assert soundness([a_run(tokens, reasons)]) == [True, False, True, True, True]
    assert soundness([a_run(tokens, reasons), a_run(again, reasons)]) == [True, False, True, True, False]
    assert soundness([a_run([[], [1] * 4], ["eos", "eos"])]) == [False, False]


def test_an_output_has_room_up_to_the_context() -> None:
    records = {"request": [0, 1, 0, 1], "num_committed": [10, 95, 12, 97], "step": [0, 0, 1, 1]}
    assert rooms_of(records, 3, 20, 100) == [20, 5, 0]
    assert soundness([a_run([[1, 2]], ["length"], room=2)]) == [True]


def entry(
    counts: dict[str, int], seconds: dict[str, list[float]], prefill: dict[str, float], number: int = 0, **more: Any
) -> dict[str, Any]:
    """Return a unit of draws, of one prompt."""
    arms = {
        arm: {
            "seconds": seconds[arm],
            "decoding": [whole - prefill[arm] / len(seconds[arm]) for whole in seconds[arm]],
            "num_tokens": counts[arm],
            "repeats_plain": False,
            "sound": [True],
            "law": asdict(LawEvidence(counts[arm], 0, 0.0, 0.0)),
            "claim": "exact",
            "stats": Stats(
                num_steps=counts[arm] * len(seconds[arm]),
                num_bonus=counts[arm] * len(seconds[arm]),
                num_emitted=counts[arm] * len(seconds[arm]),
                steps_by_depth=(counts[arm] * len(seconds[arm]),),
                seconds={"prefill": prefill[arm], "score": sum(seconds[arm]) - prefill[arm]},
            ).as_dict(),
            "records": {},
            **more,
        }
        for arm in counts
    }
    return {"unit": number, "error": None, "kind": "a", "prompts": ["p"], "arms": arms}


def test_speed_is_of_as_many_tokens() -> None:
    """Plain decoding takes 1 s a token and the arm half a second, whatever their lengths; prompts take 2 s each."""
    lengths = [(10, 20), (30, 10), (8, 8), (5, 50), (12, 3)]
    entries = [
        entry({"plain": a, "x": b}, {"plain": [2.0 + a], "x": [2.0 + b / 2]}, {"plain": 2.0, "x": 2.0}, number)
        for number, (a, b) in enumerate(lengths)
    ]
    outcome, of_arm = Outcome(["plain", "x"], entries), sum(b for _, b in lengths)
    assert outcome.has_draws
    found = outcome.speedup("x")
    assert found.value == pytest.approx((2 * 5 + of_arm) / (2 * 5 + of_arm / 2))
    assert found.num_units == 5
    decoding = outcome.decoding_speedup("x")
    assert decoding is not None
    assert (decoding.value, decoding.low, decoding.high) == pytest.approx((2.0, 2.0, 2.0))
    # Pairs with another arm than plain decoding are of as many tokens too.
    back = outcome.speedup("plain", against="x")
    of_plain = sum(a for a, _ in lengths)
    assert back.value == pytest.approx((2 * 5 + of_plain / 2) / (2 * 5 + of_plain))
    # So are those with a peer that writes other texts where no arm draws; its prefill is not known.
    for one in entries:
        one["arms"] = {name: kept | {"repeats_plain": True} for name, kept in one["arms"].items()}
        one["arms"]["x"]["stats"] = None
    assert not outcome.has_draws
    assert outcome.speedup("x").value == found.value
    scaled = sum((2 + b / 2) * a / b for a, b in lengths)
    assert outcome.speedup("plain", against="x").value == pytest.approx(scaled / (2 * 5 + of_plain))


def test_tables_say_what_was_checked_in_place_of_equal_ids() -> None:
    counts, seconds = {"plain": 5, "x": 7}, {"plain": [5.0], "x": [7.0]}
    entries = [entry(counts, seconds, {"plain": 1.0, "x": 1.0}, number) for number in range(5)]
    entries[1]["arms"]["x"]["sound"] = [False]
    outcome = Outcome(["plain", "x"], entries)
    assert check_cells(outcome, "x") == {"checked": "4/5", "law e": "1"}
    assert e_value_text(0.0) == "< 1e-300"
    table = speed_table(outcome, {"y": "cannot"})
    (_, row, refused), legend = table.rows, table.legend
    assert row["decoding alone"].startswith("0.95 [") or row["decoding alone"].startswith("0.93 [")
    assert refused["law e"] == "refused: cannot"
    assert legend["decoding alone"].startswith("plain decoding's seconds per emitted token")
    assert legend["end to end"].endswith("prefill included; every arm draws a text of its own")
    assert f"every {EVERY}th prompt" in legend["law e"]
    assert {"checked", "law e"} <= set(table.brief)
    assert agreement(outcome).startswith("9 of 10 outputs, of 2 arms, have their length and come again with their seed")
    assert outcome.problems() == ["prompts ['p']: the output of x lacks its length, or is another one in another round"]


def test_draws_that_nobody_held_against_their_law_have_no_e_value() -> None:
    unit = entry({"plain": 5, "x": 7}, {"plain": [5.0], "x": [7.0]}, {"plain": 1.0, "x": 1.0}, law=None)
    outcome = Outcome(["plain", "x"], [unit])
    assert outcome.law("x") is None
    assert check_cells(outcome, "x") == {"checked": "1/1", "law e": None}
    assert agreement(outcome).endswith("draws of one law, not one text, and none was held against that law.")
    assert outcome.problems() == []


def test_only_a_claim_of_losslessness_is_refuted() -> None:
    def problems(claim: str, law: LawEvidence) -> list[str]:
        unit = entry({"plain": 5}, {"plain": [5.0]}, {"plain": 1.0}, claim=claim, law=asdict(law))
        return Outcome(["plain"], [unit]).problems()

    far = LawEvidence(5, 1, log(3 * REFUTED), 0.0)
    assert problems("exact", far) == [
        "plain emitted 1 tokens that the oracle's law excludes",
        "the tokens of plain do not follow the oracle's law: e-value 1.5e+06",
    ]
    # A filter's edge may fall otherwise where passes round otherwise.
    assert problems("exact up to numerics", far)[0].startswith("the tokens of plain do not follow")
    assert problems("lossy: typical", far) == []
    assert problems("exact", LawEvidence(5, 0, log(REFUTED), 0.0)) == []
