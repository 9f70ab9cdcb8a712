"""Ctrl-C and TERM in training: they wait until a step has ended and its state is saved."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from oracles.factory.training import workers

_HELD = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def held_signals() -> Iterator[Callable[[], bool]]:
    """Hold the first Ctrl-C or TERM back until the block has ended; then it does what it always does.

    A second one acts at once. Several workers, which wait for each other, and threads other than the main one hold
    nothing back.

    Yields:
        Whether one has come.
    """
    came: list[int] = []
    if workers.count() > 1 or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in _HELD}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        restore()

    for number in _HELD:
        signal.signal(number, hold)
    try:
        yield lambda: bool(came)
    finally:
        restore()
    if came:
        signal.raise_signal(came[0])
