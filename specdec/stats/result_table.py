"""A table as data: rows, what their columns mean, which matter most; as Markdown and LaTeX for files, HTML for pages.

``specdec.stats.report.printout`` shows it on a terminal.
"""

import html
import re
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

# The most columns, those that matter most, that a terminal shows if it was not asked for all.
MOST = 5
# A column with a longer cell is one of words, which are wrapped.
_LONG = 48
_NUMBER = re.compile(r"-?[\d.,]+%?")
# A number, and what may follow it: an interval, "/12", "of 12".
_BEGINS_WITH_NUMBER = re.compile(r"[\d.,]+%?(?=$|[ /])")

# In HTML: where a column's name may be broken; what follows an estimate and is not broken: bounds, or a count of units.
BREAKS, BOUNDS = re.compile(r"([_/])"), re.compile(r"\[[^\]]*\]|\(n = [^)]*\)")

# Characters that LaTeX reads as more than themselves; a bracket or a star after the end of a row is an option of it.
_LATEX = str.maketrans(
    {
        "\\": r"\textbackslash{}",
        "~": r"\textasciitilde{}",
        "^": r"\textasciicircum{}",
        "<": r"\textless{}",
        ">": r"\textgreater{}",
        "|": r"\textbar{}",
        "→": r"$\rightarrow$",
        **{char: f"{{{char}}}" for char in "[*"},
        **{char: f"\\{char}" for char in "&%$#_{}"},
    }
)


class ColumnKind(StrEnum):
    """What the cells of a column are: its alignment, and whether they may be wrapped."""

    NUMBER = "number"
    INTERVAL = "interval"
    TEXT = "text"
    LONG = "long"


def cell(value: Any) -> str:
    """Return a value as tables show it: a number with three digits (1,234 with all), None as "-"."""
    if value is None:
        return "-"
    if not isinstance(value, float):
        return str(value).replace("\n", " ")
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def count_of(number: int, noun: str) -> str:
    """Return how many there are of something: 1 step, 1,234 steps."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _with_bounds(text: str) -> str:
    """Return a cell as HTML, its interval as a part of it."""
    return BOUNDS.sub(r'<span class="bounds">\g<0></span>', html.escape(text))


def without_number(name: str) -> str:
    """Return what a legend calls a column: "name@k" for "name@0", "name@1" and so on."""
    return re.sub(r"@\d+$", "@k", name)


def side_by_side(first: Sequence[str], widths: Mapping[str, int], room: int) -> list[list[str]]:
    """Return columns in groups that a page has room for; each begins with the same ones, and has one of the others.

    Args:
        first: columns that every group begins with.
        widths: column -> what it takes of the room, including its borders; for all columns, in their order.
        room: of a group.
    """
    left = room_of_others = room - sum(widths[name] for name in first)
    groups = [[*first]]
    for name in (name for name in widths if name not in first):
        if widths[name] > left and len(groups[-1]) > len(first):
            groups.append([*first])
            left = room_of_others
        groups[-1].append(name)
        left -= widths[name]
    return groups


@dataclass(frozen=True)
class Table:
    """A table of results.

    Attributes:
        title: what it shows.
        rows: column -> value, each; at least one, and all with the first one's columns.
        note: what it is about, and how that was measured; an empty line separates paragraphs.
        key: the name of the rows in a summary; "": they follow from what else it holds.
        brief: up to ``MOST`` columns that a terminal shows if it was not asked for all; (): all.
        legend: what the columns mean. A label is a column, several with ", " between them ("; " if their names have
            commas), or "name@k" for "name@0", "name@1" and so on.

    Raises:
        ValueError: no rows, a row with other columns, or more or unknown columns in ``brief``.
    """

    title: str
    rows: Sequence[Mapping[str, Any]]
    note: str = ""
    key: str = ""
    brief: tuple[str, ...] = ()
    legend: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError(f"the table {self.title!r} needs at least one row")
        for row in self.rows:
            if list(row) != list(self.names):
                raise ValueError(f"every row of a table must have the columns {list(self.names)}, one has {list(row)}")
        if len(self.brief) > MOST or not set(self.brief) <= set(self.names):
            raise ValueError(f"brief: {self.brief} must be {MOST} at most of the columns {list(self.names)}")

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self.rows[0])

    def cells(self, name: str) -> list[str]:
        """Return a column's cells as texts."""
        return [cell(row[name]) for row in self.rows]

    def kind(self, name: str) -> ColumnKind:
        """Return what a column's cells are."""
        values = [row[name] for row in self.rows if row[name] not in (None, "")]
        texts = [cell(value) for value in values]
        if values and all(
            isinstance(v, int | float) or _NUMBER.fullmatch(t) for v, t in zip(values, texts, strict=True)
        ):
            return ColumnKind.NUMBER
        if any(len(text) > _LONG for text in texts):
            return ColumnKind.LONG
        return ColumnKind.INTERVAL if texts and all(map(_BEGINS_WITH_NUMBER.match, texts)) else ColumnKind.TEXT

    def leading(self) -> int:
        """Return how many of the first columns it takes to tell the rows apart; 1 if even all columns do not."""
        for count in range(1, len(self.names) + 1):
            if len({tuple(map(str, [*row.values()][:count])) for row in self.rows}) == len(self.rows):
                return count
        return 1

    def visible_columns(self, wide: bool) -> tuple[str, ...]:
        """Return the columns that a terminal shows: all if it was asked for all or if no column matters more."""
        return self.names if wide or not self.brief else self.brief

    def legend_of(self, names: Sequence[str]) -> dict[str, str]:
        """Return the part of the legend that is about some columns."""
        numbered = {without_number(name) for name in names} | set(names)
        return {
            label: meaning
            for label, meaning in self.legend.items()
            if numbered & set(re.split("; " if ";" in label else ", ", label))
        }

    @property
    def explanation(self) -> str:
        """What the columns mean, as a paragraph; "" if there is no legend."""
        told = "; ".join(f"{label}: {meaning}" for label, meaning in self.legend_of(self.names).items())
        return f"{told}." if told else ""

    def markdown(self) -> str:
        """Return all columns between bars, aligned, without title and note."""
        columns = [[text.replace("|", r"\|") for text in (name, *self.cells(name))] for name in self.names]
        widths = [max(map(len, texts)) for texts in columns]
        lines = [
            [text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in zip(*columns, strict=True)
        ]
        lines.insert(1, ["-" * width for width in widths])
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)

    def latex(self) -> str:
        """Return all columns as a ``tabular`` that needs no package, without title and note; cells are escaped."""
        kinds = ["r" if self.kind(name) is ColumnKind.NUMBER else "l" for name in self.names]
        columns = [[text.translate(_LATEX) for text in (name, *self.cells(name))] for name in self.names]
        head, *lines = (rf"{' & '.join(line)} \\" for line in zip(*columns, strict=True))
        begin = rf"\begin{{tabular}}{{{''.join(kinds)}}}"
        return "\n".join([begin, r"\hline", head, r"\hline", *lines, r"\hline", r"\end{tabular}"])

    def words(self) -> tuple[str, str, str]:
        """Return the title, the note and what the columns mean, as documents have them before the table; "": none."""
        return self.title, self.note, f"Columns: {self.explanation}" if self.explanation else ""

    def section(self) -> str:
        """Return a section of a Markdown document: title, note, what the columns mean, and the table."""
        title, *told = self.words()
        return "\n\n".join(filter(None, (f"### {title}" if title else "", *told, self.markdown())))

    def html(self, names: Sequence[str] = ()) -> str:
        """Return an HTML table of some columns, or of all; the first one names the rows, a column's class is its kind.

        An interval may stand below its estimate, and is not broken.
        """
        kinds = {name: self.kind(name) for name in names or self.names}
        classes = {name: "number" if kind is ColumnKind.INTERVAL else kind.value for name, kind in kinds.items()}
        heads = {name: BREAKS.sub(r"\1<wbr>", html.escape(name)) for name in classes}
        head = "".join(f'<th scope="col" class="{kind}">{heads[name]}</th>' for name, kind in classes.items())
        lines = []
        for row in self.rows:
            first, *rest = (f'class="{kind}">{_with_bounds(cell(row[name]))}' for name, kind in classes.items())
            lines.append(f'<tr><th scope="row" {first}</th>{"".join(f"<td {one}</td>" for one in rest)}</tr>')
        return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: the title, the table, and what its columns mean."""
        notes = [*self.note.split("\n\n"), self.explanation]
        told = "".join(f"<p>{html.escape(text)}</p>" for text in notes if text)
        return f"<strong>{html.escape(self.title)}</strong>{self.html()}{told}"

    def __repr__(self) -> str:
        shown = textwrap.shorten(", ".join(self.names), 60, placeholder=" ...")
        return f"Table({self.title!r}: {len(self.rows)} rows of {len(self.names)} columns: {shown})"
