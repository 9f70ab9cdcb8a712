"""Tables, intervals with the coverage they claim, provenance, and a picture that is one."""

from pathlib import Path

import numpy as np
import pytest
import torch

from specdec.report import Interval, paired_ratio, picture, provenance, table


def test_paired_ratio_by_hand() -> None:
    a, b = [2.0, 4.0, 6.0], [1.0, 2.5, 2.5]
    interval = paired_ratio(a, b, level=0.9)
    assert interval.value == 2.0
    # d = (0, -1, 1); variance 3/2 * 2 / 36; t quantile at 0.95 with 2 degrees of freedom 2.91999.
    width = 2.9199856 * np.sqrt(3 / 2 * 2) / 6 / 2
    assert interval.low == pytest.approx(2 * np.exp(-width), rel=1e-6)
    assert interval.high == pytest.approx(2 * np.exp(width), rel=1e-6)
    assert interval.num_units == 3


def test_pairing_removes_what_the_units_share() -> None:
    sizes = np.random.default_rng(0).uniform(1, 10, 20)
    interval = paired_ratio(3 * sizes, sizes)
    assert interval.low == pytest.approx(3.0)
    assert interval.high == pytest.approx(3.0)


def test_coverage_of_the_interval() -> None:
    rng, covered, num_runs = np.random.default_rng(1), 0, 2000
    for _ in range(num_runs):
        size = rng.gamma(4.0, 1.0, 15)
        interval = paired_ratio(2 * size * rng.lognormal(-0.02, 0.2, 15), size)
        assert interval.low is not None
        assert interval.high is not None
        covered += interval.low < 2.0 < interval.high
    # 0.95 within four standard errors of 0.005, and 0.01 for the normal approximation at 15 units.
    assert abs(covered / num_runs - 0.95) < 0.03


def test_one_unit_has_no_interval() -> None:
    interval = paired_ratio([3.0], [2.0])
    assert (interval.value, interval.low, interval.high) == (1.5, None, None)
    assert str(interval) == "1.50"
    assert str(Interval(1.5, 1.25, 1.75, 4)) == "1.50 [1.25, 1.75]"


@pytest.mark.parametrize(
    ("a", "b", "level", "message"),
    [
        ([], [], 0.95, "paired"),
        ([1.0], [1.0, 2.0], 0.95, "paired"),
        ([0.0], [1.0], 0.95, "positive"),
        ([1.0], [1.0], 1.0, "level"),
    ],
)
def test_bad_pairs_are_refused(a: list[float], b: list[float], level: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        paired_ratio(a, b, level)


def test_tables() -> None:
    rows: list[dict[str, object]] = [{"arm": "plain", "rate": None, "n": 3}, {"arm": "ngram", "rate": 0.12345, "n": 12}]
    assert table(rows).splitlines() == ["arm    rate   n", "-----  -----  --", "plain  -      3", "ngram  0.123  12"]
    assert table(rows, markdown=True).splitlines()[1] == "| ----- | ----- | -- |"
    with pytest.raises(ValueError, match="at least one row"):
        table([])
    with pytest.raises(ValueError, match="columns"):
        table([*rows, {"arm": "x"}])


def test_provenance_is_complete_and_plain() -> None:
    import json

    facts = json.loads(json.dumps(provenance({"seed": 3, "dtype": torch.float32, "column": None})))
    assert facts["arguments"] == {"seed": 3, "dtype": "torch.float32", "column": None}
    assert facts["packages"]["torch"] == torch.__version__
    assert {"commit", "device", "threads", "platform", "processor", "python", "time"} <= set(facts)


def test_picture(tmp_path: Path) -> None:
    speedups = {"ngram": {"a": Interval(1.2, 1.1, 1.3, 9), "b": Interval(0.9, None, None, 1)}, "lookup": {}}
    picture(tmp_path / "p.png", speedups, {"plain": {"score": 3.0}, "ngram": {"score": 2.0, "propose": 0.5}})
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
