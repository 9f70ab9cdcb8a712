"""The seconds of a step by phase."""

import time


class Clock:
    """Wall seconds between laps, by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap under ``phase``."""
        now = time.perf_counter()
        self.seconds[phase] = now - self._last
        self._last = now
