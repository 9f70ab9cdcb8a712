"""Statistics of hand-written steps, whose figures can be read off, and the identities that must hold between them."""

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from specdec.stats import Records, Stats, StatsRecorder, pool
from tests.support.runs.hand_steps import array, chain_step, recorded, three_steps, tree_step


def test_counts_of_the_run() -> None:
    stats = recorded(three_steps())
    assert (stats.num_steps, stats.target_calls, stats.prefill_calls) == (5, 3, 3)
    assert (stats.num_drafted, stats.num_accepted, stats.num_emitted) == (11, 7, 10)
    assert (stats.num_truncated, stats.truncated) == (2, {"eos": 2, "stop": 0})
    assert (stats.num_recovered, stats.num_bonus) == (2, 3)
    assert (stats.num_steps_full, stats.num_emitted_full) == (3, 7)
    assert (stats.cache_bytes, stats.weight_bytes, stats.num_requests) == (100, 200, 2)
    assert stats.drafted_by_source == {"lookup": 7, "ngram": 4}
    assert stats.tried_by_source == {"lookup": 6, "ngram": 3}
    assert stats.accepted_by_source == {"lookup": 5, "ngram": 2}
    assert stats.acceptance_by_source == {"lookup": 5 / 6, "ngram": 2 / 3}


def test_undefined_ratios_are_none() -> None:
    stats = StatsRecorder(1).finish(0.0)
    ratios = ("block_efficiency", "block_efficiency_full", "acceptance_rate", "draft_utilisation", "tokens_per_second")
    assert [getattr(stats, name) for name in (*ratios, "time_to_first_token")] == [None] * 6
    assert (stats.acceptance_by_position, stats.acceptance_by_rank) == ({}, {})
    assert len(stats.requests) == 1
    assert stats.requests[0].block_efficiency is None


def test_plain_decoding_has_bonus_tokens_only() -> None:
    stats = recorded([chain_step([0, 1], [5, 6], [0, 0], [0, 0])])
    assert (stats.num_bonus, stats.num_recovered, stats.block_efficiency) == (2, 0, 1.0)
    assert stats.acceptance_rate is None
    assert stats.theoretical_block_efficiency() is None


def test_ranks_of_a_tree() -> None:
    stats = recorded([tree_step()], num_requests=1)
    # Tried: ranks 1, 2, 3 at the root, rank 1 below it, ranks 1, 2 at the stop.
    assert stats.tried_at_rank == (3, 2, 1)
    assert stats.acceptance_by_rank == {1: 1 / 3, 2: 0.0, 3: 1.0}
    assert stats.acceptance_by_position == {1: 1.0, 2: 1.0, 3: 0.0}
    assert stats.drafted_by_source == {"lookup": 3, "ngram": 4}
    assert stats.tried_by_source == {"lookup": 3, "ngram": 3}


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "emitted more than was produced": ({"num_emitted": array([5, 1]), "tokens": np.full((2, 5), 7)}, "num_emitted <="),
    "truncated without a cause": ({"num_emitted": array([3, 1])}, "cause"),
    "emitted nothing": ({"num_emitted": array([4, 0]), "truncated_by": array([0, 1])}, "emits a token"),
    "miscounted tokens": ({"tokens": np.full((2, 4), 7)}, "counts the emitted"),
    "miscounted nodes": ({"ranks": np.zeros((2, 3), dtype=np.int64)}, "accepted nodes"),
    "accepted deeper than drafted": ({"draft_depth": array([2, 3])}, "num_accepted <= draft_depth"),
    "deeper than nodes": ({"num_drafted": array([2, 3])}, "draft_depth <= num_drafted"),
    "more nodes than the call": ({"num_nodes": 3}, "room for all nodes"),
    "nodes without a source": ({"node_sources": np.full((2, 3), -1)}, "has a source"),
    "leaf with children": ({"num_children_at_stop": array([1, 1])}, "without verified children"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_steps_are_refused(name: str) -> None:
    change, message = BROKEN[name]
    step = chain_step([0, 1], [10, 20], [3, 3], [3, 0])
    recorded([step])
    with pytest.raises(AssertionError, match=message):
        recorded([replace(step, **change)])


def test_a_lost_token_between_steps_is_refused() -> None:
    steps = [chain_step([0, 1], [10, 20], [3, 3], [3, 0]), chain_step([1, 0], [21, 13], [1, 1], [0, 1])]
    with pytest.raises(AssertionError, match=r"last one ended.*'num_committed': 13"):
        recorded(steps)


def test_phases_longer_than_the_run_are_refused() -> None:
    with pytest.raises(AssertionError, match="the run only"):
        recorded(three_steps(), total_seconds=19.0)


def test_broken_totals_are_refused() -> None:
    stats = recorded(three_steps())
    with pytest.raises(AssertionError, match="num_recovered"):
        pool([replace(stats, num_bonus=4)])
    with pytest.raises(AssertionError, match="num_truncated"):
        pool([replace(stats, truncated={"eos": 1})])


def test_pooling_adds_and_survives_json() -> None:
    runs = [recorded(three_steps()), recorded([tree_step()], num_requests=1)]
    both = pool([Stats.from_dict(json.loads(json.dumps(run.as_dict()))) for run in runs])
    assert both.num_emitted == 13
    assert both.tried_at_rank == (12, 2, 1)
    assert both.seconds["score"] == 16.0
    assert both.cache_bytes == 100
    assert both.time_to_first_token == pytest.approx((10.0 + 10.0 + 10.0) / 3)
    assert pool([]) == Stats()


def test_records_have_one_row_per_request_and_step() -> None:
    records = Records(three_steps())
    assert len(records) == 5
    assert [row["request"] for row in records] == [0, 1, 0, 1, 0]
    row = records[3]
    assert (row["num_accepted"], row["num_emitted"], row["truncated_by"]) == (3, 2, "eos")
    assert (row["tokens"], row["ranks"], row["path_sources"]) == ([7, 7], [0, 0, 0], ["lookup", "ngram", "lookup"])
    assert row["seconds_score"] == 2.0
    assert records[-1]["ranks"] == []
    assert len(records[1:3]) == 2
    assert set(records.columns()) == set(row)
    assert len(Records([])) == 0
