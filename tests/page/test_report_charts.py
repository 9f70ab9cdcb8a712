"""The page of a real run in a real browser: every chart is drawn, in the reader's colours, on screens and on paper."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from experiments.report.__main__ import write_page
from tests.page.browser import SIZES, Page

PAPER = 320  # pixels of a chart's width there
CHARTS = "[...document.querySelectorAll('.chart')]"


@pytest.fixture
def shown(show: Callable[..., Page], real_run: Path, tmp_path: Path) -> Page:
    """The page of a run, from its beginning."""
    return unpacked(show(write_page([real_run], tmp_path / "run.html").read_text(encoding="utf-8")))


def unpacked(shown: Page) -> Page:
    """Return the page once its charting library is there."""
    shown.driver.execute_async_script(
        "const done = arguments[0];"
        "const look = () => document.documentElement.dataset.charts ? done() : setTimeout(look, 20); look()"
    )
    return shown


def read_through(shown: Page) -> None:
    """Scroll from chart to chart."""
    for number in range(len(shown.all(".chart"))):
        shown.script(f"{CHARTS}[arguments[0]].scrollIntoView()", number)
        shown.wait(60)


def drawn(shown: Page) -> list[Any]:
    """Return for each chart the number of its axes' labels if it says that it is drawn, else None."""
    found: list[Any] = shown.script(
        f"return {CHARTS}.map(c => c.dataset.drawn === 'yes' ? c.querySelectorAll('.main-svg .xtick').length : null)"
    )
    return found


def brightness(colour: str) -> float:
    return sum(map(float, re.findall(r"[\d.]+", colour)[:3]))


def ink(shown: Page) -> set[float]:
    """Return how bright the labels of the charts are."""
    labels = "[...document.querySelectorAll('.chart .xtick text')]"
    return {brightness(fill) for fill in shown.script(f"return {labels}.map(e => getComputedStyle(e).fill)")}


def misfits(shown: Page) -> list[list[float]]:
    """Return the widths of charts that are not as wide as their places, and of these."""
    widths: list[list[float]] = shown.script(f"return {CHARTS}.map(c => [c._fullLayout.width, c.clientWidth])")
    return [pair for pair in widths if abs(pair[0] - pair[1]) > 1]


def paper(shown: Page) -> float:
    colour: str = shown.script("return getComputedStyle(document.body).backgroundColor")
    return brightness(colour)


def test_every_chart_is_drawn_when_it_comes_near(shown):
    assert len(drawn(shown)) >= 5
    assert None in drawn(shown)
    read_through(shown)
    assert all(drawn(shown)), drawn(shown)


def test_the_button_changes_the_colours_of_the_page_and_of_its_charts(shown):
    read_through(shown)
    seen = []
    for _ in range(4):
        (own,) = ink(shown)
        seen.append((shown.text("#theme"), own < paper(shown)))
        shown.one("#theme").click()
        shown.wait(300)
    assert seen == [
        ("Colours: as the system", True),
        ("Colours: light", True),
        ("Colours: dark", False),
        ("Colours: as the system", True),
    ]
    unpacked(shown.open())
    assert shown.text("#theme") == "Colours: light"  # the choice outlives the visit
    for _ in range(2):
        shown.one("#theme").click()


def test_charts_follow_the_system(shown):
    read_through(shown)
    shown.device(dark=True)
    shown.wait(300)
    (own,) = ink(shown)
    assert own > paper(shown)


def test_paper_has_every_chart_in_light_colours(shown):
    shown.device(dark=True)
    shown.script(
        "window.printed = []; window.addEventListener('beforeprint', () => window.printed.push("
        f"{CHARTS}.map(c => [c._fullLayout.width, getComputedStyle(c.querySelector('.xtick text')).fill])))"
    )
    assert None in drawn(shown)
    shown.driver.execute_cdp_cmd("Page.printToPDF", {})
    (charts,) = shown.script("return window.printed")
    assert len(charts) == len(shown.all(".chart"))
    assert {width for width, _ in charts} == {PAPER}
    assert max(brightness(fill) for _, fill in charts) < 200
    shown.wait(600)
    assert shown.script("return document.documentElement.dataset.printing") is None
    (own,) = ink(shown)
    assert own > paper(shown)
    assert misfits(shown) == []


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("size", list(SIZES))
def test_the_page_fits_the_window(size, dark, shown):
    shown.device(size, dark)
    read_through(shown)
    assert shown.script("return document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    shown.script("document.querySelector('.figures').scrollIntoView()")
    shown.wait(100)
    shown.picture(f"report-{size}-{'dark' if dark else 'light'}")


def test_no_table_hides_a_column_at_1400_pixels(shown):
    shown.device("wide")
    shown.script("for (const one of document.querySelectorAll('details')) one.open = true")
    boxes = "[...document.querySelectorAll('.scroll')].filter(box => box.querySelector('table'))"
    assert len(shown.script(f"return {boxes}")) > 10
    hidden = shown.script(
        f"return {boxes}.map(b => [b.ariaLabel, b.scrollWidth - b.clientWidth]).filter(p => p[1] > 0)"
    )
    assert hidden == []
    shown.picture("report-wide")


def test_paper_has_the_reasons_and_the_screen_has_them_folded_again(shown):
    shown.script(
        "window.addEventListener('beforeprint', () => window.folded = "
        "[...document.querySelectorAll('details.reasons')].map(d => d.open))"
    )
    shown.driver.execute_cdp_cmd("Page.printToPDF", {})
    assert set(shown.script("return window.folded")) == {True}
    shown.wait(200)
    assert set(shown.script("return [...document.querySelectorAll('details.reasons')].map(d => d.open)")) == {False}


def test_a_browser_that_cannot_unpack_the_charts_says_so(show, real_run, tmp_path):
    text = write_page([real_run], tmp_path / "run.html").read_text(encoding="utf-8")
    shown = show(text.replace("const PACKED_PLOTLY", "delete window.DecompressionStream;\nconst PACKED_PLOTLY"))
    shown.wait(500)
    assert shown.text(".chart").startswith("No chart, but the numbers below: this browser cannot unpack")
