"""The page around its sections, and pictures in them: one HTML file that loads nothing, light, dark and on paper."""

import base64
import gzip
import html
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from experiments.report import markup
from experiments.report.charts import Picture

PARTS = Path(__file__).parent
# What is not named here is not loaded: a page cannot reach the network, whatever stands in it. Pictures are charts that
# a reader saves.
POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; "
    "form-action 'none'"
)
_ANCHOR = re.compile(r"[A-Za-z][A-Za-z0-9_-]*")
# A script that holds these would end early, or swallow its own end; a style likewise.
_BREAKS_SCRIPT = re.compile(r"</script|<!--.*<script", re.IGNORECASE | re.DOTALL)
_BREAKS_STYLE = re.compile(r"</style", re.IGNORECASE)
_UNSAFE = {ord(character): f"\\u{ord(character):04x}" for character in "<>&"}


@dataclass(frozen=True)
class Section:
    """A part of the page, with an entry in its table of contents.

    Attributes:
        name: anchor; a letter, then letters, digits, ``_`` and ``-``. No other section of the page has it. A page can
            hold several runs, so the anchor of a run's section contains the run's.
        title: plain text; the page escapes it.
        body: HTML. Whoever makes it has escaped what comes from models and files (``html.escape``).
        style: CSS; the page has it once, even if several sections bring it.
        script: JavaScript, run once, after the whole page is there.
        data: what JSON can hold, read by the script from ``<script type="application/json" id="data-NAME">``; None:
            nothing.
        parts: anchor -> title of its parts, which are listed under its entry; the body has these anchors.
    """

    name: str
    title: str
    body: str
    style: str = ""
    script: str = ""
    data: object = None
    parts: Mapping[str, str] = field(default_factory=dict)


def embed_json(data: object) -> str:
    """Return JSON that can stand in a ``<script>``, whatever its texts hold.

    Args:
        data: plain types; no NaN, no infinity.

    Returns:
        ASCII without ``<``, ``>`` and ``&``: they are written as ``\\u003c`` and the like, as are line separators
        (U+2028) and lone surrogates. ``JSON.parse`` returns the texts as they were.

    Raises:
        ValueError: a number that JSON does not know.
        TypeError: something that is no plain type.
    """
    return json.dumps(data, separators=(",", ":"), allow_nan=False).translate(_UNSAFE)


def _check(sections: Sequence[Section]) -> None:
    """Refuse sections that would break the page.

    Raises:
        ValueError: a name that is no anchor or occurs twice, or a style or script that would end early.
    """
    names = [name for section in sections for name in (section.name, *section.parts)]
    for section in sections:
        for name in (section.name, *section.parts):
            if not _ANCHOR.fullmatch(name) or names.count(name) > 1:
                raise ValueError(f"section {name!r}: give each a name of its own, of letters, digits, '_' and '-'")
        if _BREAKS_SCRIPT.search(section.script) or _BREAKS_STYLE.search(section.style):
            raise ValueError(f"section {section.name!r}: its style or script holds a tag that ends it; write '<\\/'")


def _once(texts: Iterable[str]) -> list[str]:
    """Return every text that is not empty, in order, each once."""
    return [text for text in dict.fromkeys(texts) if text]


def _entry(section: Section) -> str:
    """Return a section's entry in the table of contents, those of its parts under it."""
    parts = "".join(f"<li>{_link(name, title)}</li>" for name, title in section.parts.items())
    return f"<li>{_link(section.name, section.title)}{f'<ol>{parts}</ol>' if parts else ''}</li>"


def _link(name: str, title: str) -> str:
    return f'<a href="#{name}">{html.escape(title)}</a>'


def _section(section: Section) -> str:
    parts = [f'<section id="{section.name}">', f"<h2>{html.escape(section.title)}</h2>", section.body]
    if section.data is not None:
        data = embed_json(section.data)
        parts.append(f'<script type="application/json" id="data-{section.name}">{data}</script>')
    return "\n".join([*parts, "</section>"])


def page(title: str, sections: Sequence[Section]) -> str:
    """Return a whole HTML document.

    Args:
        title: plain text.
        sections: in the order of the page; at least one.

    Returns:
        Text without a reference to anything outside of it; lone surrogates, which no file can hold, are "?".

    Guarantee: scripts find every ``data-NAME`` there when they run. Their colours are the custom properties ``--ink
        --paper --muted --line --accent`` and ``--c1`` to ``--c8``; a ``themechange`` event on ``window`` says that
        these are others now (the reader's switch, the system's setting, paper).

    Raises:
        ValueError: see ``Section``: a name, style or script that would break the page.
    """
    _check(sections)
    entries = "\n".join(map(_entry, sections))
    own = {name: (PARTS / name).read_text(encoding="utf-8") for name in ("page.html", "page.css", "page.js")}
    styles = "\n".join(_once([own["page.css"], *(section.style for section in sections)]))
    scripts = _once([own["page.js"], *(section.script for section in sections)])
    text = own["page.html"].format(
        policy=POLICY,
        title=html.escape(title),
        styles=styles,
        entries=entries,
        sections="\n".join(map(_section, sections)),
        scripts="\n".join(f"<script>\n{script}\n</script>" for script in scripts),
    )
    return text.encode("utf-8", "replace").decode()


LOST = "<noscript>The chart needs JavaScript; its numbers are below.</noscript>"


def plotly_source() -> str:
    """Return the JavaScript of the charting library plotly, as the installed package has it.

    Raises:
        ValueError: the package is not installed.
    """
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ValueError("the page's charts need the package plotly: pip install 'exactspec[report]'") from error
    return str(get_plotlyjs())


@cache
def pack_plotly() -> str:
    """Return the library as a page holds it: ``gzip`` in Base64, which the browser unpacks by itself.

    The package has only the whole library, 4.8 MB of text; packed it is 1.9 MB, and still loads nothing.

    Raises:
        ValueError: see ``plotly_source``.
    """
    return base64.b64encode(gzip.compress(plotly_source().encode("utf-8"), mtime=0)).decode("ascii")


def _figure(picture: Picture, number: int, name: str) -> str:
    height = picture.layout["height"]
    place = f'<div class="chart" data-figures="{name}" data-number="{number}" style="height: {height}px"></div>{LOST}'
    says = f"<strong>{html.escape(picture.title)}</strong> {html.escape(picture.note)}"
    numbers = markup.fold("Numbers", markup.table(picture.rows, picture.title, markup.IN_FIGURE))
    return f"<figure><figcaption>{says}</figcaption>{place}{numbers}</figure>"


def figures_of(pictures: Sequence[Picture | str], name: str) -> str:
    """Return the places of pictures, then the sentences in place of those that a run cannot have.

    Args:
        pictures: or sentences.
        name: of the section that they are in.
    """
    drawn = [one for one in pictures if isinstance(one, Picture)]
    figures = "\n".join(_figure(picture, number, name) for number, picture in enumerate(drawn))
    said = markup.items([one for one in pictures if isinstance(one, str)]) if len(drawn) < len(pictures) else ""
    return f'<div class="figures">{figures}</div>\n{said}'


def section_with(
    name: str,
    title: str,
    contents: Mapping[str, str],
    pictures: Sequence[Picture | str],
    data: dict[str, Any],
    lead: Sequence[str] = (),
) -> Section:
    """Return a section of parts whose data has its pictures too, as "figures", and that brings what draws them.

    Args:
        name, title: see ``Section``.
        contents: title of each part -> its HTML; one of them has the places of the pictures.
        pictures: as ``figures_of`` had them.
        data: without "figures".
        lead: HTML before the first part.

    Raises:
        ValueError: the charting library is not installed.
    """
    parts = {f"{name}-{number}": part for number, part in enumerate(contents, start=1)}
    body = [*lead, *(f"{markup.heading(part, anchor)}\n{contents[part]}" for anchor, part in parts.items())]
    drawn = [{"data": one.traces, "layout": one.layout} for one in pictures if isinstance(one, Picture)]
    style, draws = ((PARTS / part).read_text(encoding="utf-8") for part in ("charts.css", "charts.js"))
    script = f'const PACKED_PLOTLY = "{pack_plotly()}";\n{draws}' if drawn else ""
    return Section(name, title, "\n".join(body), style, script, {**data, "figures": drawn}, parts)
