"""One browser for all tests; after each, that nothing was loaded from anywhere and that nothing complained."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from experiments.harness import running as harness
from tests.page.browser import Page, chromium

# Arms of the run that the page is of.
ARMS = ("merged", "lookahead", "staged")


@pytest.fixture(scope="session")
def driver() -> Iterator[Any]:
    with chromium() as found:
        yield found


@pytest.fixture(scope="session")
def real_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run with traces."""
    out = tmp_path_factory.mktemp("runs")
    argv = ["--oracle", "code-draft-tiny", "--strategies", *ARMS, "--out", str(out)]
    argv += ["--num-prompts", "2", "--max-new-tokens", "24", "--trace", "2", "--temperature", "0.8", "--threads", "1"]
    argv += ["--staged-model", "code-draft-tiny", "--staged-width", "2"]
    assert harness.script("compare", "", argv) == 0
    (run,) = out.iterdir()
    return run


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
