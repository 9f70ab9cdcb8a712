"""A part of the page, whoever makes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Section:
    """A part of the page, with an entry in its table of contents.

    Attributes:
        name: anchor; a letter, then letters, digits, ``_`` and ``-``. No other section of the page has it, so that of a
            run, of which a page can hold several, has the run's in it.
        title: plain text; the page escapes it.
        body: HTML. Whoever makes it has escaped what comes from models and files (``html.escape``).
        style: CSS; the page has it once, however many sections bring the same text.
        script: JavaScript, run after the whole page is there; once as well.
        data: what JSON can hold, read by the script from ``<script type="application/json" id="data-NAME">``; None:
            nothing.
        parts: anchor -> title of its parts, which stand under its entry; the body has these anchors.
    """

    name: str
    title: str
    body: str
    style: str = ""
    script: str = ""
    data: object = None
    parts: Mapping[str, str] = field(default_factory=dict)
