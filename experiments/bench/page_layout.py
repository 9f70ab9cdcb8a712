"""Printed tables as pages have them: no line is wider than 120 characters.

If a table is too wide, what all its rows share is said once, long texts are numbered and put below, and the table is
cut between columns. Each part begins with the columns that tell its rows apart. No number changes.
"""

import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from experiments.bench.benchmark_figures import WIDTH, Row, tables_in
from specdec.stats import Table, side_by_side

# Lines of a terminal that say nothing on a page: where this run left its files.
_OF_THE_RUN = ("Written:", "Why, in words,", "Pictures and JSON:")
_LONG = 40


def lay_out(printed: str, front: str = "") -> str:
    """Return Markdown as a page has it: tables cut to ``WIDTH``, prose wrapped.

    Args:
        printed: Markdown; blank lines stand between its paragraphs, tables and headings.
        front: the page's beginning; its sentences are not repeated below, and legends in it are named by their title.
    """
    said = " ".join(front.split())
    parts: list[str] = []
    for block in re.split(r"\n{2,}", printed.strip()):
        if block.startswith("|"):
            parts += narrow(tables_in(block)[0])
        elif block.startswith("#"):
            parts.append(block)
        else:
            parts.append("\n".join(_prose(block, said)))
    return "\n\n".join(filter(None, parts))


def _prose(block: str, said: str) -> Iterator[str]:
    """Yield the lines of a paragraph or a list without what has been said."""
    items = re.split(r"\n(?=- )", block) if block.startswith("- ") else [_unsaid(_without_paths(block), said)]
    for item in items:
        if item:
            yield _wrap(item)


def _without_paths(block: str) -> str:
    return " ".join(line.strip() for line in block.splitlines() if not line.startswith(_OF_THE_RUN))


def _unsaid(text: str, said: str) -> str:
    """Return a paragraph without the sentences that have been said; a legend keeps its title."""
    sentences = re.split(r"(?<=\.) ", text)
    new = [sentence for sentence in sentences if sentence not in said]
    if new == sentences:
        return text
    title, is_legend, _ = sentences[0].partition(": ")
    return " ".join([f"{title}, as above:"] * bool(is_legend) + new)


def _wrap(item: str) -> str:
    indent = "  " if item.startswith("- ") else ""
    return textwrap.fill(
        " ".join(item.split()), WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )


@dataclass(frozen=True)
class _Wide:
    """A table that is cut: what every row shares is said once, and ``keys`` begin every part.

    Attributes:
        keys: columns that tell its rows apart, or all.
        columns: the others that differ between rows.
        shared: column -> the cell of every row.
    """

    keys: tuple[str, ...]
    columns: tuple[str, ...]
    shared: Row

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "_Wide":
        """Return what to cut: the keys are as few of the first columns as tell all rows apart."""
        first = rows[0]
        shared = {
            name: first[name] for name in first if len(rows) > 1 and all(row[name] == first[name] for row in rows)
        }
        names = [name for name in first if name not in shared]
        enough = (
            n for n in range(1, len(names)) if len({tuple(row[k] for k in names[:n]) for row in rows}) == len(rows)
        )
        num_keys = next(enough, len(names))
        return cls(tuple(names[:num_keys]), tuple(names[num_keys:]), shared)


def narrow(rows: Sequence[Row]) -> list[str]:
    """Return a table in parts of at most ``WIDTH`` characters a line, with what all rows share before and notes after.

    Args:
        rows: column -> cell, the same columns in each.
    """
    if _width(rows, list(rows[0])) <= WIDTH:
        return [Table("", rows).markdown()]
    wide = _Wide.of(rows)
    rows, notes = _with_notes(rows, wide)
    said = "; ".join(f"{name}: {cell}" for name, cell in wide.shared.items())
    parts = [Table("", [{name: row[name] for name in names} for row in rows]).markdown() for names in _cut(rows, wide)]
    return [*([_wrap(f"In every row: {said}.")] if said else []), *parts, *notes]


def _width(rows: Sequence[Row], names: Sequence[str]) -> int:
    return sum(max(len(name), *(len(row[name]) for row in rows)) for name in names) + 3 * len(names) + 1


def _with_notes(rows: Sequence[Row], wide: _Wide) -> tuple[list[Row], list[str]]:
    """Return the rows with numbers for texts that fit in no part, and the texts; equal ones have one number."""
    numbers: dict[str, int] = {}
    found = [dict(row) for row in rows]
    for name in wide.columns:
        if _width(rows, [*wide.keys, name]) > WIDTH:
            for row in found:
                if len(row[name]) > _LONG:
                    row[name] = f"({numbers.setdefault(row[name], len(numbers) + 1)})"
    notes = "\n".join(_wrap(f"- ({number}) {text}") for text, number in numbers.items())
    return found, [notes] if notes else []


def _cut(rows: Sequence[Row], wide: _Wide) -> list[list[str]]:
    """Return the columns of each part: as few parts as possible, and of these the widest as narrow as possible."""
    widths = {name: _width(rows, [name]) - 1 for name in (*wide.keys, *wide.columns)}
    fewest = side_by_side(wide.keys, widths, WIDTH - 1)
    for limit in range(WIDTH - 1, 0, -1):
        parts = side_by_side(wide.keys, widths, limit - 1)
        if len(parts) > len(fewest) or any(_width(rows, part) > limit for part in parts):
            break
        fewest = parts
    return fewest
