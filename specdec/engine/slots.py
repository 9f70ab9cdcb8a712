"""Which request sits in which cache row, and the ids in it: plain bookkeeping, testable without a model."""

from collections import deque
from collections.abc import Callable

import numpy as np

from specdec.contracts import IntArray
from specdec.requests import Request

IDLE = -1
_NO_ROWS = np.zeros(0, dtype=np.int64)


class Slots:
    """Rows of a batch and the requests that pass through them.

    Args:
        num_rows: requests in flight at most.
        capacity: ids a row can hold; a block needs room for its whole width.

    Attributes:
        requests: all requests of the run so far, admitted in their order.
        ids: ``[num_rows, capacity]`` prompt and output.
        num_committed: ``[num_rows]``.
        prompt_lengths: ``[num_rows]``.
        occupants: ``[num_rows]`` request indices, or IDLE.
        rows: ``[B]`` the occupied rows, ascending; another array whenever a row is seated or freed.
        num_queued: how many of the requests ``queue`` has seen.
        waiting: requests that a free row takes, in this order.
    """

    def __init__(self, num_rows: int, capacity: int) -> None:
        self.requests: list[Request] = []
        self.ids = np.zeros((num_rows, capacity), dtype=np.int64)
        self.num_committed = np.zeros(num_rows, dtype=np.int64)
        self.prompt_lengths = np.zeros(num_rows, dtype=np.int64)
        self.occupants = np.full(num_rows, IDLE, dtype=np.int64)
        self.rows = _NO_ROWS
        self.waiting: deque[int] = deque()
        self.num_queued = 0

    @property
    def has_new(self) -> bool:
        """Whether requests with room for a token are in ``requests`` that ``queue`` has not seen."""
        return any(r.max_length > len(r.prompt) for r in self.requests[self.num_queued :])

    def queue(self) -> None:
        """Let new requests wait, in their order; one without room for a token is finished: its output is empty."""
        while self.num_queued < len(self.requests):
            request = self.requests[self.num_queued]
            if request.max_length > len(request.prompt):
                self.waiting.append(self.num_queued)
            self.num_queued += 1

    def admit(self, seat: Callable[[int, Request], bool]) -> IntArray:
        """Seat waiting requests, in their order, in idle rows.

        Args:
            seat: gives a request a row of the cache, or returns that it has to wait, and with it all later ones.

        Returns:
            ``[R]`` int64, the rows that were seated, ascending.
        """
        idle = np.flatnonzero(self.occupants == IDLE)[: len(self.waiting)]
        seated = idle
        for place, row in enumerate(idle.tolist()):
            request = self.requests[self.waiting[0]]
            if not seat(row, request):
                seated = idle[:place]
                break
            index = self.waiting.popleft()
            length = len(request.prompt)
            self.ids[row, :length] = request.prompt
            self.num_committed[row] = self.prompt_lengths[row] = length
            self.occupants[row] = index
        if seated.size:
            self.rows = np.flatnonzero(self.occupants != IDLE)
        return seated

    def append(self, rows: IntArray, block: IntArray, counts: IntArray) -> IntArray:
        """Append the first ``counts[b]`` ids of ``block[b]``, -1 beyond, to ``rows[b]``; return ``[B]`` their lengths.

        The places beyond need room too: they become 0.
        """
        ends, width = self.num_committed[rows], block.shape[1]
        # A slice for each row: after a pass, which empties the CPU's caches, that is cheaper for a few of them.
        for row, end, ids in zip(rows.tolist(), ends.tolist(), np.maximum(block, 0), strict=True):
            self.ids[row, end : end + width] = ids
        self.num_committed[rows] = grown = ends + counts
        return grown

    def output(self, row: int) -> list[int]:
        """Return the new ids of a row."""
        ids: list[int] = self.ids[row, self.prompt_lengths[row] : self.num_committed[row]].tolist()
        return ids

    def release(self, rows: IntArray) -> None:
        """Free rows ``[R]`` whose requests are finished; their grammars let go of what they keep."""
        for request in self.occupants[rows].tolist():
            if (grammar := self.requests[request].grammar) is not None:
                grammar.forget()
        self.occupants[rows] = IDLE
        self.rows = np.flatnonzero(self.occupants != IDLE)
