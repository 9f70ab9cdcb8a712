"""What speculation gains with passes of known times."""

from dataclasses import dataclass

from specdec.theory import WidthCurve, expected_tokens, predicted_speedup
from specdec.theory.ranges import check_count, check_finite


@dataclass(frozen=True)
class BestLength:
    """The draft length that pays best.

    Attributes:
        length: draft tokens a step, k; 0 if none pays.
        tokens: expected a step.
        gain: speed-up over plain decoding, >= 1.
    """

    length: int
    tokens: float
    gain: float


def best_draft_length(alpha: float, width_cost: WidthCurve, draft_cost: float, longest: int) -> BestLength:
    """Return the k in [0, longest] with the largest gain, expected_tokens(alpha, k) / (v(k + 1) + k draft_cost).

    Args:
        alpha: acceptance rate in [0, 1], equal and independent at every position.
        width_cost: v, time of a pass of so many nodes over that of one.
        draft_cost: time of drafting one token over that of a pass of one node, >= 0.
        longest: draft length, >= 0.

    Returns:
        The shortest of the best.

    Raises:
        ValueError: an argument is out of its range.

    Cost: O(longest^2).
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 3.5, with a pass that costs more if it is wider.
    """
    check_count("longest", longest, least=0)
    check_finite("draft_cost", draft_cost)
    found = []
    for length in range(longest + 1):
        tokens = expected_tokens(alpha, length)
        gain = predicted_speedup(tokens, width_cost(length + 1), length * draft_cost)
        found.append(BestLength(length, tokens, gain))
    return max(found, key=lambda best: best.gain)
