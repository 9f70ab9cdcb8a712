"""What a run tells of a device: its time by phase, its idle time, waits and padding, on one that is not there."""

from itertools import count
from types import SimpleNamespace

import pytest

import drafts
from experiments.harness.findings.step_columns import device_table, device_work
from oracles.graphed import GraphedTransformer
from specdec import SpeculativeDecoder
from specdec.contracts import PHASES
from specdec.engine.metering import marking, settle
from specdec.stats import Stats
from specdec.transfers import crossings
from tests.graphed.emulated import CUDA, emulated_device
from tests.graphed.pairs import PROMPTS, TOKENS, moved, pair

# Milliseconds of propose, score, verify, commit and sync, which is drafting too, and from there to the next step.
LAPS = (0.001, 0.004, 0.002, 0.0005, 0.00025, 0.1)


class Marks:
    """Puts marks at scripted times; the device comes to a mark when ``behind`` more were put."""

    def __init__(self, behind: int, laps=LAPS) -> None:
        self.behind, self.laps, self.put, self.waited = behind, laps, 0, []

    def __call__(self):
        index, self.put = self.put, self.put + 1
        at = sum(self.laps[i % len(self.laps)] for i in range(index))
        return SimpleNamespace(
            at=at,
            query=lambda: self.put > index + self.behind,
            synchronize=lambda: self.put > index + self.behind or self.waited.append(index),
            elapsed_time=lambda other: other.at - at,
        )


def run(monkeypatch, source, **asked):
    monkeypatch.setattr(GraphedTransformer, "weight_bytes", 0)
    with emulated_device():
        decoder = SpeculativeDecoder(pair(moved).target, source, max_cache_bytes=10**9)
        return decoder.generate(PROMPTS, TOKENS, **asked)


@pytest.mark.parametrize("behind", [0, 5])
def test_phases_are_the_devices_and_no_step_waits_for_them(behind, monkeypatch):
    marks = Marks(behind)
    monkeypatch.setattr("specdec.engine.metering.marking", lambda device: marks)
    result = run(monkeypatch, drafts.PromptLookup(4))
    stats, steps = result.stats, result.stats.target_calls
    assert marks.put == 6 * steps
    for phase, milliseconds in zip(PHASES, (LAPS[0] + LAPS[4], *LAPS[1:4]), strict=True):
        assert stats.seconds[phase] == pytest.approx(1e-3 * milliseconds * steps)
    columns = result.records.columns()
    shares = [share * rows for share, rows in zip(columns["seconds_score"], columns["num_rows"], strict=True)]
    assert shares == pytest.approx([4e-6] * len(shares))
    # Only the end of the run waits, and only for what the device has not come to.
    assert len(marks.waited) == (1 if behind else 0)
    assert sum(one.seconds["score"] for one in stats.requests) == pytest.approx(stats.seconds["score"])


def test_a_devices_phases_never_take_longer_than_the_hosts():
    put, kept = Marks(0, laps=(3e6, 1e6, 1e6, 1e6, 1e6)), dict(zip(PHASES, (0.5, 0.125, 0.125, 0.0), strict=True))
    settle(kept, [put() for _ in range(6)])
    assert sum(kept.values()) == pytest.approx(0.75)
    assert kept["propose"] == pytest.approx(4 * kept["score"])


def test_there_are_no_marks_without_a_device(monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert marking(CUDA) is None


def test_a_device_is_idle_from_a_wait_to_the_next_copy(monkeypatch):
    ticks = count()
    monkeypatch.setattr("specdec.transfers.time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    crossings(CUDA).waited = -1000.0  # of a run before this one
    stats = run(monkeypatch, drafts.PromptLookup(4), batch_size=2).stats
    # Each gap is a tick. A step that follows prompts follows work of theirs: no time of a step was idle.
    seating = stats.prefill_calls
    assert 1 < seating < stats.target_calls / 2
    assert stats.device["idle_seconds"] == stats.target_calls - seating


def test_the_table_has_what_a_step_made_the_device_do(monkeypatch):
    result = run(monkeypatch, drafts.PromptLookup(4))
    stats, nodes = result.stats, sum(result.records.columns()["num_nodes"])
    outcome = SimpleNamespace(arms=["peer", "lookup"], stats={"peer": None, "lookup": stats}.get)
    outcome.num_scored_nodes = lambda arm: nodes
    table = device_table(outcome)
    assert table is not None
    (row,) = table.rows
    steps, counts = stats.target_calls, stats.device
    assert (row["copies up"], row["copies down"], row["waits"], row["passes"], row["in graphs"]) == (1, 1, 1, 1, "0%")
    assert row["idle ms"] == pytest.approx(1e3 * counts["idle_seconds"] / steps) != 0
    assert row["idle"] == f"{counts['idle_seconds'] / (stats.total_seconds - stats.seconds['prefill']):.0%}"
    real = stats.num_drafted + stats.num_steps
    assert real + counts["padded_nodes"] <= counts["computed_nodes"]
    assert row["padding"] == f"{1 - real / counts['computed_nodes']:.0%}" != "0%"


def told(work):
    """Return what was counted of a step's work."""
    return {name: value for name, value in (work or {}).items() if value is not None}


def test_what_is_not_counted_is_not_told():
    assert device_work(Stats(target_calls=20), 40) is None
    counts = {"passes_in_graphs": 0, "passes_outside": 20, "captures": 0, "padded_nodes": 10, "computed_nodes": 50}
    work = device_work(Stats(target_calls=20, num_steps=20, num_drafted=10, device=counts), 40)
    assert told(work) == {"passes": 1, "in graphs": 0, "captures": 0, "padding": 0.4}


def test_a_capture_waits_too():
    counts = {"uploads": 20, "downloads": 20, "idle_seconds": 1.0}
    counts |= {"passes_in_graphs": 15, "passes_outside": 5, "captures": 5}
    stats = Stats(target_calls=20, num_steps=20, device=counts, seconds={"prefill": 2.0, "score": 4.0})
    assert told(device_work(stats, 20)) == {
        "copies up": 1, "copies down": 1, "waits": 1.25, "idle ms": 50, "idle": 0.25, "passes": 1, "in graphs": 0.75,
        "captures": 5, "padding": 0,
    }  # fmt: skip
