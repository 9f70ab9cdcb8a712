"""The causes of slow speculation: each is named when the figures show it, and by no others."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.advise.advice_parts import Parts
from experiments.harness.arms import PLAIN
from experiments.harness.findings.causes import (
    HELP,
    ArmFigures,
    Cause,
    Widening,
    cause_sentences,
    cause_table,
    causes_of,
)
from experiments.harness.run_outcome import Outcome
from experiments.harness.settings import Settings
from oracles.huggingface.support import experts_of
from specdec.contracts import capability_of
from specdec.stats import Stats, pool

OURS = Settings("graphed", "bfloat16", "cuda:0", bitwise=False, batch_size=8, threads=2)
# Free of causes: cheap drafts that stand, passes at a plain one's price, one wait a step, all in graphs.
CLEAN = ArmFigures(
    settings=OURS,
    baseline=OURS,
    stats=Stats(num_drafted=10, num_accepted=8, num_recovered=2),
    parts=Parts(tokens=3.0, rows=1.0, drafting=0.1, scoring=1.05, rest=0.1, plain=0.1),
    widening=Widening(rows=8, nodes=5, cost=1.05),
    work={"copies up": 1, "waits": 1, "idle": 0.05, "in graphs": 0.97, "captures": 3},
)
DEAR = {"parts": replace(CLEAN.parts, scoring=2.0), "widening": Widening(rows=8, nodes=5, cost=2.0)}  # type: ignore[type-var]
ALONE = {**DEAR, "widening": Widening(rows=1, nodes=5, cost=2.0)}


def changed(name: str, **others: Any) -> dict[str, Any]:
    return {name: replace(getattr(CLEAN, name), **others)}


def worked(**others: Any) -> dict[str, Any]:
    return {"work": {**(CLEAN.work or {}), **{name.replace("_", " "): value for name, value in others.items()}}}


SHOWN: dict[str, tuple[dict[str, Any], dict[Cause, str]]] = {
    "nothing": ({}, {}),
    "passes outside": (
        worked(in_graphs=0.9),
        {Cause.GRAPHS: "10% of its passes ran outside of graphs (3 captures)"},
    ),
    "no graphs at all": (
        {**worked(in_graphs=None, captures=None), **changed("settings", backend="eager")},
        {Cause.GRAPHS: "eager passes run in no graph", Cause.BASELINE: "backend eager beside graphed"},
    ),
    "a CPU": (worked(copies_up=None, waits=None, idle=None, in_graphs=0), {}),
    "wide passes": (ALONE, {Cause.PASS: "a pass of 5 nodes a row takes 2.00 times as long as one of 1"}),
    "wide passes of many rows": (
        DEAR,
        {
            Cause.PASS: "a pass of 5 nodes a row takes 2.00 times as long as one of 1",
            Cause.BATCH: "with 8 rows 5 nodes take 2.00 times as long as 1, with one row it would be about 1.16 times",
        },
    ),
    "wide passes of many rows, dear for few rows too": (
        {"parts": DEAR["parts"], "widening": Widening(8, 5, 2.0, fewer=Widening(2, 5, 1.9))},
        {Cause.PASS: "a pass of 5 nodes a row takes 2.00 times as long as one of 1"},
    ),
    "wide passes of many rows, cheap for few": (
        {"parts": DEAR["parts"], "widening": Widening(8, 5, 2.0, fewer=Widening(2, 5, 1.25)), "work": None},
        {
            Cause.PASS: "a pass of 5 nodes a row takes 2.00 times as long as one of 1",
            Cause.BATCH: "with 8 rows 5 nodes take 2.00 times as long as 1, with 2 1.25 times",
        },
    ),
    "wide passes of many rows whose every node is dear": (
        {"parts": DEAR["parts"], "widening": Widening(8, 5, 5.5)},
        {Cause.PASS: "a pass of 5 nodes a row takes 5.50 times as long as one of 1"},
    ),
    "wide passes that take no longer, beside plain ones of fewer rows": (
        {"parts": replace(CLEAN.parts, scoring=1.4), "widening": Widening(rows=8, nodes=5, cost=0.95)},
        {},
    ),
    "wide passes that take a little longer, beside plain ones of fewer rows": (
        {
            "parts": replace(CLEAN.parts, scoring=1.4),
            "widening": Widening(rows=1, nodes=5, cost=1.05),
            **changed("settings", num_experts=8),
        },
        {},
    ),
    "wide passes in a step of much else": ({**DEAR, "parts": replace(DEAR["parts"], scoring=1.2, rest=3.0)}, {}),
    "dear drafts": (changed("parts", drafting=0.4), {Cause.DRAFT: "drafting takes 0.40 of a plain pass a step"}),
    "drafts not so dear": (changed("parts", drafting=0.2), {}),
    "waits": (
        worked(waits=2.0),
        {Cause.WAITS: "a step waited 2.0 times for the device, which was idle at least 5% of the time"},
    ),
    "an idle device": (
        worked(idle=0.4),
        {Cause.WAITS: "a step waited 1.0 times for the device, which was idle at least 40% of the time"},
    ),
    "drafts that fall": (
        {"stats": Stats(num_drafted=10, num_accepted=2, num_recovered=3)},
        {Cause.ACCEPTANCE: "0.40 of the draft tokens reached are accepted"},
    ),
    "no drafts": ({"stats": Stats(num_recovered=0), "widening": None}, {}),
    "experts": (
        {**ALONE, **changed("settings", num_experts=8)},
        {
            Cause.PASS: "a pass of 5 nodes a row takes 2.00 times as long as one of 1",
            Cause.EXPERTS: "a layer chooses from 8 experts, and 5 nodes read more of them than 1: 2.00 times as long",
        },
    ),
    "experts in cheap passes": (changed("settings", num_experts=8), {}),
    "another baseline": (
        changed("settings", dtype="float32", bitwise=True, batch_size=1),
        {Cause.BASELINE: "dtype float32 beside bfloat16, bitwise True beside False, batch size 1 beside 8"},
    ),
    "one that does not say everything": (changed("settings", bitwise=None), {}),
}


@pytest.mark.parametrize("name", SHOWN)
def test_a_cause_is_named_when_the_figures_show_it(name: str) -> None:
    others, wanted = SHOWN[name]
    assert causes_of(replace(CLEAN, **others)) == wanted


def test_every_cause_can_be_shown_helped_and_looked_up() -> None:
    assert {cause for _, wanted in SHOWN.values() for cause in wanted} == set(Cause) == set(HELP)
    text = " ".join((Path(__file__).parents[3] / "docs" / "guides" / "report.md").read_text(encoding="utf-8").split())
    for cause in Cause:
        assert f"- **{cause}**: " in text
        assert f"*Helps*: {HELP[cause]}." in text


def records(passes: list[tuple[int, int, float]]) -> dict[str, list[Any]]:
    """Return records of passes of so many rows, nodes and seconds."""
    rows = [(0, step, *one) for step, one in enumerate(passes) for _ in range(one[0])]
    names = ("round", "step", "num_rows", "num_nodes", "seconds_score")
    found = {name: list(column) for name, column in zip(names, zip(*rows, strict=True), strict=True)}
    return {**found, "seconds_score": [s / n for s, n in zip(found["seconds_score"], found["num_rows"], strict=True)]}


def test_a_wider_pass_is_compared_with_a_plain_one_of_as_many_rows() -> None:
    plain = [records([(2, 1, 1.0), (2, 1, 3.0), (1, 1, 0.5)]), records([(2, 1, 1.2)])]
    own = [records([(2, 5, 3.0), (2, 5, 2.4), (1, 5, 9.0), (2, 1, 9.0)]), records([(2, 5, 2.0), (2, 3, 9.0)])]
    assert Widening.of(plain, own) == Widening(rows=2, nodes=5, cost=2.0)
    assert Widening.of([records([(1, 1, 0.5)])], own) == Widening(rows=1, nodes=5, cost=18.0)
    assert Widening.of(plain, plain) is None


def outcome(peer: Settings = OURS, own: Settings = OURS) -> Outcome:
    """Return a unit of plain decoding, an arm of ours and another program."""
    stats = pool([Stats(target_calls=4, num_steps=4, num_bonus=4, num_emitted=4, steps_by_depth=(4,))])
    seconds = {"prefill": 0.0, "propose": 0.0, "score": 4.0, "verify": 0.0, "commit": 0.0, "other": 0.4}
    plain = replace(stats, seconds=seconds, num_scored_nodes=4)
    chains = replace(
        plain, num_drafted=8, num_accepted=2, num_emitted=6, num_recovered=4, num_bonus=0, num_draft_passes=8,
        steps_by_depth=(0, 0, 4), tried_at_position=(4, 2), accepted_at_position=(2, 0), tried_at_rank=(6,),
        accepted_at_rank=(2,), drafted_by_source={"x": 8}, tried_by_source={"x": 6}, accepted_by_source={"x": 2},
        seconds={**seconds, "score": 8.0},
    )  # fmt: skip
    arms: dict[str, tuple[Stats | None, Settings, Any]] = {
        PLAIN: (plain, OURS, records([(1, 1, 1.0)] * 4)),
        "chains": (chains, own, records([(1, 3, 2.0)] * 4)),
        "peer": (None, peer, {}),
    }
    kept = {
        arm: {"stats": stats and stats.as_dict(), "records": columns, "settings": vars(settings)}
        for arm, (stats, settings, columns) in arms.items()
    }
    return Outcome(list(arms), [{"error": None, "kind": "a", "arms": kept}])


def test_the_table_says_what_an_arm_is_compared_with() -> None:
    found = outcome(peer=replace(OURS, backend="transformers", batch_size=1, bitwise=None))
    table = cause_table(found)
    assert table is not None
    chains, peer = table.rows
    assert chains == {
        "arm": "chains",
        "compared with": "plain",
        "rows": 1,
        "W": 3,
        "t(W)/t(1)": 2.0,
        "causes": "verify costs more than a pass, low acceptance",
    }
    assert peer["compared with"] == "plain, other backend, batch size"
    assert (peer["W"], peer["t(W)/t(1)"], peer["causes"]) == (None, None, "unequal baselines")
    assert "ran with graphed passes, bfloat16, not bitwise, cuda:0, batch 8, 2 threads." in table.note


def test_a_sentence_has_the_name_the_figures_and_what_helps() -> None:
    found = outcome(own=replace(OURS, dtype="float32"))
    told = cause_sentences(found, "chains")
    assert [sentence.partition(":")[0].lower() for sentence in told] == [Cause.PASS, Cause.ACCEPTANCE, Cause.BASELINE]
    assert told[-1] == (f"Unequal baselines: dtype float32 beside bfloat16. What helps: {HELP[Cause.BASELINE]}.")
    assert cause_sentences(found, "peer") == []


def test_oracles_say_how_many_experts_they_have() -> None:
    assert capability_of(SimpleNamespace(), "num_experts") == 1  # type: ignore[arg-type]
    assert capability_of(SimpleNamespace(num_experts=8), "num_experts") == 8  # type: ignore[arg-type]
    for name in ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts"):
        assert experts_of(SimpleNamespace(**{name: 16})) == 16
    assert experts_of(SimpleNamespace(num_experts=[1, 8, 16])) == 16
    assert experts_of(SimpleNamespace(num_experts=None)) == 1
