"""Pictures in a section: places in its HTML, what plotly reads in its data, and what draws them in its script."""

import base64
import gzip
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from experiments.report import markup
from experiments.report.charts import Picture
from experiments.report.page import PARTS, Section

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

    The package has the whole library only, 4.8 MB of text; packed it is 1.9 MB, and loads nothing either.

    Raises:
        ValueError: see ``plotly_source``.
    """
    return base64.b64encode(gzip.compress(plotly_source().encode("utf-8"), mtime=0)).decode("ascii")


def _figure(picture: Picture, number: int, name: str) -> str:
    height = picture.layout["height"]
    place = f'<div class="chart" data-figures="{name}" data-number="{number}" style="height: {height}px"></div>{LOST}'
    says = f"<strong>{markup.escape(picture.title)}</strong> {markup.escape(picture.note)}"
    numbers = markup.fold("Numbers", markup.table(picture.rows, picture.title, markup.IN_FIGURE))
    return f"<figure><figcaption>{says}</figcaption>{place}{numbers}</figure>"


def figures_of(pictures: Sequence[Picture | str], name: str) -> str:
    """Return the places of pictures, then the sentences that stand for those that a run cannot have.

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
    body: str,
    pictures: Sequence[Picture | str],
    data: dict[str, Any],
    parts: Mapping[str, str],
) -> Section:
    """Return a section whose data has its pictures too, as "figures", and that brings what draws them.

    Args:
        name, title, body, parts: see ``Section``; the body has the places of the pictures.
        pictures: as ``figures_of`` had them.
        data: without "figures".

    Raises:
        ValueError: the charting library is not installed.
    """
    drawn = [{"data": one.traces, "layout": one.layout} for one in pictures if isinstance(one, Picture)]
    style, draws = ((PARTS / part).read_text(encoding="utf-8") for part in ("charts.css", "charts.js"))
    script = f'const PACKED_PLOTLY = "{pack_plotly()}";\n{draws}' if drawn else ""
    return Section(name, title, body, style, script, {**data, "figures": drawn}, parts)
