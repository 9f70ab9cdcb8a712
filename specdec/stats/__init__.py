"""What a run did: its records and its statistics, from what every step tells."""

from specdec.stats.clock import Clock, DeviceClock, Mark
from specdec.stats.recorder import StatsRecorder
from specdec.stats.stats import Stats, pool
from specdec.stats.trace import RECORD_COLUMNS, Records, stacked

__all__ = [
    "RECORD_COLUMNS",
    "Clock",
    "DeviceClock",
    "Mark",
    "Records",
    "Stats",
    "StatsRecorder",
    "pool",
    "stacked",
]
