"""The figures of pages in docs/, out of benchmarks/: greedy, then sampled."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END
from specdec.stats import Table

ROOT = Path(__file__).parents[2]
BEGIN, END = "<!-- figures: written by experiments.bench -->", "<!-- end of figures -->"
GREEDY, SAMPLED = "greedy", "sampled"
WIDTH = 120
Row = dict[str, str]
_COSTS = ("v", "propose/T", "other/T")
_ARM = "arm"
NEEDS = "What each would need, [measured → enough](README.md#the-figures):"

# A column of the figures, and the column of benchmarks/ that it is.
_SPEED = (DECODING_ALONE, END_TO_END)
OF_ARMS = {name: name for name in (*_SPEED, "no loops", "tau", "c", "cost", "pays below")}
OF_PEERS = {name: name for name in ("tokens/s", *_SPEED, "bootstrap", "no loops", "identical")}
OF_SHAPES = {
    **{name: name for name in _SPEED},
    "by theory": f"{DECODING_ALONE}, theory",
    "tau": "tau",
    "tau by theory": "tau, theory",
}


@dataclass(frozen=True)
class DocumentFigures:
    """The figures of one document.

    Attributes:
        title: the section that is quoted; ", sampled" after it is its sampled twin.
        names: the rows, in this order; None: all.
        key: the column that names a row.
        columns: see ``OF_ARMS``; a column that the section lacks is left out, and a row that lacks it has "-".
        has_twin: whether there is such a twin; then its table follows, and one of what each arm would need to come out
            even.
    """

    title: str
    names: tuple[str, ...] | None = None
    key: str = _ARM
    columns: Mapping[str, str] | None = None
    has_twin: bool = True

    @property
    def ways(self) -> dict[str, str]:
        """How tokens are chosen -> the section that tells of it."""
        return {GREEDY: self.title} | ({SAMPLED: f"{self.title}, sampled"} if self.has_twin else {})


_LENGTHS = (
    "plain", "fixed 1", "fixed 3", "fixed 4", "fixed 8", "threshold", "constant", "tracked", "entropy", "heuristic",
)  # fmt: skip
_SHAPES = (
    "chain:4", "kary:4x1", "kary:2x2", "kary:3x2", "kary:2x3", "grown:8x2", "grown:16x4", "best of 8", "best of 16",
    "optimum",
)  # fmt: skip
PAGES = {
    "docs/guides/peers.md": DocumentFigures("Beside transformers", columns=OF_PEERS, has_twin=False),
    "docs/strategies/small_transformer.md": DocumentFigures("All strategies", ("plain", "small_transformer")),
    "docs/strategies/ngram.md": DocumentFigures("All strategies", ("plain", "ngram")),
    "docs/strategies/early_exit.md": DocumentFigures("All strategies", ("plain", "ngram", "early_exit")),
    "docs/strategies/prompt_lookup.md": DocumentFigures("All strategies", ("plain", "prompt_lookup")),
    "docs/strategies/merged.md": DocumentFigures(
        "All strategies", ("plain", "ngram", "prompt_lookup", "merged", "cascade")
    ),
    "docs/strategies/lookahead.md": DocumentFigures("Lookahead and its parts"),
    "docs/strategies/staged.md": DocumentFigures("Staged drafts and the same model unstaged"),
    "docs/strategies/draft_length.md": DocumentFigures("Draft lengths that follow confidence", _LENGTHS),
    "docs/strategies/trees.md": DocumentFigures("Trees by shape and size", _SHAPES, key="shape", columns=OF_SHAPES),
}


def tables_in(text: str) -> list[list[Row]]:
    """Return the Markdown tables of a text, a row as column -> cell."""
    found = []
    for block in re.findall(r"(?:^\|.*\|\n?)+", text, flags=re.MULTILINE):
        lines = [line.strip().strip("|").split(" | ") for line in block.splitlines()]
        cells = [[cell.strip().replace(r"\|", "|") for cell in line] for line in lines]
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


def needs_of(row: Row, plain: Row) -> Row:
    """Return the break-even value of each part: with the others as measured, the arm is as fast as plain decoding.

    Args:
        row: of an arm that pays for drafts, at batch 1, where no row waits for others.
        plain: of plain decoding.

    Returns:
        For tau, the pass (v) and drafting a token (c): the measured value, an arrow, and the limit. tau must be at
        least that, v and c at most. "none" if no possible value is enough.
    """
    total, even = (sum(float(arm[part]) for part in _COSTS) for arm in (row, plain))
    tau, v, c, propose = (float(row[name]) for name in ("tau", "v", "c", "propose/T"))
    spare, wanted = tau * even - total, total / even
    limits = {
        "tau": f"{wanted:.2f}" if wanted <= 1 + propose / c else "none",
        "v": f"{v + spare:.2f}" if v + spare > 0 else "none",
        "c": f"{c * (1 + spare / propose):.3g}" if propose + spare > 0 else "none",
    }
    return {name: f"{row[name]} → {limit}" for name, limit in limits.items()}


def _rows_of(
    sections: Mapping[str, str], wanted: DocumentFigures, key: str
) -> tuple[tuple[str, ...], dict[str, dict[str, Row]]]:
    """Return the wanted names, and the rows of both ways; errors as of ``both_ways``."""
    missing = [title for title in wanted.ways.values() if title not in sections]
    if missing:
        raise ValueError(f"benchmarks/ lacks the sections {missing}: measure them first")
    found = {way: with_costs(cells_of(sections[title], key)) for way, title in wanted.ways.items()}
    names = tuple(found[GREEDY]) if wanted.names is None else wanted.names
    absent = [name for name in names if any(name not in rows for rows in found.values())]
    if absent:
        raise ValueError(f"the sections {list(wanted.ways.values())} lack the rows {absent}")
    return names, found


def both_ways(sections: Mapping[str, str], wanted: DocumentFigures) -> str:
    """Return the table of a section; if it has a sampled twin, both tables, and that of what arms need.

    Raises:
        ValueError: a section or a row is missing.
    """
    names, found = _rows_of(sections, wanted, wanted.key)
    columns = OF_ARMS if wanted.columns is None else wanted.columns
    tables = {}
    for way, cells in found.items():
        known = {column for name in names for column in cells[name]}
        labels = {label: column for label, column in columns.items() if column in known}
        rows = [
            {wanted.key: name} | {label: cells[name].get(column, "-") for label, column in labels.items()}
            for name in names
        ]
        tables[way] = _fitting(Table("", rows).markdown())
    if not wanted.has_twin:
        return tables[GREEDY]
    return "\n\n".join(f"{way.capitalize()}:\n\n{table}" for way, table in tables.items()) + _needs(sections, wanted)


def _fitting(table: str) -> str:
    """Return a table without padding, if it is too wide for a page with it and fits without it."""
    lines = table.splitlines()
    unpadded = [re.sub(r" +\|", " |", re.sub("-{4,}", "---", line) if n == 1 else line) for n, line in enumerate(lines)]
    fits = max(map(len, unpadded)) <= WIDTH < len(lines[0])
    return "\n".join(unpadded if fits else lines)


def _needs(sections: Mapping[str, str], wanted: DocumentFigures) -> str:
    """Return the table of what arms need, for those that pay for drafts in both ways; nothing if there are none."""
    names, found = _rows_of(sections, wanted, _ARM)
    rows = []
    for arm in names:
        if all(row[arm].get("c", "-") not in ("-", "0") for row in found.values()):
            needs = {way: needs_of(row[arm], row[PLAIN]) for way, row in found.items()}
            cells = {f"{way}: {part}": cell for way, parts in needs.items() for part, cell in parts.items()}
            rows.append({_ARM: arm, **cells})
    return f"\n\n{NEEDS}\n\n{Table('', rows).markdown()}" if rows else ""


def put(text: str, figures: str) -> str:
    """Return a document with new figures between its marks.

    Raises:
        ValueError: it does not have each mark once, in this order.
    """
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(END) < text.index(BEGIN):
        raise ValueError(f"put {BEGIN} and {END} around the figures, once")
    before, after = text.split(BEGIN)[0], text.split(END)[1]
    return f"{before}{BEGIN}\n{figures}\n{END}{after}"


def write_pages(
    sections: Mapping[str, str], pages: Mapping[str, DocumentFigures] = PAGES, root: Path = ROOT
) -> Sequence[str]:
    """Write the figures into all documents and return their names; errors as of ``both_ways`` and ``put``."""
    written = {
        name: put((root / name).read_text(encoding="utf-8"), both_ways(sections, wanted))
        for name, wanted in pages.items()
    }
    for name, text in written.items():
        (root / name).write_text(text, encoding="utf-8")
    return list(written)
