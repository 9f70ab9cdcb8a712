"""Static and continuous batches: the same tokens, every request served once, latencies that add up."""

import numpy as np
import pytest

import drafts
from experiments.harness import rounds
from experiments.studies import batching
from experiments.studies.batching import ServingOptions, lock_step_tokens, serve_all
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from tests.support.runs.experiments import common, read_json, the_folder

OPTIONS = ServingOptions(3, 20, 0, SamplingParams(temperature=1.0), stop=())
PROMPTS = [[1], [1, 2], [3], [2, 1], [3, 1, 2], [2], [1, 1]]


@pytest.mark.parametrize("static", [True, False])
@pytest.mark.parametrize("length", [0, 3])
def test_every_request_is_served_once(static, length):
    target, model = (TabularLM.random(4, 2, seed, eos_id=0) for seed in (0, 1))
    draft = drafts.SmallTransformer(model, length) if length else None
    seconds, ids, served = serve_all(SpeculativeDecoder(target, draft, "coupled"), PROMPTS, OPTIONS, static)
    plain = SpeculativeDecoder(target, None, "coupled")
    wanted = plain.generate(PROMPTS, 20, OPTIONS.sampling).tokens
    assert [[*request.tokens] for request in served.requests] == wanted
    assert ids is not None
    assert [row[row >= 0].tolist() for row in ids] == wanted
    rows, emitted = (sum(getattr(step, name) for step in served.steps) for name in ("rows", "emitted"))
    assert emitted == sum(map(len, wanted))
    firsts, latencies = ([getattr(request, name) for request in served.requests] for name in ("ttft", "e2el"))
    assert all(0 < first <= latency <= seconds for first, latency in zip(firsts, latencies, strict=True))
    assert lock_step_tokens(served) <= emitted
    if not length:
        assert lock_step_tokens(served) == emitted == rows
    if static:  # a batch begins after the one before it ended
        assert min(firsts[3:6]) > max(latencies[:3])


def test_continuous_batches_use_more_rows():
    target = TabularLM.random(4, 2, 0, eos_id=0)
    both = [
        serve_all(SpeculativeDecoder(target, None, "coupled"), PROMPTS * 3, OPTIONS, way).facts.steps
        for way in (True, False)
    ]
    assert sum(step.rows for step in both[0]) == sum(step.rows for step in both[1])
    assert len(both[0]) > len(both[1])


@pytest.mark.parametrize(
    ("way", "column"),
    [([], "ids as plain"), (["coupled"], "ids as plain"), (["rejection"], "ids as static")],
    ids=["greedy", "coupled", "rejection"],
)
def test_the_table_has_both_ways_of_every_arm(way, column, checkpoints, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    argv = [*common(checkpoints, tmp_path), "--batch-sizes", "2", "3", "--rounds", "2"]
    argv += ["--temperature", "0.8", "--rule", *way] if way else []
    assert batching.main([*argv, "--strategies", "prompt_lookup"]) == 0
    rows = read_json(the_folder(tmp_path) / "batching.json")["rows"]
    assert [(row["batch"], row["arm"], row["batches"]) for row in rows] == [
        (size, arm, way)
        for size in (2, 3)
        for arm in ("plain", "prompt_lookup")
        for way in (batching.STATIC, batching.CONTINUOUS)
    ]
    assert all(row["tau"] >= row["tau, lock-step"] >= 1 for row in rows)
    assert np.isfinite([row["latency s"] for row in rows]).all()
    assert [row[column] for row in rows] == ["100.0%"] * len(rows)
    assert "rows in use" in capsys.readouterr().out
