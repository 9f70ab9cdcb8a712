"""What a length policy is, and how a source asks one."""

from abc import abstractmethod
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from specdec.contracts import BoolArray, Budget, FloatArray, IntArray, Offers, check_kind
from specdec.theory import Calibration, check_count


class LengthSession(Protocol):
    """A policy at work on one run; what it remembers is per row and goes when a new request takes the row.

    A class that names this one as its base need only write ``limits``.
    """

    @cached_property
    def policy(self) -> "LengthPolicy":
        """Whose session this is; a policy that remembers nothing may be its own, others set it when they open one.

        Raises:
            ValueError: it was not set.
        """
        own: Any = self
        if not hasattr(own, "max_depth"):
            raise ValueError(f"length: a session of type {type(own).__name__} has no policy: set its attribute policy")
        policy: LengthPolicy = own
        return policy

    def begin(self, rows: IntArray) -> None:
        """Forget what slots ``rows`` ``[B]`` held: new requests take them."""
        return

    @abstractmethod
    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens each row may draft in this step; 0 skips the row. Nobody writes to the answer.

        They are integers, none above the policy's ``max_depth``.

        Args:
            rows: ``[B]`` slots.
            num_committed: ``[B]`` ids that stand. Its growth since the last call tells how the last draft fared.
        """
        ...

    def draws(self, rows: IntArray, entropy: FloatArray) -> BoolArray:
        """Return ``[B]`` bool: whether each row draws another token; asked if the policy reads entropies.

        Args:
            rows: ``[B]`` slots.
            entropy: ``[B]`` in nats, of the law that the token would be drawn from; copy what you keep.
        """
        return np.ones(len(rows), dtype=np.bool_)

    def continues(self, rows: IntArray, confidence: FloatArray) -> BoolArray:
        """Return ``[B]`` bool: whether each row drafts another token after those it has.

        Asked once a depth, from depth 1 on, if the policy reads confidences. Rows that ended before are among
        them; the answers for these are not used.

        Args:
            rows: ``[B]`` slots.
            confidence: ``[B, D]`` of the tokens drafted so far, all of which are kept; copy what you keep or change.
        """
        return np.ones(len(rows), dtype=np.bool_)

    def note_counts(self, rows: IntArray, counts: IntArray) -> None:
        """Learn that each row drafted ``counts`` ``[B]`` tokens; a call of ``limits`` without it drafted none."""
        return


class LengthPolicy(Protocol):
    """A way of choosing draft lengths; ``open`` starts a run.

    A class that names this one as its base need only write ``max_depth`` and ``open``.
    """

    @property
    @abstractmethod
    def max_depth(self) -> int:
        """The longest draft ever asked for."""

    @property
    def reads_confidence(self) -> bool:
        """Whether ``continues`` is to be asked; if not, sources need not compute confidences."""
        return False

    @property
    def reads_entropy(self) -> bool:
        """Whether ``draws`` is to be asked; if not, sources need not compute entropies."""
        return False

    @property
    def adaptive(self) -> bool:
        """Whether lengths depend on how the request's earlier drafts fared, and not on this draft alone."""
        return False

    def next_limits(self, limits: IntArray, drafted: IntArray, accepted: IntArray) -> IntArray | None:
        """Return ``[B]`` the limits of the steps that follow some others, if nothing else decides them.

        Replays of sampled runs need it (``specdec/traces/expecting.py``): an expectation over the steps of a run has to
        know all that a policy remembers of them. None, which is the default: it remembers more.

        Args:
            limits: ``[B]`` what the session's ``limits`` was for the steps.
            drafted: ``[B]`` tokens of them; a budget may have left fewer than the limits.
            accepted: ``[B]`` how many of these stand.
        """
        return None

    @property
    def calibration(self) -> Calibration | None:
        """The measured figures that lengths depend on; they are stored in the result."""
        return None

    @abstractmethod
    def open(self, num_rows: int) -> LengthSession:
        """Return a session for a run of ``num_rows`` slots; if that is another object, this is its ``policy``."""


_POLICY_PARTS = ("max_depth", "reads_confidence", "reads_entropy", "adaptive", "next_limits", "calibration", "open")
_SESSION_PARTS = ("policy", "begin", "limits", "note_counts")
_ASKED_IF = {"draws": "reads_entropy", "continues": "reads_confidence"}  # by what flag of the policy


def check_length(length: "LengthPolicy") -> None:
    """Raise ValueError if an argument ``length`` is no length policy, or lacks a part of one."""
    check_kind(length, "length", "a length policy", _POLICY_PARTS, "Fixed(4), or derive it from LengthPolicy")
    check_count(f"length: max_depth of {type(length).__name__}", length.max_depth, 0)


def open_length(length: LengthPolicy, num_rows: int) -> LengthSession:
    """Return a policy's session for a run of ``num_rows`` slots; every source opens its policy here.

    Raises:
        ValueError: what the policy opens lacks a part of a session, does not say whose it is, or has an answer that
            nobody would ask for.
    """
    session, name = length.open(num_rows), type(length).__name__
    asked = [method for method, flag in _ASKED_IF.items() if getattr(length, flag)]
    argument, example = f"length: what {name}.open returns", "an instance of a class derived from LengthSession"
    check_kind(session, argument, "a session", (*_SESSION_PARTS, *asked), example)
    policy = session.policy
    for method, flag in _ASKED_IF.items():
        own = getattr(type(session), method, None)
        if not getattr(policy, flag) and own not in (None, getattr(LengthSession, method)):
            raise ValueError(
                f"length: {type(session).__name__} defines {method}, but {flag} of {name} is False, so that nobody "
                f"would ask it: set {flag} = True, or leave {method} out"
            )
    return session


def chain_offers(length: LengthPolicy, laws: bool = False) -> Offers:
    """Return the offers of a source of chains with a policy's lengths; ``laws``: tokens are drawn from real laws."""
    return Offers(
        laws=laws,
        confidence=length.reads_confidence,
        adaptive=length.adaptive,
        calibration=length.calibration,
        max_depth=length.max_depth,
        max_nodes=length.max_depth,
    )


def depth_limits(length: LengthSession, rows: IntArray, num_committed: IntArray, budget: Budget) -> IntArray:
    """Return ``[B]`` how deep a chain may go in each row: the policy's limit within the budget.

    Raises:
        ValueError: the policy's answer is not ``[B]`` integers up to its ``max_depth``.
    """
    own, longest = length.limits(rows, num_committed), length.policy.max_depth
    if (
        not isinstance(own, np.ndarray)
        or own.dtype.kind != "i"
        or own.shape != rows.shape
        or max(own.tolist(), default=0) > longest
    ):
        what = f"limits returns [B] integers, none above max_depth={longest}"
        raise ValueError(_unfit(length, own, rows, what))
    allowed = np.minimum(budget.max_depth, budget.max_nodes)
    limits: IntArray = np.maximum(np.minimum(own, allowed), 0)
    return limits


def cut_limits(length: LengthSession, limits: IntArray, depth: int | IntArray, goes_on: BoolArray) -> IntArray:
    """Return ``limits`` ``[B]``, cut to ``depth`` (or ``[B]`` depths) in the rows that do not go on (``[B]`` bool).

    Raises:
        ValueError: what the policy answered is not ``[B]`` bool.
    """
    if not isinstance(goes_on, np.ndarray) or goes_on.dtype != np.bool_ or goes_on.shape != limits.shape:
        what = "draws and continues get arrays of numpy and return [B] bool"
        raise ValueError(_unfit(length, goes_on, limits, what))
    return np.where(goes_on, limits, np.minimum(limits, depth))


def _unfit(length: LengthSession, answer: object, rows: IntArray, what: str) -> str:
    """Return what is wrong with a policy's answer for ``rows`` ``[B]``; ``what``: it was to be."""
    said = repr(answer)
    if isinstance(answer, np.ndarray) and answer.size > 8:
        said = f"an array {answer.shape} of {answer.dtype}"
    return f"length: {type(length.policy).__name__} answered {said} where {len(rows)} rows were asked: {what}"


def kept_counts(length: LengthSession, rows: IntArray, confidence: FloatArray, counts: IntArray) -> IntArray:
    """Return how many of some deterministic candidates a policy keeps; only such may be dropped once they are made.

    (``StepInfo.shortened`` is another thing: there the budget was short.)

    Args:
        length: the policy's session.
        rows: ``[B]`` slots.
        confidence: ``[B, N]`` of all candidates.
        counts: ``[B]`` candidates.

    Cost: the policy is asked once for each further candidate.
    """
    for depth in range(1, int(counts.max(initial=0))):
        counts = cut_limits(length, counts, depth, length.continues(rows, confidence[:, :depth]))
        if counts.max(initial=0) <= depth:
            break
    return counts
