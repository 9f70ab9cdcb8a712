"""Hidden states on their way from the oracle's passes to a head: what came of each row, and what no longer stands."""

from collections.abc import Sequence

import numpy as np

from specdec.contracts import Cache, Features, Head, IntArray, Scores


class HiddenStates:
    """Hand a head the hidden states of every position that stands, and take back its memory of all others.

    A session calls ``begin``, ``sync`` and ``end`` with what it is called with, if its source's needs are
    ``Needs(hidden=head.layers)``. Between steps the head knows the positions of all ids of a row but the pending one.

    Args:
        head: takes the features.
        cache: of the head. What it holds of a position is made of the features of that position and of earlier ones.
        num_rows: slots of the run.
        capacity: positions that the head can serve; it is given no others.

    Attributes:
        known: ``[num_rows]`` how many positions the head was given, from 0 on.

    Cost: of a step what the head makes of the root and the accepted nodes.
    """

    def __init__(self, head: Head, cache: Cache, num_rows: int, capacity: int) -> None:
        self.head, self.cache, self.capacity = head, cache, capacity
        self.known: IntArray = np.zeros(num_rows, dtype=np.int64)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests: the positions of their prompts but for the last id, if that is not all.

        Raises:
            ValueError: the scores lack the layers.
        """
        self.cache.reset(rows)
        self.known[rows] = 0
        counts = np.array([len(prompt) - 1 for prompt in prompts], dtype=np.int64)
        if counts.any():
            self._put(rows, np.zeros_like(counts), counts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Take back what followed the first ``keep[b] - 1`` positions, and take in those up to the new pending id.

        Raises:
            ValueError: the scores lack the layers or the path, or positions would be left out.
        """
        starts = keep - 1
        missing = np.minimum(starts, self.capacity) - self.known[rows]
        if max(missing.tolist(), default=0) > 0:
            row = int(rows[(missing > 0).argmax()])
            raise ValueError(
                f"the hidden states of row {row} after position {self.known[row]} never came: sync with scores"
            )
        self.forget(rows, starts)
        if scores is not None and scores.path is None:
            raise ValueError("scores say nothing of the path: a source that reads hidden layers needs Scores.path")
        self._put(rows, starts, (new_ids >= 0).sum(1), scores, None if scores is None else scores.path)

    def forget(self, rows: IntArray, ends: IntArray) -> None:
        """Take back the head's memory of positions from ``ends[b]`` on."""
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends))
        self.known[rows] = np.minimum(self.known[rows], ends)

    def end(self, rows: IntArray) -> None:
        """Forget finished requests."""
        self.forget(rows, np.zeros_like(rows))

    def check(self, rows: IntArray, num_committed: IntArray) -> None:
        """Raise ValueError unless all positions of rows but the pending id's are known, as far as the head goes."""
        wanted = np.minimum(num_committed - 1, self.capacity)
        if (self.known[rows] != wanted).any():
            raise ValueError(
                f"a head knows positions {self.known[rows].tolist()} of rows {rows.tolist()}, and needs those of "
                f"{wanted.tolist()}: sync with scores after every step"
            )

    def _put(
        self,
        rows: IntArray,
        starts: IntArray,
        counts: IntArray,
        scores: Scores | None,
        path: IntArray | None = None,
    ) -> None:
        """Give the head ``counts[b]`` positions from ``starts[b]`` on, but for those beyond its capacity.

        ``path`` ``[B, M]`` says which nodes they are; None: the first ones, in order.
        """
        if scores is None or len(scores.hidden) != len(self.head.layers):
            raise ValueError(
                f"a head reads the outputs of layers {self.head.layers} and was given none of them: its source must "
                "declare Needs(hidden=head.layers), and be told the scores of every step"
            )
        starts = np.minimum(starts, self.capacity)
        counts = np.minimum(counts, self.capacity - starts)
        width = int(counts.max())
        if path is None:
            features = Features(rows, starts, counts, tuple(layer[:, :width] for layer in scores.hidden))
        else:
            features = Features(rows, starts, counts, scores.hidden, path[:, :width])
        self.head.put(features, self.cache)
        self.known[rows] = starts + counts
