"""Arrivals: a Poisson process by its gaps, files of times, rates; and requests that arrive in a run of the engine."""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import drafts
from exactspec.parser import number_in
from experiments.harness.building import build_shared
from experiments.harness.rounds import doubling
from experiments.load.__main__ import _limit, above_0, parse
from experiments.load.load_arms import ArmSpec, repeats_plain
from experiments.load.measuring_loads import (
    arrivals_of,
    at_rate,
    cells_of,
    mean_rate,
    poisson_arrivals,
    rates_of,
    read_arrivals,
)
from oracles import TabularLM
from specdec import SamplingParams, SharedBudget, SpeculativeDecoder
from tests.support.calibration import LEVEL, p_value
from tests.support.models.tiny_models import tiny_transformer

POISSON = {"arrivals": None, "seconds": 10.0, "warm_up": 0.2, "seed": 0, "rates": None, "loads": [1.0, 0.5, 1.0]}


QUARTERS = -np.log([0.75, 0.5, 0.25])


def pairs_of_gaps(times: list[float], rate: float) -> Any:
    """Return how often a gap and the next one, of pairs that share none, lie in which quarters of their law."""
    gaps = rate * np.diff(times, prepend=0.0)
    quarters = np.searchsorted(QUARTERS, gaps[: len(gaps) // 2 * 2].reshape(-1, 2))
    return np.bincount(quarters @ [4, 1], minlength=16)


def test_gaps_are_exponential_and_independent() -> None:
    even = np.full(16, 1 / 16)
    counts = pairs_of_gaps(poisson_arrivals(4.0, 5000.0, seed=1), 4.0)
    assert p_value("gaps of arrivals", counts, even) > LEVEL
    # What the test can see: arrivals at a rate that is a tenth off, and those of which each gap is drawn twice.
    assert p_value("gaps of arrivals", pairs_of_gaps(poisson_arrivals(4.0, 5000.0, seed=1), 4.4), even) < LEVEL
    twice = np.cumsum(np.repeat(np.diff(poisson_arrivals(4.0, 5000.0, seed=1)), 2))
    assert p_value("gaps of arrivals", pairs_of_gaps(twice.tolist(), 4.0), even) < LEVEL


def test_a_seed_gives_the_same_gaps_on_the_scale_of_the_rate() -> None:
    slow, fast = poisson_arrivals(1.0, 100.0, 3), poisson_arrivals(4.0, 25.0, 3)
    assert fast == pytest.approx([time / 4 for time in slow])
    assert poisson_arrivals(1.0, 100.0, 3) == slow
    assert poisson_arrivals(1.0, 100.0, 4) != slow
    assert all(0 < time < 100 for time in slow)
    assert (len(slow), len(poisson_arrivals(0.7, 5.0, 0))) == (100, 4)
    assert poisson_arrivals(1e-9, 1.0, 0) == []


def test_times_of_a_file_begin_at_0_and_keep_their_shape_at_another_rate(tmp_path: Path) -> None:
    (tmp_path / "times").write_text("5\n5.5\n\n9\n", encoding="utf-8")
    times = read_arrivals(tmp_path / "times")
    assert times == [0.0, 0.5, 4.0]
    assert mean_rate(times) == 0.5
    assert at_rate(times, 1.0) == [0.0, 0.25, 2.0]
    arguments = {**POISSON, "arrivals": str(tmp_path / "times"), "warm_up": 0.1}
    found, window = arrivals_of(arguments, 1.0)
    assert found == [0.0, 0.25, 2.0]
    assert (window.begin, window.end) == (0.2, 2.0)
    assert rates_of(arguments, 99.0) == [0.5]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("1\nx\n", "line 2: 'x'"),
        ("2\n1\n", "line 2: '1'"),
        ("1\nnan\n", "'nan'"),
        ("1\n1\n", "two different"),
        ("", "two"),
    ],
)
def test_a_file_that_tells_no_times_is_refused(text: str, told: str, tmp_path: Path) -> None:
    (tmp_path / "times").write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=f"^--arrivals .*{told}"):
        read_arrivals(tmp_path / "times")
    with pytest.raises(ValueError, match=r"^--arrivals .*absent: cannot be read"):
        read_arrivals(tmp_path / "absent")


def test_rates_are_given_in_one_way(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(["--rates", "1", "--loads", "0.5"])
    assert "argument --loads: not allowed with argument --rates" in capsys.readouterr().err


def test_a_load_in_which_nobody_arrives_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no request of 1e-06 a second arrives in the 8 s that count: give more"):
        arrivals_of(POISSON, 1e-6)
    with pytest.raises(ValueError, match=r"no request of 5e-07 a second arrives"):
        rates_of(POISSON, 1e-6)
    times, window = arrivals_of(POISSON, 2.0)
    assert times == poisson_arrivals(2.0, 10.0, 0)
    assert (window.begin, window.end) == (2.0, 10.0)


def test_rates_are_asked_for_or_shares_of_the_capacity() -> None:
    assert rates_of(POISSON, 3.0) == [1.5, 3.0]
    assert rates_of({**POISSON, "rates": [2.0, 1.0, 2.0]}, 3.0) == [1.0, 2.0]


def test_every_rate_begins_with_another_arm() -> None:
    cells = cells_of([1.0, 2.0], ["plain", "a", "b"])
    assert [(cell.index, cell.rate, cell.arm) for cell in cells] == [
        (1, 1.0, "plain"), (2, 1.0, "a"), (3, 1.0, "b"), (4, 2.0, "a"), (5, 2.0, "b"), (6, 2.0, "plain"),
    ]  # fmt: skip
    assert cells[3].kind == "a at 2 requests/s"
    assert [doubling(most) for most in (1, 2, 5, 8)] == [[1], [1, 2], [1, 2, 4, 5], [1, 2, 4, 8]]


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("prompt_lookup", "prompt_lookup"),
        ("small_transformer:4", "small_transformer 4"),
        ("small_transformer/9", "small_transformer, budget 9"),
        ("small_transformer:4/9", "small_transformer 4, budget 9"),
    ],
)
def test_arms_are_read_from_a_word(text: str, label: str) -> None:
    assert ArmSpec.parse(text).label == label


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("prompt_lookup:", "give NAME, NAME:LENGTH"),
        ("small_transformer:4/", "give NAME, NAME:LENGTH"),
        ("small_transformer:0", "a length of 0 drafts nothing, as plain decoding does; give :1 or more"),
        ("small_transformer:4/0", "a budget of 0 verifies no draft; give /1 or more"),
        ("magic:2", "there is no strategy 'magic': there are "),
        ("lookahead:2", "lookahead has no draft length; leave :2 out"),
    ],
)
def test_another_word_is_refused(text: str, told: str) -> None:
    with pytest.raises(ValueError, match=f"^--arms {text}: {told}"):
        ArmSpec.parse(text)


def test_an_option_that_is_missing_has_the_name_that_this_command_line_gives_it() -> None:
    with pytest.raises(ValueError, match=r"^eagle3: give --eagle3-head DIR, .*: none is shipped for a-model"):
        build_shared("eagle3", parse(["--oracle", "a-model"]), tiny_transformer())


def test_limits_and_shares_are_read_from_words() -> None:
    assert _limit("ttft:250") == ("ttft", 0.25)
    share, closed = number_in("[0, 1)"), number_in("[0, 1]")
    assert (share("0.5"), share("0"), closed("1"), above_0("2")) == (0.5, 0.0, 1.0, 2.0)
    for read, text in (
        (_limit, "itl:5"),
        (_limit, "tpot:0"),
        (share, "1"),
        (closed, "1.1"),
        (closed, "nan"),
        (above_0, "0"),
        (above_0, "inf"),
        (above_0, "x"),
    ):
        with pytest.raises(argparse.ArgumentTypeError):
            read(text)


@pytest.mark.parametrize(
    ("heat", "rule", "same"),
    [(0.0, "rejection", True), (0.8, "rejection", False), (0.8, "coupled", True), (0.0, "typical", False)],
)
def test_outputs_are_plain_decodings_or_as_long(heat: float, rule: str, same: bool) -> None:
    assert repeats_plain({"temperature": heat, "rule": rule}) == same


PROMPTS = [[1], [2, 1], [3], [1, 2, 3], [2]]


@pytest.mark.parametrize("budget", [None, SharedBudget(2)])
@pytest.mark.parametrize("rule", ["coupled", "standard"])
def test_tokens_do_not_depend_on_when_a_request_arrives(rule: str, budget: Any) -> None:
    oracle, model = (TabularLM.random(4, 2, seed, eos_id=0) for seed in (0, 1))
    decoder = SpeculativeDecoder(oracle, drafts.SmallTransformer(model, 2), rule, budget=budget)
    sampling = SamplingParams(temperature=float(rule == "coupled"))
    wanted = decoder.generate(PROMPTS, 12, sampling, batch_size=2)
    state, order = decoder.start([], batch_size=2, max_length=15), [3, 0, 4, 1, 2]
    assert not state.has_work
    with pytest.raises(ValueError, match="state has no work left; add a request, or call finish"):
        decoder.step(state)
    for number, prompt in enumerate(order):
        assert state.add(decoder.request(PROMPTS[prompt], 12, sampling, (0, prompt))) == number
        state, info = decoder.step(state)
        if not number:
            assert info.requests.tolist() == [0]
    while state.has_work:
        decoder.step(state)
    result = decoder.finish(state)
    assert result.tokens == [wanted.tokens[prompt] for prompt in order]
    with pytest.raises(ValueError, match="this state was finished: call start for a new one"):
        state.add(decoder.request([1]))
