"""Draft the same number of tokens in every step."""

from dataclasses import dataclass
from functools import cached_property

from specdec.contracts import IntArray, constant
from specdec.drafting.lengths.policy import LengthPolicy, LengthSession, check_length
from specdec.theory import check_count, check_flag


@dataclass(frozen=True)
class Fixed(LengthPolicy, LengthSession):
    """Draft ``num_draft_tokens`` in every step, or what the budget leaves of them.

    It remembers nothing, so it is its own session.

    Args:
        num_draft_tokens: 0 is plain decoding.
        with_confidence: have drafts carry confidences, although none is read (for a calibration).

    Raises:
        ValueError: a negative number or a fraction; with_confidence is not a bool.
    """

    num_draft_tokens: int
    with_confidence: bool = False

    def __post_init__(self) -> None:
        check_count("num_draft_tokens", self.num_draft_tokens, 0)
        check_flag("with_confidence", self.with_confidence)

    @cached_property  # asked in every step
    def max_depth(self) -> int:
        """The longest draft ever asked for: ``num_draft_tokens``."""
        return self.num_draft_tokens

    @property
    def reads_confidence(self) -> bool:
        """Whether drafts carry confidences: ``with_confidence``."""
        return self.with_confidence

    def open(self, num_rows: int) -> LengthSession:
        """Return itself."""
        return self

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]``, ``num_draft_tokens`` for each row; nobody can write to it. See ``LengthSession.limits``."""
        return constant(len(rows), self.num_draft_tokens)


def resolve(
    num_draft_tokens: int | None, length: LengthPolicy | None, default: int, has_laws: bool = True
) -> LengthPolicy:
    """Return the length policy that a source's two arguments ask for.

    Args:
        num_draft_tokens: shorthand for ``Fixed``.
        length: a policy.
        default: tokens to draft if neither is given.
        has_laws: whether tokens are drafted from laws; a lookup has none.

    Raises:
        ValueError: both are given, a length that is not a policy or lacks a part of one, or one that reads entropies
            of what has no laws.
    """
    if length is None:
        return Fixed(default if num_draft_tokens is None else num_draft_tokens)
    if num_draft_tokens is not None:
        raise ValueError("give num_draft_tokens or length, not both (num_draft_tokens=k is length=Fixed(k))")
    check_length(length)
    if not has_laws and length.reads_entropy:
        raise ValueError("length reads entropies, but a lookup has no laws: use Fixed, Heuristic or Threshold")
    return length
