"""A clock that stands still until somebody says how much time has passed."""

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from unittest.mock import patch


class HandClock:
    """Seconds that go by when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def spend(self, seconds: float) -> None:
        """Let time go by."""
        self.now += seconds


@contextmanager
def clock_of(*modules: ModuleType, sleeping: bool = False) -> Iterator[HandClock]:
    """Give a clock that some modules read in place of ``time.perf_counter``.

    Args:
        modules: whose ``time`` it takes the place of.
        sleeping: whether who sleeps lets time go by; if not, nobody sleeps by it.
    """
    clock = HandClock()
    time = SimpleNamespace(perf_counter=lambda: clock.now, sleep=lambda seconds: clock.spend(seconds * sleeping))
    patches = [patch.object(module, "time", time) for module in modules]
    for one in patches:
        one.start()
    try:
        yield clock
    finally:
        for one in patches:
            one.stop()
