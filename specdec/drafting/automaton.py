"""A suffix automaton: every part of a text as a state, where it goes on, and how often; ids come and go at the end."""

from collections import deque
from collections.abc import Iterable, Iterator
from heapq import nsmallest
from typing import NamedTuple

# How many ids can be taken back one by one: in text that repeats itself, each one's changes are as long as the text.
_UNDOABLE = 64


class _Step(NamedTuple):
    """What an id changed, so that it can be taken back.

    Attributes:
        before: the state of the text without it.
        split: the state that was split in two; -1: none.
        latest: what ``latest`` was along the suffixes of the text with it, the longest first.
    """

    before: int
    split: int
    latest: list[int]


class Automaton:
    """Hold a text so that its parts are found in time that does not depend on its length.

    A state stands for all parts that end at the same places; state 0 is the empty part. A text with L ids has fewer
    than 2 L states.

    Args:
        ids: the text; a negative id ends one of several texts, and is part of no draft.

    Attributes:
        ids: the text so far.
        whole: the state of the whole text.
        following: for each state, id -> state of its parts with that id after them.
        links: for each state, the state of its longest suffix that ends at more places; -1 for state 0.
        lengths: for each state, how many ids its longest part has.
        counts: for each state but 0, how often its parts occur in the text; they may overlap.
        latest: for each state but 0, how many ids the text had when its parts last ended.

    Cost: O(L) time and memory for a text of L ids, some microseconds an id in Python; see ``append`` and ``cut``.
    Source: Blumer et al. 1985, "The smallest automaton recognizing the subwords of a text" (Theoretical Computer
        Science 40).
    Deviations: it counts occurrences while it grows, and can take ids back, the last first.
    """

    def __init__(self, ids: Iterable[int] = ()) -> None:
        self._build(ids)

    def _build(self, ids: Iterable[int]) -> None:
        """Begin anew with a text, counted as a whole."""
        self.ids: list[int] = []
        self.whole = 0
        self.following: list[dict[int, int]] = [{}]
        self.links, self.lengths, self.counts, self.latest = [-1], [0], [0], [0]
        for one in ids:
            self._grow(one)
        self._steps = deque[_Step](maxlen=_UNDOABLE)  # of the latest ids that were appended since
        # The longest first: a state has handed its numbers to its suffix before that suffix hands them on.
        for state in sorted(range(1, len(self.links)), key=self.lengths.__getitem__, reverse=True):
            above = self.links[state]
            self.counts[above] += self.counts[state]
            self.latest[above] = max(self.latest[above], self.latest[state])

    def append(self, one: int) -> None:
        """Let an id follow the text.

        Cost: O(1) amortised, and O(S) for S suffixes of the text that each end at different places: few, but L / p in a
            text that repeats p ids throughout.
        """
        before = self.whole
        split = self._grow(one)
        if split >= 0:
            clone = self.links[self.whole]
            self.counts[clone], self.latest[clone] = self.counts[split], self.latest[split]
        state, latest = self.links[self.whole], []
        while state > 0:
            latest.append(self.latest[state])
            self.counts[state] += 1
            self.latest[state] = len(self.ids)
            state = self.links[state]
        self._steps.append(_Step(before, split, latest))

    def _grow(self, one: int) -> int:
        """Add an id without counting; return the state that was split, -1 if none was."""
        following, links, lengths = self.following, self.links, self.lengths
        self.ids.append(one)
        at, last = self.whole, self._add(len(self.ids), {}, 1, len(self.ids))
        self.whole = last
        while at >= 0 and one not in following[at]:
            following[at][one] = last
            at = links[at]
        if at < 0:
            links[last] = 0
            return -1
        there = following[at][one]
        if lengths[there] == lengths[at] + 1:
            links[last] = there
            return -1
        # The shorter parts of ``there`` end at one more place now: they get a state of their own.
        clone = self._add(lengths[at] + 1, following[there].copy(), 0, 0)
        links[clone] = links[there]
        links[there] = links[last] = clone
        while at >= 0 and following[at].get(one) == there:
            following[at][one] = clone
            at = links[at]
        return there

    def _add(self, length: int, following: dict[int, int], count: int, latest: int) -> int:
        """Return a new state."""
        self.following.append(following)
        self.links.append(0)
        self.lengths.append(length)
        self.counts.append(count)
        self.latest.append(latest)
        return len(self.links) - 1

    def cut(self, size: int) -> None:
        """Take ids back, so that the first ``size`` are left.

        Cost: for up to 64 ids that were appended, what appending them took; for more, and for ids that it was built
            from, O(L).
        """
        if size < len(self.ids) - len(self._steps):
            self._build(self.ids[:size])
        while len(self.ids) > size:
            self._take_back(self._steps.pop())

    def _take_back(self, step: _Step) -> None:
        """Undo the last ``append``."""
        following, links = self.following, self.links
        one, last = self.ids.pop(), self.whole
        above = state = links[last]
        for latest in step.latest:
            self.counts[state] -= 1
            self.latest[state] = latest
            state = links[state]
        at = step.before
        while at >= 0 and following[at].get(one) == last:
            del following[at][one]
            at = links[at]
        if step.split >= 0:
            while at >= 0 and following[at].get(one) == above:
                following[at][one] = step.split
                at = links[at]
            links[step.split] = links[above]
        for column in (following, links, self.lengths, self.counts, self.latest):
            del column[last:]
        self.whole = step.before

    def match(self) -> tuple[int, int]:
        """Return the state and length of the longest suffix that also occurs earlier in the text; 0, 0: there is none.

        The two occurrences may overlap: they end at different places.
        """
        state = self.links[self.whole]
        return (state, self.lengths[state]) if state > 0 else (0, 0)

    def follow(self, state: int, length: int, one: int) -> tuple[int, int]:
        """Return the longest suffix of another text that occurs in this one, after an id is added to that text.

        Args:
            state, length: the longest suffix before it; 0, 0 at the beginning.
            one: the id.

        Cost: O(1) amortised over the ids of the other text.
        """
        while state > 0 and one not in self.following[state]:
            state = self.links[state]
            length = self.lengths[state]
        if one in self.following[state]:
            return self.following[state][one], length + 1
        return 0, 0

    def suffixes(self, state: int, length: int, least: int) -> Iterator[tuple[int, int]]:
        """Yield a matched part and those of its suffixes that each end at more places, down to ``least`` ids."""
        while state > 0 and length >= least:
            yield state, length
            state = self.links[state]
            length = self.lengths[state]

    def children(self, state: int, most: int = 1) -> list[tuple[int, int, float]]:
        """Return what follows a state's parts: ids, their states, and the shares of the occurrences that they follow.

        The most frequent come first, the latest among equals. An occurrence at the end of the text, which nothing
        follows, does not count; the end of one of several texts counts, but is no child.
        """
        following, counts = self.following[state], self.counts
        if len(following) == 1:
            ((one, there),) = following.items()
            return [(one, there, 1.0)] if one >= 0 else []
        total = sum(counts[there] for there in following.values())
        real = [(-counts[there], -self.latest[there], one, there) for one, there in following.items() if one >= 0]
        return [(one, there, -count / total) for count, _, one, there in nsmallest(most, real)]
