"""Finding exact and near duplicates among source files."""

import hashlib

# A window is this many lines in a row, white space evened out and blank lines left out.
WINDOW_LINES = 5
# A text is a near duplicate if more than this share of its windows was seen before.
MAX_SEEN = 0.5


class Seen:
    """The windows of the texts kept so far.

    *Cost*: one 64-bit number a line of kept text.
    """

    def __init__(self) -> None:
        """Start with no text."""
        self._windows: set[int] = set()

    def is_duplicate(self, text: str) -> bool:
        """Tell whether more than ``MAX_SEEN`` of a text's windows stand in kept texts, or earlier in itself."""
        windows = _windows(text)
        num_new = len(set(windows) - self._windows)
        return len(windows) - num_new > MAX_SEEN * len(windows)

    def add(self, text: str) -> None:
        """Keep a text."""
        self._windows.update(_windows(text))


def _windows(text: str) -> list[int]:
    """Return one number for every window of a text, in order; a short text is one window."""
    lines = [_number(" ".join(line.split())) for line in text.split("\n") if line.strip()]
    last = max(1, len(lines) - WINDOW_LINES + 1)
    return [hash(tuple(lines[start : start + WINDOW_LINES])) for start in range(last)]


def _number(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")
