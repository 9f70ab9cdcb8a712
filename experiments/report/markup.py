"""Pieces of HTML, with all text in them escaped."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.stats import BOUNDS, BREAKS, ColumnKind, Table, cell, side_by_side

# A column of long cells has a width of its own, in characters.
_OF_LONG = 34
# Characters side by side in a window of 1,400 pixels, over its width and in a figure; what a column's borders take.
WIDTH, IN_FIGURE, _BORDERS = 150, 70, 2
# What stands side by side at least.
_WORD = re.compile(rf"{BOUNDS.pattern}|\S+")


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, of a class."""
    return f'<p class="{kind}">{html.escape(text)}</p>' if kind else f"<p>{html.escape(text)}</p>"


def heading(text: str, anchor: str) -> str:
    """Return a heading, to which a link can lead."""
    return f'<h3 id="{html.escape(anchor)}">{html.escape(text)}</h3>'


def items(texts: Sequence[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{html.escape(text)}</li>' for text in texts)}</ul>"


def _characters(of: Table, name: str) -> int:
    """Return the fewest characters that a column takes side by side with others, its borders included."""
    if of.kind(name) is ColumnKind.LONG:
        return _OF_LONG
    words = [
        *_WORD.findall(BREAKS.sub(r"\1 ", name)),
        *(word for text in of.cells(name) for word in _WORD.findall(text)),
    ]
    return max(map(len, words), default=0) + _BORDERS


def table(rows: Sequence[Mapping[str, Any]], title: str, width: int = WIDTH) -> str:
    """Return a table whose first column names the rows; one that is too wide is cut into several, below one another.

    Args:
        rows: see ``Table``.
        title: what a screen reader calls it.
        width: characters that there is room for.
    """
    of = Table(title, rows)
    first, *others = side_by_side(of.names[:1], {name: _characters(of, name) for name in of.names}, width)
    return "\n".join([_box(of.html(first), title), *(_box(of.html(part), f"{title}, further") for part in others)])


def _box(drawn: str, title: str) -> str:
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{html.escape(title)}">{drawn}</div>'


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values side by side."""
    lines = "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(cell(v))}</dd>" for k, v in values.items())
    return f'<dl class="pairs">{lines}</dl>'


def fold(summary: str, body: str, kind: str = "") -> str:
    """Return HTML that a click on a line folds out; ``kind``: the class of the whole."""
    opening = f'<details class="{kind}">' if kind else "<details>"
    return f"{opening}<summary>{html.escape(summary)}</summary>{body}</details>"
