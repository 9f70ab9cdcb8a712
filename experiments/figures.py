"""The figures of the README and of the strategies' pages: greedy and sampled side by side, out of BENCHMARKS.md."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.arms import PLAIN
from specdec.report import table

ROOT = Path(__file__).parent.parent
BEGIN, END = "<!-- figures: written by experiments.bench -->", "<!-- end of figures -->"
GREEDY, SAMPLED = "greedy", "sampled"
Row = dict[str, str]
_COSTS = ("v", "propose/T", "other/T")

# A column of the figures, and the column of BENCHMARKS.md that it is.
IN_SHORT = {"tokens/s": "tokens/s", "speed-up": "all", "no loops": "no loops", "tau": "tau"}
OF_ARMS = {
    "speed-up": "all",
    "no loops": "no loops",
    "tau": "tau",
    "c": "c",
    "cost": "cost",
    "pays below": "pays below",
}
OF_SHAPES = {"speed-up": "speed-up", "by theory": "speed-up, theory", "tau": "tau", "tau by theory": "tau, theory"}


@dataclass(frozen=True)
class Figures:
    """What stands in one document.

    Attributes:
        title: the section that is quoted; ", sampled" behind it is its sampled twin.
        names: the rows, in this order; None: all.
        key: the column that names a row.
        columns: see ``OF_ARMS``; a column that the section lacks is left out.
    """

    title: str
    names: tuple[str, ...] | None = None
    key: str = "arm"
    columns: Mapping[str, str] | None = None


PAGES = {
    "README.md": Figures("All strategies", columns=IN_SHORT),
    "docs/strategies/small_transformer.md": Figures("All strategies", ("plain", "small_transformer")),
    "docs/strategies/ngram.md": Figures("All strategies", ("plain", "ngram")),
    "docs/strategies/early_exit.md": Figures("All strategies", ("plain", "ngram", "early_exit")),
    "docs/strategies/prompt_lookup.md": Figures("All strategies", ("plain", "prompt_lookup")),
    "docs/strategies/merged.md": Figures("All strategies", ("plain", "ngram", "prompt_lookup", "merged", "cascade")),
    "docs/strategies/lookahead.md": Figures("Lookahead and its parts"),
    "docs/strategies/staged.md": Figures("Staged drafts and the same model unstaged"),
    "docs/strategies/draft_length.md": Figures("Draft lengths that follow confidence"),
    "docs/strategies/trees.md": Figures("Trees by shape and size", key="shape", columns=OF_SHAPES),
}


def tables_in(text: str) -> list[list[Row]]:
    """Return the Markdown tables of a text, a row as column -> cell."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE):
        cells = [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in block.splitlines()]
        found.append([dict(zip(cells[0], line, strict=True)) for line in cells[2:]])
    return found


def cells_of(section: str, key: str) -> dict[str, Row]:
    """Return row -> column -> cell, of all tables of a section that have the key; the first of equal columns counts."""
    rows: dict[str, Row] = {}
    for found in tables_in(section):
        for row in found:
            if key in row:
                rows[row[key]] = {**row, **rows.get(row[key], {})}
    return rows


def with_costs(rows: dict[str, Row]) -> dict[str, Row]:
    """Return the rows of arms with the cost of a step in plain passes, and the cost below which the arm pays.

    An arm is as fast as plain decoding if its steps cost tau times as much as plain decoding's.
    """
    costs = {arm: sum(float(row[part]) for part in _COSTS) for arm, row in rows.items() if set(_COSTS) <= set(row)}
    return {
        arm: row
        if arm not in costs
        else {**row, "cost": f"{costs[arm]:.2f}", "pays below": f"{float(row['tau']) * costs[PLAIN]:.2f}"}
        for arm, row in rows.items()
    }


def side_by_side(sections: Mapping[str, str], wanted: Figures) -> str:
    """Return the table that puts a section and its sampled twin beside each other.

    Raises:
        ValueError: a section or a row is missing.
    """
    ways = {GREEDY: wanted.title, SAMPLED: f"{wanted.title}, sampled"}
    missing = [title for title in ways.values() if title not in sections]
    if missing:
        raise ValueError(f"BENCHMARKS.md lacks the sections {missing}: measure them first")
    found = {way: with_costs(cells_of(sections[title], wanted.key)) for way, title in ways.items()}
    names = tuple(found[GREEDY]) if wanted.names is None else wanted.names
    absent = [name for name in names if any(name not in rows for rows in found.values())]
    if absent:
        raise ValueError(f"the sections {list(ways.values())} lack the rows {absent}")
    columns = OF_ARMS if wanted.columns is None else wanted.columns
    rows = []
    for name in names:
        row: Row = {wanted.key: name}
        for way, cells in found.items():
            row |= {
                f"{way}: {label}": cells[name][column] for label, column in columns.items() if column in cells[name]
            }
        rows.append(row)
    return table(rows, markdown=True)


def put(text: str, figures: str) -> str:
    """Return a document with other figures between its marks.

    Raises:
        ValueError: it does not have each mark once, in this order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"put {BEGIN} and {END} around the figures, once")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def write_pages(sections: Mapping[str, str], pages: Mapping[str, Figures] = PAGES, root: Path = ROOT) -> Sequence[str]:
    """Write the figures into all documents and return their names; errors as of ``side_by_side`` and ``put``."""
    written = {name: put((root / name).read_text(), side_by_side(sections, wanted)) for name, wanted in pages.items()}
    for name, text in written.items():
        (root / name).write_text(text)
    return list(written)
