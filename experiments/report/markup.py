"""Pieces of HTML, with all text in them escaped."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.report import cell

# A longer cell is wrapped.
_LONG = 48


def escape(text: str) -> str:
    """Return text as HTML shows it."""
    return html.escape(text)


def paragraph(text: str, kind: str = "") -> str:
    """Return a paragraph, of a class."""
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def heading(text: str, anchor: str = "", level: int = 3) -> str:
    """Return a heading, to which a link can lead."""
    place = f' id="{escape(anchor)}"' if anchor else ""
    return f"<h{level}{place}>{escape(text)}</h{level}>"


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


def table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return a table that scrolls in a box of its own; its first column names the rows.

    Args:
        rows: column name -> value; the first row's keys are the columns. At least one.
        title: what a screen reader calls it.
    """
    kinds = {name: _kind(rows, name) for name in rows[0]}
    head = "".join(f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in kinds.items())
    lines = []
    for row in rows:
        first, *rest = (f'class="{kind}">{escape(cell(row[name]))}' for name, kind in kinds.items())
        lines.append(f'<tr><th scope="row" {first}</th>{"".join(f"<td {one}</td>" for one in rest)}</tr>')
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    return f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{body}</div>'


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values side by side."""
    lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(cell(v))}</dd>" for k, v in values.items())
    return f'<dl class="pairs">{lines}</dl>'


def folded(summary: str, body: str) -> str:
    """Return HTML under a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
