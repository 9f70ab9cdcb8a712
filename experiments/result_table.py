"""A table of a run, with what its columns mean, as terminals and pages show it."""

from dataclasses import dataclass
from typing import Any

from specdec.report import table


@dataclass(frozen=True)
class Table:
    """A table of a run.

    Attributes:
        title: what it shows.
        rows: column -> value, each.
        note: what the columns mean.
        key: the name of the rows in a summary; "": they follow from what else it holds.
        brief: columns that a terminal shows without ``--wide``; (): all.
        more: what the others mean.
    """

    title: str
    rows: list[dict[str, Any]]
    note: str
    key: str = ""
    brief: tuple[str, ...] = ()
    more: str = ""

    def texts(self, wide: bool) -> tuple[str, str]:
        """Return the table and its note as a terminal shows them."""
        if not self.brief or wide:
            return table(self.rows, markdown=True), " ".join(filter(None, (self.note, self.more)))
        rows = [{name: row[name] for name in self.brief} for row in self.rows]
        others = ", ".join(name for name in self.rows[0] if name not in self.brief)
        return table(rows, markdown=True), f"{self.note} --wide adds {others}."
