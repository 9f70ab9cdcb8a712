"""Recorded texts as an oracle."""

from oracles.recorded.text import RecordedText

__all__ = ["RecordedText"]
