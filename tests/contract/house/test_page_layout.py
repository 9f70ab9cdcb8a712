"""How a page is laid out: pictures under the verdicts, reasons folded, all parts in the contents, one colour an arm."""

import base64
import gzip
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.arms import PLAIN
from experiments.report import markup
from experiments.report.charts import colour
from experiments.report.one_run import section_of
from experiments.report.page import Section, pack_plotly, page, plotly_source
from experiments.report.pictures import number_of
from experiments.report.runs import Run
from tests.support.runs.hand_page import hand_page_run
from tests.support.runs.hand_run import DRAFTED, PEER, hand

TITLES = ["Verdicts", "Pictures", "Why", "Speed", "Parts of a step", "Causes", "Acceptance", "Work", "Provenance"]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return hand_page_run(hand(rounds=6, with_peer=True), tmp_path, refused={"other": "no room"})


@pytest.fixture
def section(run: Run) -> Section:
    return section_of(run)


def test_pictures_stand_under_the_verdicts_and_all_parts_in_the_contents(section: Section) -> None:
    assert [*section.parts.values()] == TITLES
    assert re.findall(r'<h3 id="([^"]+)">([^<]+)</h3>', section.body) == [*section.parts.items()]
    text = page("t", [section])
    contents = text[text.index("<nav") : text.index("</nav>")]
    assert re.findall(r'<a href="#([^"]+)">([^<]+)</a>', contents) == [("run", "run"), *section.parts.items()]


def test_parts_have_anchors_of_their_own() -> None:
    with pytest.raises(ValueError, match="'a': give each a name of its own"):
        page("t", [Section("a", "t", "", parts={"b": "x"}), Section("c", "t", "", parts={"a": "y"})])
    with pytest.raises(ValueError, match="'b c': give each a name of its own"):
        page("t", [Section("a", "t", "", parts={"b c": "x"})])


def test_reasons_are_folded_under_the_arms_speed(section: Section) -> None:
    folded = re.findall(r'<details class="reasons"><summary>([^<]*)</summary><ul>', section.body)
    assert [line.partition(":")[0] for line in folded] == [DRAFTED, "other"]
    assert re.fullmatch(rf"{DRAFTED}: decoding alone [^,]*, [^,]*, end to end .*", folded[0])
    assert "Refused: no room" in section.body


def colours_of(figures: list[dict[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield each arm with each colour that a chart gives it."""
    for trace in (trace for figure in figures for trace in figure["data"]):
        found = trace["marker"]["color"] if "marker" in trace else trace["line"]["color"]
        pairs = zip(trace["customdata"], found, strict=True) if isinstance(found, list) else [(trace["name"], found)]
        for arm, one in pairs:
            yield arm.partition(",")[0], re.sub(r"color-mix\(in oklab, (var\(--\w+\)) .*\)", r"\1", one)


def test_an_arm_has_one_colour_in_all_charts(run: Run, section: Section) -> None:
    assert isinstance(section.data, dict)
    found: dict[str, set[str]] = {}
    for arm, one in colours_of(section.data["figures"]):
        found.setdefault(arm, set()).add(one)
    # A step that kept nothing has the colour of a line.
    assert {arm: colours - {"var(--line)"} for arm, colours in found.items()} == {
        PLAIN: {"var(--muted)"},
        DRAFTED: {"var(--c1)"},
        PEER: {"var(--c2)"},
    }


def test_an_arm_has_one_colour_in_all_runs_of_a_page(run: Run) -> None:
    shared = Run(run.folder, "run", "run", run.summary, run.outcome, ("another", PEER, DRAFTED))
    assert [colour(number_of(shared, arm)) for arm in (PEER, DRAFTED)] == ["var(--c2)", "var(--c3)"]


def widths(html: str) -> list[list[str]]:
    """Return the columns of each table."""
    tables = [re.sub("<wbr>", "", text) for text in re.findall("<thead>.*?</thead>", html)]
    return [re.findall(r"<th[^>]*>([^<]*)</th>", text) for text in tables]


def test_a_table_that_is_too_wide_is_cut_into_several_with_the_first_column() -> None:
    row: dict[str, Any] = {"arm": "a" * 10, **{f"n{number}": "x" * 8 for number in range(30)}}
    # 12 of 150 characters for the first column, 10 for each other.
    parts = widths(markup.table([row], "t"))
    assert [len(part) for part in parts] == [14, 14, 5]
    assert [part[0] for part in parts] == ["arm"] * 3
    assert [name for part in parts for name in part[1:]] == [*row][1:]
    assert [len(part) for part in widths(markup.table([row], "t", 42))] == [4] * 10


@pytest.mark.parametrize(
    ("name", "cell", "characters"),
    [
        ("n", "1.34 [1.28, 1.40]", 12),  # bounds are not broken
        ("n", "1.34 (n = 3, wide)", 13),
        ("accept_rate@10", "0.25", 7),  # names are, after "_" and "/"
        ("tokens/s", "1", 7),
        ("n", "a word that is long " * 3, 32),  # a long text is wrapped
    ],
)
def test_a_column_takes_its_longest_word(name: str, cell: str, characters: int) -> None:
    row = {"arm": "a", name: cell, "z": 1}
    whole = 3 + 2 + characters + 2 + 1 + 2
    assert len(widths(markup.table([row], "t", whole))) == 1
    assert len(widths(markup.table([row], "t", whole - 1))) == 2


def test_the_library_is_packed() -> None:
    assert gzip.decompress(base64.b64decode(pack_plotly())).decode("utf-8") == plotly_source()
    assert len(pack_plotly()) < 0.45 * len(plotly_source())
