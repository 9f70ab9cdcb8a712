"""How fast a machine can be: by what it reads, or by what it computes; and what speculation gains with its passes."""

from dataclasses import dataclass

from specdec.theory import WidthCurve, expected_tokens, predicted_speedup
from specdec.theory.limits.passes import ModelShape, PassCost, pass_cost
from specdec.theory.ranges import check_count, check_finite, check_positive

_WIDEST = 2**20


@dataclass(frozen=True)
class Roofline:
    """A machine that reads and computes at the same time, each at a measured rate.

    Args:
        bytes_per_second: that it reads.
        flops_per_second: that it computes, in the dtype of the arithmetic.

    Raises:
        ValueError: a rate that is not finite and above 0.

    Source: Williams, Waterman, Patterson 2009, "Roofline: an insightful visual performance model".
    """

    bytes_per_second: float
    flops_per_second: float

    def __post_init__(self) -> None:
        check_positive("bytes_per_second", self.bytes_per_second)
        check_positive("flops_per_second", self.flops_per_second)

    @property
    def ridge(self) -> float:
        """Return the arithmetic intensity, FLOPs a byte, at which reading and computing take the same time."""
        return self.flops_per_second / self.bytes_per_second

    def attainable(self, intensity: float) -> float:
        """Return the most FLOP/s at an arithmetic intensity: the roof."""
        return min(self.flops_per_second, intensity * self.bytes_per_second)

    def seconds(self, cost: PassCost) -> float:
        """Return the least time of a pass: max(bytes / bytes_per_second, flops / flops_per_second)."""
        return max(cost.bytes / self.bytes_per_second, cost.flops / self.flops_per_second)

    def is_memory_bound(self, cost: PassCost) -> bool:
        """Tell whether reading takes longer than computing."""
        return cost.intensity < self.ridge

    def share(self, cost: PassCost, seconds: float) -> float:
        """Return the share of the roofline that a pass of ``seconds`` reached: the least time over its own.

        Raises:
            ValueError: ``seconds`` is not finite and above 0.
        """
        check_positive("seconds", seconds)
        return self.seconds(cost) / seconds


def break_even_width(roofline: Roofline, shape: ModelShape, batch: int = 1, context: int = 0) -> int | None:
    """Return the least width at which a pass computes as long as it reads; below it, more nodes cost nothing.

    Args:
        roofline: of the machine.
        shape: of the model.
        batch: rows, >= 1.
        context: tokens of each row that the cache holds, >= 0.

    Returns:
        Nodes a row; 1 if a pass of one node is bound by computing already; None if no width up to 2^20 is.

    Raises:
        ValueError: an argument is out of its range.

    Guarantee: the intensity never falls as the width grows, because each node sees as much as the one before it, or
        more; so there is one such width.
    Cost: O(log width).
    """

    def reads_longer(width: int) -> bool:
        return roofline.is_memory_bound(pass_cost(shape, batch, width, context))

    low, high = 0, 1
    while reads_longer(high):
        if high >= _WIDEST:
            return None
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if reads_longer(middle) else (low, middle)
    return high


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
        width_cost: v(n), time of a pass of n nodes over that of one.
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
