"""As which of several drawn siblings a token of the output was accepted.

The children of a node are offered in drawing order, each to the law that the rejected ones left of the target's
(``specdec/verify/multi_draft.py``). The output tells only the accepted token, so what was rejected before it is summed
over. A rejected id x has q(x) above what was left of p(x), so that nothing of it is left. Hence what is left after some
rejections follows from the probabilities of the rejected ids alone, and for draws with replacement from their number
alone.

``sample_and_match`` gives token y of the output, drawn first, to the first child that carries it: that is the walk of
``multi_draft`` with a point mass on y as the target's law.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from specdec.contracts import FloatArray

# Estimates that are made of what cannot be summed over, independently of each other, and histories drawn for each.
NUM_ESTIMATES, _HISTORIES = 8, 4
# Histories are summed over if they and the vocabulary make no more numbers than this.
_MOST_NUMBERS = 2**18


def acceptance_with_replacement(target: FloatArray, drawn: FloatArray, token: int, count: int) -> FloatArray:
    """Return ``[R]`` how likely a token of the output was accepted as the sibling of each rank, given that it is next.

    Args:
        target: ``[V]`` the target's law p, p(token) above 0; a point mass on the token for ``sample_and_match``.
        drawn: ``[V]`` the law q that every sibling is drawn from.
        token: of the output.
        count: R, siblings.

    Cost: O(R V).
    """
    found, left, waiting = np.zeros(count), target, 1.0
    for rank in range(count):
        found[rank] = waiting * min(left[token], drawn[token])
        waiting *= np.maximum(drawn - left, 0).sum()
        left = _normalise(np.maximum(left - drawn, 0))
    given: FloatArray = found / target[token]
    return given


@dataclass(frozen=True)
class _Histories:
    """Some ways in which siblings were rejected, one after the other.

    Attributes:
        weight: ``[H]`` their probabilities; for drawn ones such that expectations are kept.
        law: ``[H, V]`` that the next sibling is drawn from.
        left: ``[H, V]`` of the target's law.
    """

    weight: FloatArray
    law: FloatArray
    left: FloatArray

    @cached_property
    def rejection(self) -> FloatArray:
        """``[H, V]`` how likely each id comes next and is rejected."""
        return self.weight[:, None] * np.maximum(self.law - self.left, 0)

    @cached_property
    def rest(self) -> FloatArray:
        """``[H, V]`` what is left of the target's law after one more rejection."""
        return _normalise(np.maximum(self.left - self.law, 0))

    def next_acceptance(self, token: int) -> float:
        """Return how likely one more sibling is rejected, and the token accepted as the one after it."""
        others = _without_each(self.law)
        drawn = np.divide(self.law[:, token, None], others, out=np.zeros_like(others), where=others > 0)
        return float((self.rejection * np.minimum(self.rest[:, token, None], drawn)).sum())

    def longer(self, token: int, most: int, generator: np.random.Generator) -> "tuple[_Histories, bool]":
        """Return the histories with one more rejection, and whether they are all of them that leave the token.

        If there are more than ``most``, ``_HISTORIES`` of them are drawn by their probabilities, by one uniform number.
        """
        weights = np.where(self.rest[:, token, None] > 0, self.rejection, 0.0).reshape(-1)
        chosen = np.flatnonzero(weights)
        if whole := len(chosen) <= most:
            weight = weights[chosen]
        else:
            ends = weights[chosen].cumsum()
            places = (generator.random() + np.arange(_HISTORIES)) / _HISTORIES * ends[-1]
            chosen = chosen[np.minimum(np.searchsorted(ends, places, side="right"), len(chosen) - 1)]
            weight = np.full(_HISTORIES, ends[-1] / _HISTORIES)
        history, last = np.divmod(chosen, self.law.shape[1])
        law = self.law[history]
        law[np.arange(len(last)), last] = 0.0
        return _Histories(weight, _normalise(law), self.rest[history]), whole


def acceptance_without_replacement(
    target: FloatArray, drawn: FloatArray, token: int, count: int, generator: np.random.Generator
) -> FloatArray:
    """Return what ``acceptance_with_replacement`` does, for siblings drawn without replacement: ``[E, R]`` estimates.

    Args:
        target, drawn, token, count: see there; the sibling of each rank is drawn from q without the earlier ones.
        generator: draws histories of rejected siblings.

    Returns:
        One row if it is exact, as it is for ranks 0 and 1, and for all while the histories of ``count`` - 2 rejected
        siblings are few. Else ``NUM_ESTIMATES`` independent rows, each with the exact expectation.

    Cost: O(V) for two siblings; O(V) more for each history that is looked at, ``_MOST_NUMBERS`` / V of them or
        ``NUM_ESTIMATES`` times 4 a rank.
    """
    target, drawn, token = _narrow(target, drawn, token)
    first = [min(target[token], drawn[token])]
    begun = _Histories(np.ones(1), drawn[None], target[None])
    exact, known = _ranks(begun, first, token, count, max(_HISTORIES, _MOST_NUMBERS // len(drawn)), generator)
    rows = [exact]
    if known < count:
        drawn_rows = (_ranks(begun, first, token, count, _HISTORIES, generator)[0] for _ in range(NUM_ESTIMATES))
        rows = [exact[:known] + row[known:] for row in drawn_rows]
    found: FloatArray = np.array(rows) / target[token]
    return found


def _ranks(
    histories: _Histories, first: list[float], token: int, count: int, most: int, generator: np.random.Generator
) -> tuple[list[float], int]:
    """Return the acceptance of each rank, and for how many ranks, from the first on, it is exact."""
    found, known = list(first), count
    for rank in range(1, count):
        found.append(histories.next_acceptance(token))
        if rank < count - 1:
            histories, whole = histories.longer(token, most, generator)
            known = known if whole else min(known, rank + 1)
    return found, known


def _narrow(target: FloatArray, drawn: FloatArray, token: int) -> tuple[FloatArray, FloatArray, int]:
    """Return both laws over the ids that may be drawn, the token and one id for all others."""
    kept = drawn > 0
    kept[token] = True
    ids = np.flatnonzero(kept)
    own, rest = np.append(target[ids], target[~kept].sum()), np.append(drawn[ids], 0.0)
    return own, rest, int(np.searchsorted(ids, token))


def _normalise(mass: FloatArray) -> FloatArray:
    """Return mass ``[..., V]`` over its sum; nothing if there is none."""
    total = mass.sum(-1, keepdims=True)
    normalised: FloatArray = np.divide(mass, total, out=np.zeros_like(mass), where=total > 0)
    return normalised


def _without_each(law: FloatArray) -> FloatArray:
    """Return ``[H, V]`` for each entry of a law the sum of all others; without cancellation at the largest."""
    others: FloatArray = law.sum(1, keepdims=True) - law
    best, rows = law.argmax(1), np.arange(len(law))
    rest = law.copy()
    rest[rows, best] = 0.0
    others[rows, best] = rest.sum(1)
    return others
