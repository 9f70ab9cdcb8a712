"""Texts and tables on a terminal, no wider than it is; the same words as plain text if output is not one.

``rich`` draws from Python's random numbers when it is imported, so only functions import what imports it.
"""

import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len

from specdec.stats.result_table import ColumnKind, Table, side_by_side, without_number

if TYPE_CHECKING:
    from rich.console import Console
    from rich.padding import Padding
    from rich.table import Table as Grid

Shown = str | Table
# Characters of a line if output is not a terminal.
WIDTH = 100
# The environment variable that names another form than a terminal's: a document, with all columns.
FORM, MARKDOWN, LATEX = "SPECDEC_TABLES", "markdown", "latex"
# Characters: between columns; the least of a column of many words, and of few; of a word, and of a heading, that are
# not broken.
_GAP, _WORDS, _FEW, _LONGEST, _HEADING = 2, 24, 10, 36, 14
# A column of words is not cut below this, however narrow the terminal is.
_NARROWEST = 8


def markdown_of(parts: Iterable[Shown]) -> str:
    """Return texts and tables as a Markdown document."""
    return "\n\n".join(part if isinstance(part, str) else part.section() for part in parts)


def latex_of(parts: Iterable[Shown]) -> str:
    """Return tables as LaTeX, each after comments with its words; texts are comments."""
    found = []
    for part in parts:
        words, table = ([part], []) if isinstance(part, str) else (filter(None, part.words()), [part.latex()])
        found.append("\n".join([*(f"% {line}".rstrip() for text in words for line in text.splitlines()), *table]))
    return "\n\n".join(found)


_DOCUMENTS = {MARKDOWN: markdown_of, LATEX: latex_of}


def text_of(parts: Iterable[Shown], console: "Console", wide: bool = False) -> str:
    """Return texts and tables as a console shows them, with an empty line between two of them.

    Args:
        parts: texts are wrapped; tables have their title, note and legend before them.
        console: whose width they keep to.
        wide: whether all columns of tables are shown, or those that matter most.
    """
    return "\n\n".join(_text(part, console, wide) for part in parts)


def asked_form() -> str:
    """Return the form that the environment variable ``SPECDEC_TABLES`` asks for; "": as a terminal shows it.

    Raises:
        ValueError: the variable names another form.
    """
    form = os.environ.get(FORM, "")
    if form not in ("", *_DOCUMENTS):
        raise ValueError(f"{FORM}={form}: give {' or '.join(_DOCUMENTS)}, or leave it out")
    return form


def show(parts: Iterable[Shown], wide: bool = False) -> None:
    """Print texts and tables: on a terminal as wide as that is, elsewhere ``WIDTH`` characters wide, without colours.

    The environment variable ``SPECDEC_TABLES`` asks for a document instead, with all columns: ``markdown``, ``latex``.

    Raises:
        ValueError: see ``asked_form``.
    """
    if form := asked_form():
        print(_DOCUMENTS[form](parts))
        return
    from rich.console import Console

    if sys.stdout.isatty():
        console = Console(highlight=False, markup=False, emoji=False)
    else:
        console = Console(width=WIDTH, highlight=False, markup=False, emoji=False, force_terminal=False, no_color=True)
    print(text_of(parts, console, wide))


def _text(part: Shown, console: "Console", wide: bool) -> str:
    if isinstance(part, str):
        return "\n".join(_wrap(line, console.width) for line in part.splitlines())
    with console.capture() as captured:
        _print_table(part, console, wide)
    return "\n".join(line.rstrip() for line in captured.get().splitlines())


def _wrap(line: str, width: int) -> str:
    """Return a line on as many as it needs; a path is no shorter for a narrow terminal, and is to be copied."""
    inner = "  " if line.startswith("- ") else ""
    return textwrap.fill(line, width, subsequent_indent=inner, break_long_words=False, break_on_hyphens=False)


def _print_table(table: Table, console: "Console", wide: bool) -> None:
    from rich.text import Text

    names = table.visible_columns(wide)
    if table.title:
        console.print(Text(table.title, style="bold"))
    if table.note:
        console.print(Text(table.note, style="dim"))
    if legend := table.legend_of(names):
        console.print(_legend(legend))
    console.print()
    for number, group in enumerate(column_groups(table, names, console.width)):
        if number:
            console.print()
        console.print(_grid(table, group, console.width))
    others = dict.fromkeys(without_number(name) for name in table.names if name not in names)
    if others:
        console.print(Text(f"--wide adds {', '.join(others)}.", style="dim"))


def _legend(legend: dict[str, str]) -> "Padding":
    from rich.padding import Padding
    from rich.table import Table as Grid

    grid = Grid.grid(padding=(0, _GAP, 0, 0))
    grid.add_column(style="dim", max_width=_WORDS)
    grid.add_column(style="dim")
    for label, meaning in legend.items():
        grid.add_row(label, meaning)
    return Padding(grid, (0, 0, 0, 2), expand=False)


def _heading(table: Table, name: str) -> str:
    """Return a column's name on as many lines as its cells leave it."""
    width = max(_HEADING, *map(cell_len, table.cells(name)))
    return "\n".join(textwrap.wrap(name, width, break_long_words=False, break_on_hyphens=False)) or name


def _width(table: Table, name: str) -> int:
    """Return the least width of a column; words are wrapped, numbers are not."""
    heading = max(map(cell_len, _heading(table, name).split("\n")))
    cells = table.cells(name)
    widest = max(map(cell_len, cells))
    if table.kind(name) not in (ColumnKind.TEXT, ColumnKind.LONG):
        return max(heading, widest)
    word = max((cell_len(word) for text in cells for word in text.split()), default=0)
    return max(heading, min(widest, _WORDS if table.kind(name) is ColumnKind.LONG else _FEW), min(word, _LONGEST))


def column_groups(table: Table, names: Sequence[str], width: int) -> list[list[str]]:
    """Return the columns that stand side by side, in more than one group if the width does not hold all.

    Each group begins with the columns that tell the rows apart.
    """
    first = [name for name in table.names[: table.leading()] if name in names]
    return side_by_side(first, {name: _width(table, name) + _GAP for name in names}, width + _GAP)


def _column_widths(table: Table, names: Sequence[str], width: int) -> list[int]:
    """Return the widths of columns that stand side by side; words get what is left, and give what is lacking."""
    widths = [_width(table, name) for name in names]
    spare = width - sum(widths) - _GAP * (len(names) - 1)
    for place, name in enumerate(names):
        if table.kind(name) in (ColumnKind.TEXT, ColumnKind.LONG):
            most = max(widths[place], *map(cell_len, table.cells(name)))
            changed = max(min(most, widths[place] + spare), min(widths[place], _NARROWEST))
            spare -= changed - widths[place]
            widths[place] = changed
    return widths


def _grid(table: Table, names: Sequence[str], width: int) -> "Grid":
    from rich import box
    from rich.table import Table as Grid

    # The box puts one of the spaces between columns.
    grid = Grid(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, _GAP - 1, 0, 0))
    for name, own in zip(names, _column_widths(table, names, width), strict=True):
        is_number = table.kind(name) is ColumnKind.NUMBER
        grid.add_column(_heading(table, name), justify="right" if is_number else "left", width=own, overflow="fold")
    for cells in zip(*(table.cells(name) for name in names), strict=True):
        grid.add_row(*cells)
    return grid
