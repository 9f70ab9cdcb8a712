"""The guard between two runs: falls are found, unchanged programs pass, runs of something else are refused by name."""

import json
import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from experiments import guard
from experiments.guard import FALSE_ALARMS, POWER, judge
from experiments.harness.journal import JOURNAL
from experiments.harness.settings import Settings
from specdec.stats import Stats
from specdec.stats.report import intervals
from specdec.stats.report.intervals import Interval, ratio_change, smallest_loss, swap_p_value
from tests.support.pairwise import pairwise

UNITS = 16
ARGUMENTS = {"oracle": "code", "prompts": "p.jsonl", "temperature": 0.8, "rule": "rejection", "seed": 0, "out": "runs"}
MACHINE = {"processor": "One", "cores": 2, "threads": 2, "device": "cpu"}


def a_chain(steps: int, accepted: int, seconds: float) -> dict[str, Any]:
    """Return statistics of steps that draft a token each, of which so many stand."""
    return Stats(
        num_requests=1, num_steps=steps, target_calls=steps, num_drafted=steps, num_accepted=accepted,
        num_emitted=steps + accepted, num_recovered=steps - accepted, num_bonus=accepted,
        num_steps_full=steps, num_emitted_full=steps + accepted, num_draft_passes=steps, num_scored_nodes=2 * steps,
        steps_by_depth=(0, steps), tried_at_position=(steps,), accepted_at_position=(accepted,),
        tried_at_rank=(steps,), accepted_at_rank=(accepted,), drafted_by_source={"x": steps},
        tried_by_source={"x": steps}, accepted_by_source={"x": accepted}, seconds={"prefill": 0.0, "score": seconds},
    ).as_dict()  # fmt: skip


def plainly(steps: int) -> dict[str, Any]:
    return Stats(
        num_requests=1, num_steps=steps, target_calls=steps, num_emitted=steps, num_bonus=steps,
        num_steps_full=steps, num_emitted_full=steps, num_scored_nodes=steps, steps_by_depth=(steps,),
        seconds={"prefill": 0.0, "score": float(steps)},
    ).as_dict()  # fmt: skip


def an_arm(stats: dict[str, Any]) -> dict[str, Any]:
    claims = {"identical": [True], "repeats_plain": True, "claim": "exact", "rule": "standard", "calibration": None}
    how = {
        "settings": vars(Settings("native", "float32", "cpu", bitwise=True, batch_size=1, threads=2)),
        **{"judge": "standard", "drafter": "", "kernels": "native", "finish_reasons": [["length"]]},
    }
    seconds = [sum(stats["seconds"].values())]
    return {"seconds": seconds, "num_tokens": stats["num_emitted"], "stats": stats, "records": {}, **claims, **how}


def a_run(
    folder: Path,
    accepted: Callable[[int], int] = lambda unit: 20 + unit,
    seconds: Callable[[int], float] = lambda unit: 50.0 + unit,
    facts: dict[str, Any] | None = None,
    names: str = "p{}",
    arms: tuple[str, ...] = ("drafted",),
    **arguments: Any,
) -> Path:
    """Write a run of 16 prompts: plain decoding takes 100 s each, and drafts are accepted as often as asked for."""
    folder.mkdir()
    units = []
    for unit in range(UNITS):
        own = {arm: an_arm(a_chain(60, accepted(unit), seconds(unit))) for arm in arms}
        entry = {"unit": unit, "kind": "a", "prompts": [names.format(unit)], "error": None}
        units.append({**entry, "arms": {"plain": an_arm(plainly(100)), **own}})
    provenance = {"experiment": "compare", **MACHINE, "arguments": ARGUMENTS | arguments, "commit": folder.name}
    summary = {"provenance": provenance | (facts or {}), "problems": [], "arms": {arm: {} for arm in ("plain", *arms)}}
    (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    (folder / "units.jsonl").write_text("".join(json.dumps(unit) + "\n" for unit in units), encoding="utf-8")
    return folder


def told(run: Path, reference: Path, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, str]:
    status = guard.main([str(run), str(reference), *options])
    return status, " ".join(capsys.readouterr().out.split())


def test_a_run_does_not_fall_behind_itself(tmp_path, capsys):
    folder = a_run(tmp_path / "new")
    status, printed = told(folder, folder, capsys)
    assert status == 0
    assert printed.count("1.000 [1.000, 1.000]") == 2
    assert "over all 2 figures together (0.50% a figure), as long as speeds of whole runs" in printed
    assert "differ by less than the tolerance of 5.0%. Figures " in printed
    assert "Nothing fell. Of guards of an unchanged program 1% at most" in printed
    assert "are roughly normal; it is found less often if a few prompts stall" in printed


def test_a_fall_of_acceptance_and_one_of_speed_are_told_apart(tmp_path, capsys):
    old = a_run(tmp_path / "old")
    worse = a_run(tmp_path / "worse", accepted=lambda unit: 16 + unit + unit % 3)
    status, printed = told(worse, old, capsys)
    assert (status, "FELL: accept_len of drafted. " in printed) == (1, True)
    # 60 steps of each prompt, and 3.0 of the 27.5 accepted tokens of a mean prompt less.
    run, reference = ((60 * 16 + total) / (60 * 16) for total in (16 * 16 + 120 + 15, 20 * 16 + 120))
    assert f" {run:.3f} {reference:.3f} " in printed
    slower = a_run(tmp_path / "slower", seconds=lambda unit: 54.0 + unit + unit % 3)
    status, printed = told(slower, old, capsys)
    assert (status, "FELL: speed of drafted. " in printed) == (1, True)
    # Better ones, and the reference in the place of the run, are no fall.
    assert told(old, worse, capsys)[0] == told(old, slower, capsys)[0] == 0


def test_a_newer_run_that_was_interrupted_in_the_folder_is_told_and_the_whole_one_judged(tmp_path, capsys):
    old, new = a_run(tmp_path / "old"), a_run(tmp_path / "new")
    (new / JOURNAL).write_text((new / "units.jsonl").read_text(encoding="utf-8").partition("\n")[0], encoding="utf-8")
    assert guard.main([str(new), str(old)]) == 0
    printed = capsys.readouterr()
    assert "Nothing fell." in printed.out
    assert printed.err == f"RUN {new}: a newer run was interrupted there; this is the one before it, whole\n"


def test_a_loss_of_speed_within_the_tolerance_is_none(tmp_path, capsys):
    old = a_run(tmp_path / "old")
    slower = a_run(tmp_path / "slower", seconds=lambda unit: 1.04 * (50.0 + unit))
    status, printed = told(slower, old, capsys)
    assert (status, " drafted speed " in printed, " 5.0% " in printed) == (0, True, True)
    status, printed = told(slower, old, capsys, "--speed-tolerance", "0.03")
    assert (status, "FELL: speed of drafted. " in printed) == (1, True)
    # Acceptance has none.
    worse = a_run(tmp_path / "worse", accepted=lambda unit: 19 + unit)
    status, printed = told(worse, old, capsys, "--speed-tolerance", "0.5")
    assert (status, "FELL: accept_len of drafted. " in printed) == (1, True)
    for wrong in ("1", "-0.1", "nan"):
        with pytest.raises(SystemExit, match=r"--speed-tolerance must be a share in \[0, 1\)"):
            told(old, old, capsys, "--speed-tolerance", wrong)


def test_what_a_whole_run_shares_is_no_alarm_within_the_tolerance():
    """24 units with 1 % of noise, in runs that differ as a whole by 1 %; without tolerance that is often an alarm."""
    rng, alarms, runs = np.random.default_rng(0), {0.0: 0, 0.05: 0}, 60

    def times() -> tuple[Any, Any]:
        plain, own, drift = rng.normal(size=24), rng.normal(size=24), rng.normal()
        return np.exp(0.01 * plain), 0.7 * np.exp(0.01 * (own + drift))

    for _ in range(runs):
        new, old = times(), times()
        for tolerance in alarms:
            alarms[tolerance] += judge([guard.Figure("x", guard.SPEED, new, old, 1 - tolerance)])[0].fell
    assert alarms[0.0] > runs / 10
    assert alarms[0.05] == 0


def test_on_another_machine_acceptance_alone_is_judged(tmp_path, capsys):
    old = a_run(tmp_path / "old")
    other = a_run(tmp_path / "other", seconds=lambda unit: 99.0, facts={"processor": "Two", "backend": "eager"})
    status, printed = told(other, old, capsys)
    assert status == 0
    assert "Speed is not judged: another machine, or another way to use it (processor Two in place of One)" in printed
    assert "over all 1 figures together (1.00% a figure). Speed is not judged: " in printed
    other = a_run(tmp_path / "both", lambda unit: 10 + unit % 3, facts={"threads": 1})
    status, printed = told(other, old, capsys)
    assert (status, "threads 1 in place of 2" in printed) == (1, True)


@pytest.mark.parametrize("changes", [{"threads": 1}, {"device": "cuda"}, {"backend": "eager"}])
def test_options_that_place_models_may_differ_and_are_said(changes, tmp_path, capsys):
    ((name, value),) = changes.items()
    old, new = a_run(tmp_path / "old"), a_run(tmp_path / "new", seconds=lambda unit: 99.0, **changes)
    status, printed = told(new, old, capsys)
    assert (status, f"(--{name} {value} in place of None)" in printed, " drafted speed " in printed) == (0, True, False)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rule": "coupled"}, "another --rule: 'coupled' in RUN, 'rejection' in REFERENCE"),
        ({"oracle": "code-draft"}, "another --oracle: 'code-draft' in RUN"),
        ({"temperature": 0.0, "facts": {"chat": {"prompts": 2}}}, "another --temperature"),
        ({"ngram.max_n": 3, "ignore_eos": True}, "another --ngram-max-n: 3 in RUN, None in REFERENCE"),
        ({"facts": {"template": "none"}}, "another template: 'none' in RUN, None in REFERENCE"),
        ({"facts": {"chat": {"template": "own", "stops": [1]}}}, "another chat, template: 'own' in RUN, None in"),
        ({"facts": {"experiment": "lengths"}}, "another experiment"),
        ({"names": "q{}"}, "another list of prompts"),
        ({"arms": ("drafted", "more")}, "another list of arms"),
    ],
)
def test_runs_of_something_else_are_refused_by_name(changes, message, tmp_path):
    old, new = a_run(tmp_path / "old"), a_run(tmp_path / "new", **changes)
    with pytest.raises(SystemExit, match=f"guard: {message}"):
        guard.main([str(new), str(old)])


def test_where_results_lie_is_no_difference(tmp_path, capsys):
    old = a_run(tmp_path / "old")
    assert told(a_run(tmp_path / "new", out="elsewhere", facts={"packages": {"torch": "9"}}), old, capsys)[0] == 0


def test_runs_that_tell_nothing_are_refused(tmp_path):
    old = a_run(tmp_path / "old")
    alone = a_run(tmp_path / "alone", arms=())
    with pytest.raises(SystemExit, match="no arm beside plain decoding drafts: there is nothing to guard"):
        guard.main([str(alone), str(alone)])
    broken = a_run(tmp_path / "broken")
    summary = json.loads((broken / "summary.json").read_text())
    (broken / "summary.json").write_text(json.dumps(summary | {"problems": ["a prompt failed"]}))
    with pytest.raises(SystemExit, match="it ended with problems, the first: a prompt failed"):
        guard.main([str(broken), str(old)])
    with pytest.raises(SystemExit, match="no such folder"):
        guard.main([str(tmp_path / "none"), str(old)])


def test_too_few_prompts_are_refused(tmp_path, monkeypatch):
    """A fall of all units has a p of 2^-n, which has to lie below the rate of a figure."""
    monkeypatch.setitem(globals(), "UNITS", 7)
    few = a_run(tmp_path / "few")
    needed = math.ceil(math.log2(2 / FALSE_ALARMS))
    assert needed == 8
    with pytest.raises(SystemExit, match=r"7 prompts or batches cannot show a fall of 2 figures .*at least 8"):
        guard.main([str(few), str(few)])


def test_what_the_units_share_is_no_doubt():
    hard = np.random.default_rng(0).uniform(1, 5, 20)
    found = ratio_change((3 * hard, np.ones(20)), (4 * hard, np.ones(20)))
    assert (found.low, found.high) == pytest.approx((0.75, 0.75))
    with pytest.raises(ValueError, match="of the same units; got 20 and 4"):
        ratio_change((hard, np.ones(20)), (hard[:4], np.ones(4)))


def test_the_p_value_of_swaps_by_enumeration(monkeypatch):
    new, old = ([3.0, 4.0, 5.0, 5.5], [1.0, 1.5, 2.0, 1.0]), ([4.0, 4.5, 4.0, 7.0], [1.0, 1.0, 2.0, 1.5])

    def mean(signs: tuple[int, ...], bound: float) -> float:
        changes = [math.log(a / b / (c / d) / bound) for a, b, c, d in zip(*new, *old, strict=True)]
        weights = [math.sqrt(b * d) for b, d in zip(new[1], old[1], strict=True)]
        return sum(sign * weight * change for sign, weight, change in zip(signs, weights, changes, strict=True))

    for bound, least in ((1.0, 0.05), (0.8, 0.5)):
        means = [mean(signs, bound) for signs in product((1, -1), repeat=4)]
        share = np.mean([one <= means[0] + 1e-12 for one in means])
        assert least < share < 0.95
        assert swap_p_value(new, old, bound) == share
        with monkeypatch.context() as patch:
            patch.setattr(intervals, "_ENUMERATED", 0)
            assert swap_p_value(new, old, bound) == pytest.approx(share, abs=0.01)
    assert swap_p_value(new, new) == 1.0
    assert swap_p_value(([value / 2 for value in old[0]], old[1]), old) == 1 / 16
    with pytest.raises(ValueError, match="must be positive to be swapped"):
        swap_p_value(([0.0, 1.0], [1.0, 1.0]), ([1.0, 1.0], [1.0, 1.0]))


def test_the_scale_of_a_whole_run_is_no_evidence():
    """On a machine twice as slow, both times of a unit double."""
    rng = np.random.default_rng(1)
    (a, b), (c, d) = (rng.lognormal(0, 1, (2, 12)) for _ in range(2))
    assert swap_p_value((2 * a, 2 * b), (c, d)) == swap_p_value((a, b), (c, d))


def fewest(count: int) -> int:
    """Return how many prompts show that each of so many figures fell."""
    return max(5, math.ceil(math.log2(count / FALSE_ALARMS)))


# Of the counts that need so many prompts the largest has the strictest bound.
@pytest.mark.parametrize("count", [count for count in range(1, 50) if fewest(count) < fewest(count + 1)])
def test_the_fewest_prompts_that_pass_can_show_a_fall(count):
    units = fewest(count)
    rng, steps = np.random.default_rng(0), np.full(units, 100.0)
    new, old = (200 + rng.normal(size=units), steps), (300 + rng.normal(size=units), steps)
    assert all(one.fell for one in judge([guard.Figure("x", "y", new, old)] * count))  # type: ignore[arg-type]


@pytest.mark.parametrize("heavy", [False, True])
def test_false_alarms_of_all_figures_together_are_as_rare_as_stated(heavy, monkeypatch):
    """With a larger rate than the guard's, so that they can be counted."""
    monkeypatch.setattr(intervals, "_SWAPS", 4_000)
    monkeypatch.setattr(guard, "FALSE_ALARMS", 0.1)
    rng, alarms, runs = np.random.default_rng(2), 0, 200

    def sample() -> tuple[np.ndarray, np.ndarray]:
        noise = 1 + 0.5 * rng.pareto(2.5, 24) if heavy else rng.lognormal(0, 0.3, 24)
        return noise * weights, weights

    for _ in range(runs):
        weights = rng.lognormal(0, 0.5, 24)
        figures = [guard.Figure("x", str(number), sample(), sample()) for number in range(4)]  # type: ignore[arg-type]
        alarms += any(one.fell for one in judge(figures))
    # 0.1 and three standard errors of 0.021.
    assert alarms / runs < 0.165


@pairwise({
    "units": {str(units): units for units in ((7, 1), (8, 2), (10, 8), (12, 4), (14, 2), (20, 8))},
    "bound": (1.0, 0.95), "sigma": {"equal": 0.0, "unequal": 0.3},
})  # fmt: skip
def test_the_smallest_loss_is_found_as_often_as_stated(units, bound, sigma, monkeypatch):
    """Units whose changes have normal logarithms of a known spread, with weights that are equal or not."""
    monkeypatch.setattr(intervals, "_SWAPS", 5_000)
    (n, count), noise, runs, found = units, 0.05, 600, 0
    rng, level = np.random.default_rng(3), 1 - 2 * FALSE_ALARMS / count
    for _ in range(runs):
        weights = rng.lognormal(0, sigma, n)
        error = noise * math.sqrt((weights**2).sum()) / weights.sum()
        half = float(stats.t.ppf(0.5 + level / 2, n - 1)) * error
        loss = smallest_loss(Interval(1.0, math.exp(-half), math.exp(half), n, level), POWER, bound)
        new = ((1 - loss) * weights * np.exp(noise * rng.normal(size=n)), weights)
        change, p_value = ratio_change(new, (weights, weights), level), swap_p_value(new, (weights, weights), bound)
        figure = guard.Figure("x", "y", new, (weights, weights), bound)  # type: ignore[arg-type]
        found += guard.Finding(figure, change, p_value, FALSE_ALARMS / count).fell
    # Three standard errors of 600 runs are 0.037; weights and the two means differ a little.
    assert found / runs == pytest.approx(POWER, abs=0.05)
