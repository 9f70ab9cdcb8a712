"""The columns that papers print, each worked out by hand from the steps of two answers, and what a terminal shows."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from experiments.harness.findings.step_columns import acceptance_table, cut_steps
from experiments.harness.run_outcome import Outcome
from specdec.contracts import StepInfo
from specdec.stats import Records, Stats
from tests.support.runs.hand_steps import chain_step, recorded, three_steps, tree_step


def entry(infos: list[StepInfo], reasons: list[str]) -> dict[str, Any]:
    """Return a unit of one arm that took these steps, of a request for each reason."""
    columns = Records(infos).columns()
    kept = {
        "records": columns,
        "num_tokens": sum(columns["num_emitted"]),
        "stats": recorded(infos, len(reasons)).as_dict(),
        "finish_reasons": [reasons],
    }
    return {"error": None, "kind": "a", "prompts": [f"p{i}" for i in range(len(reasons))], "arms": {"x": kept}}


def the_row(*entries: dict[str, Any]) -> dict[str, Any]:
    (row,) = acceptance_table(Outcome(["x"], entries)).rows
    return dict(row)


def test_prefixes_of_a_tree_are_those_of_its_longest_path() -> None:
    stats = recorded([tree_step()], 1)
    assert stats.steps_by_depth == (0, 0, 0, 1)
    assert stats.survival_by_position == {1: 1.0, 2: 1.0, 3: 0.0}
    assert stats.verify_rate == (2 + 1) / (7 + 1)
    assert stats.num_draft_passes == stats.requests[0].num_draft_passes == 3


def test_plain_decoding_proposes_nothing() -> None:
    row = the_row(entry([chain_step([0, 1], [5, 6], [0, 0], [0, 0])], ["length", "stop"]))
    assert (row["accept_len"], row["verify_rate"], row["proposed"], row["drafts"]) == (1.0, 1.0, 0.0, 0)
    assert row["accept_rate@0"] is None
    assert row["ends"] == "length 1, stop 1"
    assert Stats().verify_rate is None


def test_a_step_is_cut_if_tokens_of_it_are_not_emitted() -> None:
    whole = chain_step([0], [5], [3], [2])
    ended = replace(whole, truncated_by=np.array([1]))  # the end of the text is its last token
    assert cut_steps(Records([whole]).columns()) == cut_steps(Records([ended]).columns()) == 0
    assert cut_steps(Records(three_steps()).columns()) == 1


def test_five_columns_matter_most_and_all_have_a_meaning() -> None:
    table = acceptance_table(Outcome(["x"], [entry(three_steps(), ["length", "eos"])]))
    assert (len(table.visible_columns(wide=False)), table.visible_columns(wide=True)) == (5, table.names)
    assert set(table.legend_of(table.brief)) == {"accept_len", "accept_rate@k", "verify_rate", "proposed"}
    assert [name for name in table.names if not table.legend_of([name])] == ["arm", "steps"]
    assert table.legend_of(table.names) == table.legend


def test_positions_beyond_the_eighth_have_no_columns() -> None:
    stats = {"num_steps": 1, "num_emitted": 1, "steps_by_depth": [0] * 12 + [1]}
    stats |= {name: [0] * 12 for name in ("accepted_at_position", "tried_at_position")}
    unit = {"error": None, "kind": "a", "prompts": ["p"], "arms": {}}
    own = {"num_tokens": 1, "records": {"num_accepted": [], "num_emitted": []}, "finish_reasons": [["length"]]}
    unit["arms"] = {"x": {"stats": stats, **own}}
    with pytest.raises(AssertionError, match="num_recovered"):
        the_row(unit)
    stats |= {
        "num_recovered": 1,
        "tried_at_position": [1] + [0] * 11,
        "tried_at_rank": [1],
        "tried_by_source": {"a": 1},
    }
    row = the_row(unit)
    assert [name for name in row if "@" in name][-1] == "cond_accept@7"
    assert "accept_rate@7" in row
