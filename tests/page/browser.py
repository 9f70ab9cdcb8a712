"""A headless Chromium: it is driven by real keys, clicks and touches, and everything that it loads is noted."""

import base64
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver import ActionChains
from selenium.webdriver.chrome.service import Service

ROOT = Path(__file__).parents[2]
PICTURES = ROOT / "runs" / "page-test"
SIZES = {"desktop": (1280, 900), "wide": (1400, 1000), "phone": (390, 844)}
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars"),
)
# The time from a key to the frame that shows what it did, of every key.
WATCH = """
window.answers = [];
document.addEventListener("keydown", (event) => requestAnimationFrame(() => {
  const painted = new MessageChannel();
  painted.port1.onmessage = () => window.answers.push(performance.now() - event.timeStamp);
  painted.port2.postMessage(0);
}), true);
"""


def installed(variable: str, names: tuple[str, ...]) -> str:
    """Return the path of a program; the test fails if there is none."""
    given = os.environ.get(variable)
    found = given or next((path for path in map(shutil.which, names) if path), None)
    if not found:
        pytest.fail(
            f"no {names[0]} here: the page is tested in a headless Chromium. Install it (Debian: apt-get install "
            f"chromium chromium-driver), or say where it is with {variable}",
            pytrace=False,
        )
    return found


@contextmanager
def chromium() -> Iterator[Any]:
    """Yield a driver of a new Chromium, which ends with the block."""
    browser = installed("CHROMIUM", ("chromium", "chromium-browser", "google-chrome"))
    driver_path = installed("CHROMEDRIVER", ("chromedriver", "chromium.chromedriver"))
    with tempfile.TemporaryDirectory() as profile:
        options = webdriver.ChromeOptions()
        options.binary_location = browser
        for flag in (*FLAGS, f"--user-data-dir={profile}"):
            options.add_argument(flag)
        options.set_capability("goog:loggingPrefs", {"performance": "ALL", "browser": "ALL"})
        driver = webdriver.Chrome(options=options, service=Service(driver_path))
        try:
            yield driver
        finally:
            driver.quit()


class Page:
    """A page in the browser.

    Args:
        driver: of ``chromium``.
        path: of the HTML file.
    """

    def __init__(self, driver: Any, path: Path) -> None:
        self.driver, self.path = driver, path
        self.device()

    def device(self, size: str = "desktop", dark: bool = False) -> None:
        """Be a device of this width, in light or dark colours."""
        (width, height), scheme = SIZES[size], "dark" if dark else "light"
        phone = size == "phone"
        metrics = {"width": width, "height": height, "deviceScaleFactor": 2 if phone else 1, "mobile": phone}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        self.driver.execute_cdp_cmd("Emulation.setTouchEmulationEnabled", {"enabled": phone})
        self.media("screen", scheme)

    def media(self, kind: str, scheme: str = "light") -> None:
        """Show as on a screen or on paper."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": kind, "features": features})

    def open(self, anchor: str = "") -> "Page":
        """Load the page anew, at an anchor."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.path.as_uri()}{anchor}")
        self.driver.execute_script(WATCH)
        return self

    def all(self, selector: str) -> list[Any]:
        return list(self.driver.find_elements("css selector", selector))

    def one(self, selector: str) -> Any:
        return self.driver.find_element("css selector", selector)

    def text(self, selector: str) -> str:
        """Return the text of an element as it stands in the document."""
        found: str = self.one(selector).get_property("textContent")
        return found

    def script(self, code: str, *arguments: Any) -> Any:
        return self.driver.execute_script(code, *arguments)

    def press(self, *keys: str) -> None:
        """Press keys, wherever the focus is."""
        ActionChains(self.driver, duration=0).send_keys(*keys).perform()

    def tap(self, selector: str) -> None:
        """Touch the middle of an element with a finger."""
        place = self.script(
            "const e = document.querySelector(arguments[0]); e.scrollIntoView({block: 'center'});"
            "const r = e.getBoundingClientRect(); return [r.x + r.width / 2, r.y + r.height / 2]",
            selector,
        )
        points = [{"x": place[0], "y": place[1]}]
        self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchStart", "touchPoints": points})
        self.driver.execute_cdp_cmd("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})
        self.wait(100)

    def wait(self, milliseconds: int) -> None:
        """Let the page go on for a while."""
        self.driver.execute_async_script("setTimeout(arguments[1], arguments[0])", milliseconds)

    def answers(self, count: int) -> list[float]:
        """Return the milliseconds that the last keys took; see ``WATCH``."""
        self.driver.execute_async_script(
            "const [count, done] = arguments;"
            "const look = () => answers.length >= count ? done() : setTimeout(look, 5); look()",
            count,
        )
        found: list[float] = self.script("return answers.splice(0)")
        return found

    def picture(self, name: str) -> Path:
        """Write a screenshot of what the window shows."""
        PICTURES.mkdir(parents=True, exist_ok=True)
        shot = self.driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        path = PICTURES / f"{name}.png"
        path.write_bytes(base64.b64decode(shot["data"]))
        return path

    def complaints(self) -> list[str]:
        """Return what the browser's console said since the last look."""
        return [entry["message"] for entry in self.driver.get_log("browser")]

    def loaded(self) -> list[str]:
        """Return every address that was asked for since the last look."""
        events = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [e["params"]["request"]["url"] for e in events if e["method"] == "Network.requestWillBeSent"]
