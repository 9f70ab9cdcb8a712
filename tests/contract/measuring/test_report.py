"""Tables, intervals with the coverage they claim, provenance, and a picture that is one."""

import json
import math
import platform
from typing import Any

import numpy as np
import pytest
import torch

from experiments.harness.findings.run_tables import speed_table
from experiments.harness.run_outcome import Outcome
from specdec.stats.report.intervals import bootstrap_ratio, paired_ratio
from specdec.stats.report.provenance import device_name, processor, provenance


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        ("cpu family\t: 6\nmodel\t\t: 207\nmodel name\t: Some CPU\n\nmodel\t: 9\n", "Some CPU (family 6, model 207)"),
        ("model name: One: two\n", "One: two"),
        ("BogoMIPS: 50\nCPU part: 0xd0c\n", None),
        (None, None),
    ],
)
def test_a_processor_is_named_with_its_numbers(lines, name, tmp_path):
    if lines is not None:
        (tmp_path / "info").write_text(lines)
    assert processor(tmp_path / "info") == (name or platform.processor() or platform.machine())


@pytest.mark.parametrize(
    ("method", "units", "slack"),
    [(paired_ratio, 6, 0.03), (paired_ratio, 15, 0.03), (bootstrap_ratio, 6, 0.05)],
)
def test_coverage_of_the_intervals(method, units, slack):
    rng, covered, num_runs = np.random.default_rng(1), 0, 1000
    for _ in range(num_runs):
        size = rng.gamma(4.0, 1.0, units)
        interval = method(2 * size * rng.lognormal(-0.02, 0.2, units), size)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low < 2.0 < interval.high
    # 0.95 within four standard errors of 0.007, and what the approximations cost at so few units.
    assert abs(covered / num_runs - 0.95) < slack


@pytest.mark.parametrize("method", [paired_ratio, bootstrap_ratio])
def test_tokens_per_pass_have_either_interval_of_their_units(method):
    emitted, steps = [20, 31, 28, 44, 23, 90], [10, 11, 12, 13, 14, 15]
    counts = [{"num_emitted": e, "num_steps": s} for e, s in zip(emitted, steps, strict=True)]
    kinds = ["a", "a", "a", "a", "a", "b"]
    units = enumerate(zip(kinds, counts, strict=True))
    entries = [{"unit": i, "error": None, "kind": k, "arms": {"x": {"stats": c}}} for i, (k, c) in units]
    outcome = Outcome(["x"], entries)
    assert outcome.block_efficiency("x", method=method) == method(emitted, steps)
    assert outcome.block_efficiency("x", "a", method) == method(emitted[:-1], steps[:-1])


def test_a_kind_of_prompts_that_is_called_like_a_column_has_one_of_its_own():
    kept = {"num_tokens": 9, "stats": None, "records": {}, "repeats_plain": True, "identical": [True]}
    arms = {name: {**kept, "seconds": [seconds]} for name, seconds in (("plain", 2.0), ("fast", 1.0))}
    kinds = enumerate(("arm", "bootstrap", "code"))
    entries = [{"unit": number, "error": None, "kind": kind, "arms": arms} for number, kind in kinds]
    outcome = Outcome([*arms], entries)
    table = speed_table(outcome, {})
    plain, fast = table.rows
    assert (plain["arm"], fast["arm"], fast["bootstrap"]) == ("plain", "fast", "2.00 (n = 3)")
    assert [fast[name] for name in ("kind arm", "kind bootstrap", "code")] == ["2.00 (n = 1)"] * 3
    assert "kind arm, kind bootstrap, code" in table.legend


def test_a_stall_in_one_unit_leaves_bounds_that_are_numbers():
    stalled: Any = bootstrap_ratio([8.606, 8.640, 713.126, 8.607, 8.499], [7.884, 7.683, 7.875, 7.765, 7.790])
    assert 0 <= stalled.low < stalled.value < stalled.high < math.inf
    assert str(stalled) == "19.17 (n = 5, wide)"
    even: Any = bootstrap_ratio([7.884, 7.683, 7.875, 7.765, 7.790], [8.606, 8.640, 713.126, 8.607, 8.499])
    assert 0 < even.low < even.value < even.high < math.inf


def test_resamples_of_units_without_a_sum_are_left_out():
    busy, idle = [1.0, 2.0, 1.0, 2.0, 1.0], [0.0, 0.0, 0.0, 0.1, 3.0]
    for pair in ((busy, idle), (idle, busy)):
        interval: Any = bootstrap_ratio(*pair)
        assert 0 < interval.low < interval.value < interval.high < math.inf


@pytest.mark.parametrize("method", [paired_ratio, bootstrap_ratio])
@pytest.mark.parametrize(
    ("a", "b", "level", "message"),
    [
        ([], [], 0.95, "paired"),
        ([1.0], [1.0, 2.0], 0.95, "paired"),
        ([0.0], [1.0], 0.95, "positive"),
        ([1.0], [1.0], 1.0, "level"),
    ],
)
def test_bad_pairs_are_refused(method, a, b, level, message):
    with pytest.raises(ValueError, match=message):
        method(a, b, level)


def test_a_device_is_named_if_it_is_there(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda place: f"Some GPU, {place}")
    names = {name: device_name(name) for name in ("cpu", "cuda", "cuda:0", "cuda:1")}
    assert names == {"cpu": "cpu", "cuda": "Some GPU, cuda", "cuda:0": "Some GPU, cuda:0", "cuda:1": "cuda:1"}


def test_provenance_is_complete_and_plain():
    facts = json.loads(json.dumps(provenance({"seed": 3, "dtype": torch.float32, "column": None})))
    assert facts["arguments"] == {"seed": 3, "dtype": "torch.float32", "column": None}
    assert facts["packages"]["torch"] == torch.__version__
    assert {"commit", "device", "threads", "platform", "processor", "python", "time"} <= set(facts)
