"""One browser for all tests; after each, that nothing was loaded from anywhere and that nothing complained."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.page.browser import Page, chromium


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture
def show(driver: Any, tmp_path: Path) -> Iterator[Callable[[str], Page]]:
    """Open a page of this HTML; at the end, look at what it loaded and at the console."""
    shown: list[Page] = []

    def open_(html: str, anchor: str = "") -> Page:
        path = tmp_path / "page.html"
        path.write_text(html, encoding="utf-8")
        shown.append(Page(driver, path))
        return shown[-1].open(anchor)

    driver.get("about:blank")
    driver.get_log("performance")
    driver.get_log("browser")
    yield open_
    for page in shown:
        assert page.complaints() == []
        assert {url for url in page.loaded() if not url.startswith(("about:", "data:", page.path.as_uri()))} == set()
