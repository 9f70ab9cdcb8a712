"""One meaning of speed: an experiment written by hand has the same two ratios wherever its speed is told."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from experiments import watch
from experiments.advise import cells
from experiments.advise.__main__ import advice
from experiments.advise.advice_parts import Parts
from experiments.advise.cells import Advice
from experiments.harness.arms import PLAIN
from experiments.harness.findings.summary import conclusion, write
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END, SPEEDS
from experiments.report.across import overview
from experiments.report.one_run import section_of
from experiments.spec_bench.spec_bench_tables import tables_of
from specdec.stats.report.intervals import bootstrap_ratio, median_ratio, paired_ratio
from specdec.stats.report.printout import markdown_of
from tests.support.runs.hand_page import FACTS, hand_page_run
from tests.support.runs.hand_run import DRAFTED, Hand, HandRun, hand

GLOSSARY = Path(__file__).parents[3] / "docs" / "start" / "glossary.md"


@pytest.fixture
def made() -> Hand:
    """Three prompts in six rounds: intervals are over rounds."""
    return hand(rounds=6)


def rounds_of(made: Hand, arm: str) -> list[list[HandRun]]:
    return [[unit[number] for unit in made.by_unit(arm)] for number in range(made.rounds)]


def alone(runs: Sequence[HandRun]) -> float:
    return sum(run.seconds - run.prefill for run in runs)


def whole(runs: Sequence[HandRun]) -> float:
    return sum(run.wall for run in runs)


def by_hand(made: Hand) -> dict[str, str]:
    """Return both ratios with their intervals; all arms emit the same tokens."""
    plain, own = (rounds_of(made, arm) for arm in (PLAIN, DRAFTED))
    ratios = {DECODING_ALONE: alone, END_TO_END: whole}
    return {name: str(paired_ratio([*map(of, plain)], [*map(of, own)])) for name, of in ratios.items()}


def cells_of(row: dict[str, Any]) -> dict[str, Any]:
    return {name: row[name] for name in (DECODING_ALONE, END_TO_END)}


def test_both_ratios_are_the_same_everywhere(made: Hand, tmp_path: Path) -> None:
    wanted = by_hand(made)
    words = f"decoding alone {wanted[DECODING_ALONE]}, end to end {wanted[END_TO_END]}"
    assert wanted[DECODING_ALONE] != wanted[END_TO_END]
    assert conclusion(made.outcome).splitlines()[0].endswith(f"is faster than plain decoding: {words}.")

    printed = markdown_of(write(made.outcome, tmp_path, FACTS, []))
    (line,) = (row for row in printed.splitlines() if row.startswith(f"| {DRAFTED} ") and row.endswith("3/3       |"))
    assert [cell.strip() for cell in line.split("|")[3:5]] == [*wanted.values()]

    run = hand_page_run(made, tmp_path)
    kept = run.summary["arms"][DRAFTED]
    for name, ratio in wanted.items():
        found = kept[name.replace(" ", "_")]["all"]
        assert ratio == f"{found['value']:.2f} [{found['low']:.2f}, {found['high']:.2f}]"

    section = section_of(run)
    assert isinstance(section.data, dict)
    (verdict,) = section.data["verdicts"]
    assert cells_of(verdict) == wanted
    first, second = (figure["data"][0]["x"][0] for figure in section.data["figures"][:2])
    assert [f"{first:.2f}", f"{second:.2f}"] == [ratio.split()[0] for ratio in wanted.values()]
    assert f"{DRAFTED}: {words}" in section.body
    assert f"<li>D{words[1:]}: a step emits" in section.body
    (row,) = overview([run])
    assert cells_of(row) == wanted

    draft: Any = None
    advised = Advice(DRAFTED, "3 tokens", Parts(3.0, 1.0, 0.5, 1.2, 0.1, 0.2), "drafts of 3", None, draft)
    row = cells._row(advised, made.outcome, made.stats(PLAIN))
    assert cells_of(row) == wanted
    assert advice("batch 1", [row]) == f"batch 1: {DRAFTED}, 3 tokens: {words}."

    decoding, end = ([row for row in one.rows if row["task"] == "overall"] for one in tables_of(made.outcome))
    assert (decoding[0][DECODING_ALONE], end[0][END_TO_END]) == tuple(wanted.values())


def test_what_explains_the_speed_ends_with_the_speed(made: Hand, tmp_path: Path) -> None:
    (row,) = (row for row in hand_page_run(made, tmp_path).summary["reasons"] if row["arm"] == DRAFTED)
    assert f"{row[DECODING_ALONE]:.2f}" == by_hand(made)[DECODING_ALONE].split()[0]


def test_a_peer_has_no_decoding_alone(tmp_path: Path) -> None:
    made = hand(rounds=6, with_peer=True)
    run = hand_page_run(made, tmp_path)
    (row,) = (row for row in section_of(run).data["verdicts"] if row["arm"] == "peer")  # type: ignore[index]
    assert row[DECODING_ALONE] is None
    assert re.fullmatch(r"[\d.]+ \[[\d.]+, [\d.]+\]", row[END_TO_END])


def test_a_verdict_goes_by_end_to_end(made: Hand, tmp_path: Path) -> None:
    (verdict,) = section_of(hand_page_run(made, tmp_path)).data["verdicts"]  # type: ignore[index]
    plain, own = (rounds_of(made, arm) for arm in (PLAIN, DRAFTED))
    assert verdict["bootstrap"] == str(bootstrap_ratio([*map(whole, plain)], [*map(whole, own)]))


def test_watch_tells_medians_of_the_same_two_ratios(made: Hand) -> None:
    plain, own = (rounds_of(made, arm) for arm in (PLAIN, DRAFTED))
    found = [median_ratio([*map(of, plain)], [*map(of, own)]) for of in (alone, whole)]
    first, second, about, loops = watch.speeds(made.outcome, DRAFTED)
    assert first == f"Decoding alone: {found[0]} times as fast as plain decoding."
    assert second == f"End to end: {found[1]} times as fast as plain decoding."
    assert about.startswith("That is the median of 6 interleaved pairs")
    assert about.endswith("with its 95 % interval.")
    # The third text ends in a loop of five tokens, of 22.
    outside = made.outcome.speedup_outside(DRAFTED)
    assert outside is not None
    assert loops == (
        f"23% of its tokens stand in loops, which are easily drafted; decoding alone outside loops {outside.value:.2f}."
    )


def test_watch_claims_nothing_where_an_interval_holds_1() -> None:
    made = hand(count=1, rounds=6)
    kept = made.outcome.done[0]["arms"][DRAFTED]
    plain = made.outcome.done[0]["arms"][PLAIN]
    # One pair of six is slower; its wall time is not.
    kept["decoding"] = [2 * plain["decoding"][0], *(seconds / 2 for seconds in plain["decoding"][1:])]
    kept["seconds"] = [seconds / 2 for seconds in plain["seconds"]]
    first, second, *_ = watch.speeds(made.outcome, DRAFTED)
    assert first == "Decoding alone: not told apart from plain decoding, 2.00 [0.50, 2.00]."
    assert second == "End to end: 2.00 [2.00, 2.00] times as fast as plain decoding."


def test_watch_claims_nothing_of_few_pairs() -> None:
    first, second, about, *_ = watch.speeds(hand(count=1, rounds=5).outcome, DRAFTED)
    assert first.startswith("Decoding alone: not told apart from plain decoding, ")
    assert second.startswith("End to end: not told apart from plain decoding, ")
    assert about.startswith("That is over 5 interleaved pairs, on this prompt")
    assert about.endswith("fewer than 6 have no interval.")


def test_watch_compares_what_was_shown_and_what_was_timed() -> None:
    made = hand(count=1, rounds=6)
    tokens = [*made.units[0][0].tokens]
    assert watch.comparison(made.outcome, DRAFTED, tokens) == "The same tokens as plain decoding."
    assert watch.comparison(made.outcome, DRAFTED, tokens[:-1]) == "Other tokens than plain decoding!"
    made.outcome.done[0]["arms"][DRAFTED]["identical"] = [False]
    assert watch.comparison(made.outcome, DRAFTED, tokens) == "Other tokens than plain decoding!"


@pytest.mark.parametrize(("count", "places"), [(5, None), (6, (0, 5)), (8, (0, 7)), (9, (1, 7)), (12, (2, 9))])
def test_the_interval_of_a_median(count: int, places: tuple[int, int] | None) -> None:
    """The bounds' places by the binomial law: two of 12 may lie beyond each, as P(X <= 2) is 79 / 4096."""
    ratios = [float((7 * i) % count + 1) for i in range(count)]
    found = median_ratio(ratios, [1.0] * count)
    assert found.value == (count + 1) / 2
    assert (found.low, found.high) == ((None, None) if places is None else tuple(place + 1.0 for place in places))
    with pytest.raises(ValueError, match="each denominator must be positive"):
        median_ratio([1.0, 1.0], [1.0, 0.0])


def test_the_glossary_defines_both_ratios() -> None:
    text = " ".join(GLOSSARY.read_text(encoding="utf-8").split())
    assert f"- **{DECODING_ALONE}**: {SPEEDS[DECODING_ALONE]}" in text
    assert f"- **{END_TO_END}**: {SPEEDS[END_TO_END]}" in text
