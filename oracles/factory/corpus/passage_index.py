"""Finding passages that two bodies of token ids share."""

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

# Texts that share this many tokens in a row share a passage.
PASSAGE_TOKENS = 50
_BASE = np.uint64(0x9E3779B97F4A7C15)

Hashes = NDArray[np.uint64]


def passage_hashes(ids: Sequence[int], length: int = PASSAGE_TOKENS) -> Hashes:
    """Return one number for every ``length`` ids in a row: h = sum_k mix(ids[i + k]) base^(length - 1 - k) mod 2^64.

    Args:
        ids: token ids of one text, at least 0.
        length: of a passage, at least 1.

    Returns:
        The numbers in the order of the passages, max(0, N - length + 1) of them.

    *Cost*: O(N length) time, O(N) memory.
    """
    mixed = _mix(np.asarray(ids, dtype=np.uint64))
    num_passages = max(0, len(mixed) - length + 1)
    hashes = np.zeros(num_passages, dtype=np.uint64)
    for k in range(length if num_passages else 0):
        hashes = hashes * _BASE + mixed[k : k + num_passages]
    return hashes


class PassageIndex:
    """The passages of some texts, to search for them in many others.

    *Guarantee*: every shared passage is found. Two passages that differ have the same number about once in 2^64 pairs.
    """

    def __init__(self, texts: Sequence[Sequence[int]], length: int = PASSAGE_TOKENS) -> None:
        """Index the passages of every text.

        Args:
            texts: token ids, one sequence for each text.
            length: of a passage.
        """
        self._length = length
        self._passages = [passage_hashes(ids, length) for ids in texts]
        self._known = np.unique(np.concatenate([*self._passages, np.zeros(0, dtype=np.uint64)]))

    def find_overlaps(self, others: Iterable[Sequence[int]]) -> frozenset[int]:
        """Return the numbers of the indexed texts that share a passage with one of the others.

        *Cost*: a binary search for every id of the others; one of them in memory at a time.
        """
        if not len(self._known):
            return frozenset()
        found = np.zeros(len(self._known), dtype=bool)
        for ids in others:
            hashes = passage_hashes(ids, self._length)
            places = np.minimum(np.searchsorted(self._known, hashes), len(self._known) - 1)
            found[places[self._known[places] == hashes]] = True
        shared = self._known[found]
        return frozenset(place for place, hashes in enumerate(self._passages) if np.isin(hashes, shared).any())


def _mix(ids: Hashes) -> Hashes:
    """Return well spread numbers for ids, so that small ids do not make small sums (the finalizer of splitmix64)."""
    mixed = (ids + np.uint64(1)) * _BASE
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
