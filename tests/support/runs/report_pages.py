"""Pages of runs, and a reader of their HTML."""

import json
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from experiments.report.__main__ import write_page


class Reader(HTMLParser):
    """Collects tags, the texts of scripts and styles, and what a reader sees."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[tuple[dict[str, str | None], str]] = []
        self.styles, self.seen = "", ""
        self._inside = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._inside = tag
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append((dict(attrs), ""))

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        if self._inside == "script":
            kind, text = self.scripts[-1]
            self.scripts[-1] = (kind, text + data)
        elif self._inside == "style":
            self.styles += data
        else:
            self.seen += data

    @property
    def data(self) -> dict[str, Any]:
        held = [(kind["id"], text) for kind, text in self.scripts if kind.get("type") == "application/json"]
        return {str(name).removeprefix("data-"): json.loads(text) for name, text in held}


def read(folders: list[Path], out: Path) -> Reader:
    return Reader(write_page(folders, out).read_text(encoding="utf-8"))


def summary_of(folder: Path) -> dict[str, Any]:
    text = (folder / "summary.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text, parse_constant=lambda _: None)
    return found


def altered(folder: Path, place: Path, facts: dict[str, Any], **arguments: Any) -> Path:
    """Return a copy of a run with some other facts and arguments."""
    shutil.copytree(folder, place)
    summary = summary_of(place)
    summary["provenance"] |= facts
    summary["provenance"]["arguments"] |= arguments
    (place / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return place
