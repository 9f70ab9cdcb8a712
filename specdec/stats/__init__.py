"""What a run did: its records and its statistics, from what every step tells."""

from specdec.stats.recorder import StatsRecorder
from specdec.stats.result_table import BOUNDS, BREAKS, ColumnKind, Table, cell, count_of, side_by_side
from specdec.stats.stats import Stats, pool
from specdec.stats.trace import RECORD_COLUMNS, Records, stack_rows

__all__ = [
    "BOUNDS",
    "BREAKS",
    "RECORD_COLUMNS",
    "ColumnKind",
    "Records",
    "Stats",
    "StatsRecorder",
    "Table",
    "cell",
    "count_of",
    "pool",
    "side_by_side",
    "stack_rows",
]
