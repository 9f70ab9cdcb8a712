"""Pieces of HTML, with all text in them escaped."""

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.report import cell

# A longer cell has a column of its own width, in characters.
_LONG, _OF_LONG = 48, 34
# Characters side by side in a window of 1,400 pixels, over its width and in a figure; what a column's borders take.
WIDTH, IN_FIGURE, _BORDERS = 150, 70, 2
# Where a name of a column may be broken.
_BREAKS = re.compile(r"([_/])")
# What follows an estimate and is not broken: the bounds of its interval, or how many units it is of. What is a word.
_AFTER = re.compile(r"\[[^\]]*\]|\(n = [^)]*\)")
_WORD = re.compile(rf"{_AFTER.pattern}|\S+")


def escape(text: str) -> str:
    """Return text as HTML shows it."""
    return html.escape(text)


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, of a class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str, anchor: str) -> str:
    """Return a heading, to which a link can lead."""
    return f'<h3 id="{escape(anchor)}">{escape(text)}</h3>'


def items(texts: Sequence[str]) -> str:
    """Return a list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def _is_number(value: Any) -> bool:
    """Tell whether a cell is a number, or a text that begins with one."""
    return isinstance(value, int | float) or (isinstance(value, str) and value[:1].isdigit())


def _kind(rows: Sequence[Mapping[str, Any]], name: str) -> str:
    """Return the class of a column: its numbers stand below one another, and long texts are wrapped."""
    values = [row[name] for row in rows if row[name] is not None]
    if values and all(map(_is_number, values)):
        return "number"
    return "long" if any(len(cell(value)) > _LONG for value in values) else "text"


def _characters(rows: Sequence[Mapping[str, Any]], name: str, kind: str) -> int:
    """Return how many characters a column takes side by side at least, its borders among them."""
    if kind == "long":
        return _OF_LONG
    words = [*_WORD.findall(_BREAKS.sub(r"\1 ", name)), *(w for row in rows for w in _WORD.findall(cell(row[name])))]
    return max(map(len, words), default=0) + _BORDERS


def _parts(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str], most: int) -> list[list[str]]:
    """Return the columns of the tables that a table is cut into, so that none is hidden; each has the first column."""
    first, *others = kinds
    room = most - _characters(rows, first, "text")
    parts, left = [[first]], room
    for name in others:
        width = _characters(rows, name, kinds[name])
        if width > left and len(parts[-1]) > 1:
            parts.append([first])
            left = room
        parts[-1].append(name)
        left -= width
    return parts


def table(rows: Sequence[Mapping[str, Any]], title: str, width: int = WIDTH) -> str:
    """Return a table whose first column names the rows; one that is too wide is cut into several, below one another.

    Args:
        rows: column name -> value; the first row's keys are the columns. At least one.
        title: what a screen reader calls it.
        width: characters that there is room for.
    """
    kinds = {name: _kind(rows, name) for name in rows[0]}
    parts = [{name: kinds[name] for name in names} for names in _parts(rows, kinds, width)]
    return "\n".join(_table(rows, part, title if part is parts[0] else f"{title}, further") for part in parts)


def _heading_cell(name: str) -> str:
    """Return the name of a column, with places where it may be broken."""
    return _BREAKS.sub(r"\1<wbr>", escape(name))


def _table(rows: Sequence[Mapping[str, Any]], kinds: Mapping[str, str], title: str) -> str:
    head = "".join(f'<th scope="col" class="{kind}">{_heading_cell(name)}</th>' for name, kind in kinds.items())
    lines = []
    for row in rows:
        first, *rest = (f'class="{kind}">{_with_bounds(cell(row[name]))}' for name, kind in kinds.items())
        lines.append(f'<tr><th scope="row" {first}</th>{"".join(f"<td {one}</td>" for one in rest)}</tr>')
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{body}</div>'


def _with_bounds(text: str) -> str:
    """Return a cell whose interval may stand below its estimate, but is not broken."""
    return _AFTER.sub(r'<span class="bounds">\g<0></span>', escape(text))


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values side by side."""
    lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(cell(v))}</dd>" for k, v in values.items())
    return f'<dl class="pairs">{lines}</dl>'


def folded(summary: str, body: str, kind: str = "") -> str:
    """Return HTML under a line that opens it, of a class."""
    opening = f'<details class="{kind}">' if kind else "<details>"
    return f"{opening}<summary>{escape(summary)}</summary>{body}</details>"
