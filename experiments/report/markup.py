"""Pieces of HTML, with all text in them escaped."""

import html
from collections.abc import Mapping, Sequence
from typing import Any

from specdec.result_table import Table, cell


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


def table(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """Return a table that scrolls in a box of its own; its first column names the rows.

    Args:
        rows: see ``Table``.
        title: what a screen reader calls it.
    """
    return (
        f'<div class="scroll" role="region" tabindex="0" aria-label="{escape(title)}">{Table(title, rows).html()}</div>'
    )


def pairs(values: Mapping[str, Any]) -> str:
    """Return names and values side by side."""
    lines = "".join(f"<dt>{escape(k)}</dt><dd>{escape(cell(v))}</dd>" for k, v in values.items())
    return f'<dl class="pairs">{lines}</dl>'


def folded(summary: str, body: str) -> str:
    """Return HTML under a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary>{body}</details>"
