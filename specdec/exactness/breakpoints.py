"""Whether a compiled judge draws what its own law says: asked at every breakpoint and at its neighbours."""

import numpy as np

from specdec.contracts import FloatArray, IntArray, OpenVerdict

_LARGEST = 1 - 2.0**-53  # of the float64 numbers below 1
_ANY = 0.5
_NEAR = 1e-9  # how far from 1 rounding may bring a sum


def invert(weights: FloatArray, uniforms: FloatArray) -> IntArray:
    """Return the id that each number draws along the running sum of its law.

    It is the first one whose sum exceeds ``uniforms`` times the total, or reaches all of it, should rounding put the
    threshold there.

    Args:
        weights: ``[M, V]``, 0 or more.
        uniforms: ``[M]`` on [0, 1).
    """
    sums = weights.cumsum(1)
    total = sums[:, -1:]
    drawn: IntArray = ((sums > uniforms[:, None] * total) | (sums >= total)).argmax(1)
    return drawn


class Breakpoints:
    """Compare what a compiled judge draws with its own law, for each law once.

    Guarantee: the stop, and the next token after every stop that can be, are asked for at 0, at each breakpoint of the
        running sum, and at the float64 numbers next to it on both sides. So a wrong comparison, sum or end of the
        computation is found at the number where it begins.
    Cost: about ``3 (N + 1) (V + 2)`` verdicts for each law that is new.
    """

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def check(self, verdict: OpenVerdict, stops: FloatArray, following: FloatArray) -> None:
        """Compare the rows ``[B]`` whose law is new.

        Args:
            verdict: of the judge.
            stops: ``[B, N+1]``, its law.
            following: ``[B, N+1, V]``, the law of the next token after each stop.

        Raises:
            AssertionError: a draw differs, or the law is not a law; the message names the rule, the row, the node and
                the numbers.
        """
        new = np.array([row for row in range(len(stops)) if self._is_new(stops[row], following[row])], int)
        if not new.size:
            return
        _check_law(verdict.rule, new, stops, following)
        rows, numbers = _questions(stops[new], following[new])
        rows = new[rows]
        answers = verdict.verify(rows, numbers)
        wanted = invert(stops[rows], numbers[:, 0])
        following_ids = invert(following[rows, wanted], numbers[:, 1])
        for name, column, drawn, right in (("stop", 0, answers[0], wanted), ("next", 1, answers[1], following_ids)):
            for at in (drawn != right).nonzero()[0][:1]:
                law = stops[rows[at]] if name == "stop" else following[rows[at], wanted[at]]
                raise AssertionError(
                    f"rule {verdict.rule!r}, row {rows[at]}, node {wanted[at]}: for the {name} the number "
                    f"{float(numbers[at, column])!r} draws {drawn[at]} from the law {law.tolist()}, which gives "
                    f"{right[at]}; the other number is {float(numbers[at, 1 - column])!r}"
                )

    def _is_new(self, *parts: FloatArray) -> bool:
        key = b"".join(part.tobytes() for part in parts)
        is_new = key not in self._known
        self._known.add(key)
        return is_new


def _check_law(rule: str, rows: IntArray, stops: FloatArray, following: FloatArray) -> None:
    """Raise AssertionError if a row's stops do not sum to 1, or nothing can follow a stop that can be."""
    sums, masses = stops.sum(1), following.sum(2)
    for row in rows:
        is_stop = stops[row] != 0
        if not (abs(sums[row] - 1) < _NEAR and (stops[row] >= 0).all() and (masses[row, is_stop] > 0).all()):
            raise AssertionError(
                f"rule {rule!r}, row {row}, node {is_stop.argmax()}: the compiled judge has no law: its stops are "
                f"{stops[row].tolist()}, and what follows sums to {masses[row].tolist()}"
            )


def _questions(stops: FloatArray, following: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return rows ``[M]`` and numbers ``[M, 2]``: breakpoints of the stop, then those of what follows each stop."""
    row, at_stop = _each(_near_breakpoints(stops))
    some, node = (stops > 0).nonzero()
    sums = stops.cumsum(1)
    within = ((sums - stops / 2) / sums[:, -1:])[some, node]  # a number that draws that stop
    pair, at_next = _each(_near_breakpoints(following[some, node]))
    rows = np.concatenate([row, some[pair]])
    firsts, seconds = np.concatenate([at_stop, within[pair]]), np.concatenate([np.full(len(row), _ANY), at_next])
    return rows, np.stack([firsts, seconds], axis=1)


def _near_breakpoints(weights: FloatArray) -> FloatArray:
    """Return ``[M, 3 (V + 1)]`` numbers on [0, 1): where laws ``[M, V]`` pass to another id, and beside it."""
    sums = np.pad(weights.cumsum(1), ((0, 0), (1, 0)))
    points = sums / sums[:, -1:]
    near = np.concatenate([np.nextafter(points, 0.0), points, np.nextafter(points, 1.0)], axis=1)
    return near.clip(0.0, _LARGEST)


def _each(numbers: FloatArray) -> tuple[IntArray, FloatArray]:
    """Return numbers ``[M, K]`` one after the other, and which of the M rows each is of."""
    return np.arange(len(numbers)).repeat(numbers.shape[1]), numbers.reshape(-1)
