"""From the steps of a run with long drafts: the steps that shorter ones would have taken through the same texts."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from specdec.contracts import IntArray
from specdec.stats import Stats


@dataclass(frozen=True)
class Work:
    """What the steps of a run have to do.

    Attributes:
        tokens: tau, the mean tokens of a row's step.
        rows: mean rows in flight of a scoring call; requests that end early leave it.
        nodes: mean nodes of a call, all rows and their pending tokens together.
        levels: mean of a call's longest draft, whose tokens come one after the other.
    """

    tokens: float
    rows: float
    nodes: float
    levels: float

    @staticmethod
    def of(stats: Stats) -> "Work":
        """Return the work of a run, means of its calls."""
        calls, nodes = stats.target_calls, stats.num_drafted + stats.num_steps
        tokens, rows = stats.block_efficiency or float("nan"), stats.num_steps / calls
        return Work(tokens, rows, nodes / calls, stats.num_draft_passes / calls)


@dataclass(frozen=True)
class Steps:
    """The steps of a run, as far as draft lengths change them; in order for each request.

    Args:
        request: ``[S]`` whose step it is.
        batch: ``[S]`` the batch of requests that began together.
        drafted, accepted: ``[S]`` nodes of its draft, a chain, and how many were accepted.
        emitted: ``[S]`` tokens.
    """

    request: IntArray
    batch: IntArray
    drafted: IntArray
    accepted: IntArray
    emitted: IntArray

    @staticmethod
    def of(records: Sequence[Mapping[str, Sequence[Any]]]) -> "Steps":
        """Return the steps of some runs, a batch each, from the columns of their records."""
        parts, first = [], 0
        for number, columns in enumerate(records):
            request = np.array(columns["request"], dtype=np.int64)
            own = [columns["num_drafted"], columns["num_accepted"], columns["num_emitted"]]
            parts.append(np.array([request + first, np.full(len(request), number), *own], dtype=np.int64))
            first += int(request.max(initial=-1)) + 1
        return Steps(*np.concatenate(parts, axis=1))

    @property
    def longest(self) -> int:
        """The longest draft, at least 1."""
        return int(self.drafted.max(initial=1))

    def plain(self) -> Work:
        """Return the work of plain decoding: a token a step."""
        tokens = np.bincount(self.request, self.emitted).astype(np.int64)
        return self._work([np.zeros(count, dtype=np.int64) for count in tokens], int(tokens.sum()))

    def work(self, length: int) -> Work:
        """Return the work of drafts of at most ``length`` tokens; ``shorten`` says how they go."""
        onward, emitted = self._onward(), int(self.emitted.sum())
        drafted = [
            np.array([*shorten(self.drafted[own], self.accepted[own], self.longest, length, onward)], dtype=np.int64)
            for own in (self.request == number for number in range(int(self.request.max()) + 1))
        ]
        return self._work(drafted, emitted)

    def _onward(self) -> float:
        """Return how often a wholly accepted draft would have been accepted further, had it been longer.

        That is taken to be how often the first token of the draft after it was accepted; 1 if there is none.
        """
        order = np.argsort(self.request, kind="stable")
        request, drafted, accepted = self.request[order], self.drafted[order], self.accepted[order]
        after = (accepted[:-1] == self.longest) & (request[:-1] == request[1:]) & (drafted[1:] > 0)
        return float((accepted[1:][after] > 0).mean()) if after.any() else 1.0

    def _work(self, drafted: Sequence[IntArray], emitted: int) -> Work:
        """Return the work of steps that draft these tokens, ``[steps]`` of each request, and emit this many in all."""
        batch = np.zeros(len(drafted), dtype=np.int64)
        batch[self.request] = self.batch
        width = max(map(len, drafted))
        # Rows of a batch begin together, so that they share their first call, their second, ...
        calls = np.zeros((2, int(batch.max()) + 1, width), dtype=np.int64)
        longest = np.zeros(calls.shape[1:], dtype=np.int64)
        for number, own in enumerate(drafted):
            at = (batch[number], slice(len(own)))
            calls[0][at] += 1
            calls[1][at] += own + 1
            longest[at] = np.maximum(longest[at], own)
        count, steps = np.count_nonzero(calls[0]), sum(map(len, drafted))
        return Work(emitted / steps, steps / count, float(calls[1].sum() / count), float(longest.sum() / count))


def shorten(drafted: IntArray, accepted: IntArray, longest: int, length: int, onward: float) -> Iterator[int]:
    """Yield how many tokens steps draft if drafts have at most ``length``, from a request's steps with longer ones.

    A shorter draft ends amid the accepted tokens of the longer one. The next draft is taken to begin there and to
    repeat how the longer one went on: this is exact for a model that drafts its likeliest tokens, or in coupled mode.
    So stretches in which drafts are accepted are met more often, as they are by shorter drafts. If all ``longest``
    tokens of a draft were accepted, it is unknown how it would have gone on. Its next token is then taken as accepted
    with probability ``onward``: every n-th time, not by chance.

    Args:
        drafted, accepted: ``[S]`` of the request's steps, in order.
        longest: the length that ended long drafts that could have gone on.
        length: 1 or more.
        onward: in [0, 1].
    """
    step, at, credit = 0, 0, 0.5
    while step < len(drafted):
        left, nodes = length, 0
        while True:
            stood = int(accepted[step]) - at
            if stood >= left:
                nodes, at = nodes + left, at + left + 1
                break
            if accepted[step] < drafted[step] or drafted[step] < longest:
                nodes, at = nodes + min(left, int(drafted[step]) - at), int(accepted[step]) + 1
                break
            credit += onward
            if credit < 1 or step + 1 == len(drafted):
                nodes, at = nodes + left, int(accepted[step]) + 1
                break
            # The draft goes on with the token that the long step's pass gave, and with the next long draft.
            credit, left, nodes = credit - 1, left - stood - 1, nodes + stood + 1
            step, at = step + 1, 0
            if not left:
                at = 1
                break
        yield nodes
        while step < len(drafted) and at > accepted[step]:
            step, at = step + 1, 0
