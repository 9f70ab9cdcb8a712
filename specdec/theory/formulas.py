"""What theory predicts of chains and trees: tokens per step, speed-up, operations, the best draft length."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from specdec.theory.ranges import check_count, check_finite, check_positive, check_share


def expected_tokens(alpha: float, gamma: int) -> float:
    """Return the expected tokens per step of a chain, (1 - alpha^(gamma+1)) / (1 - alpha) = sum of alpha^i, i <= gamma.

    Args:
        alpha: acceptance rate in [0, 1], equal and independent at every position.
        gamma: draft tokens per step, >= 0.

    Returns:
        A number in [1, gamma + 1]; the recovered or bonus token is counted.

    Raises:
        ValueError: an argument is out of its range.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), eq. 1.
    """
    check_share("alpha", alpha)
    check_count("gamma", gamma, 0)
    return float(sum(alpha**i for i in range(gamma + 1)))


def walltime_improvement(alpha: float, gamma: int, c: float) -> float:
    """Return the expected speed-up over plain decoding, expected_tokens(alpha, gamma) / (gamma c + 1).

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens per step, >= 0.
        c: time of drafting one token over the time of a target pass, >= 0.

    Returns:
        A factor; below 1 if speculation loses.

    Raises:
        ValueError: an argument is out of its range.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8; the target's pass is taken to cost the same at every
    width (``predicted_speedup`` does not).
    """
    check_finite("c", c)
    return expected_tokens(alpha, gamma) / (gamma * c + 1.0)


def operations_factor(alpha: float, gamma: int, c_hat: float) -> float:
    """Return the growth of arithmetic work per token, (gamma c_hat + gamma + 1) / expected_tokens(alpha, gamma).

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens per step, >= 0.
        c_hat: operations per token of the draft over those of the target, >= 0.

    Returns:
        A factor >= 1 for c_hat >= 0; 1 for gamma = 0.

    Raises:
        ValueError: an argument is out of its range.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.11.
    """
    check_finite("c_hat", c_hat)
    return (gamma * c_hat + gamma + 1.0) / expected_tokens(alpha, gamma)


def optimal_gamma(alpha: float, c: float) -> int:
    """Return the draft length with the largest ``walltime_improvement``; 0 when none helps (c >= alpha).

    With S = expected_tokens(alpha, gamma), one more token helps exactly while alpha^(gamma+1) (gamma c + 1) > c S; the
    left side over the right falls with gamma, so the first gamma at which this fails is the best one.

    Args:
        alpha: acceptance rate in [0, 1].
        c: time of drafting one token over the time of a target pass, >= 0.

    Returns:
        The smallest best draft length.

    Raises:
        ValueError: an argument is out of its range, or every longer draft is better (free drafting with alpha > 0, or
            alpha = 1 with c < 1).

    Cost: O(gamma).
    Source: Leviathan et al. 2023 (arXiv 2211.17192), section 3.5.
    """
    check_share("alpha", alpha)
    check_finite("c", c)
    if alpha <= c:
        return 0
    if c == 0.0 or alpha == 1.0:
        raise ValueError(f"no draft length is best at alpha={alpha!r}, c={c!r}: each longer one is faster; give c > 0")
    gamma, tokens, power = 0, 1.0, alpha
    while power * (gamma * c + 1.0) > c * tokens:
        gamma += 1
        tokens += power
        power *= alpha
    return gamma


def lockstep_expected_tokens(alpha: float, gamma: int, batch: int) -> float:
    """Return the expected tokens per step of each row if a batch keeps only what all of its rows accepted.

    All rows accept i tokens with probability alpha^(i batch), so this is expected_tokens(alpha^batch, gamma). A ragged
    batch, as here, emits expected_tokens(alpha, gamma) in every row.

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens per step, >= 0.
        batch: rows, >= 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    check_share("alpha", alpha)
    check_count("batch", batch)
    return expected_tokens(alpha**batch, gamma)


def predicted_speedup(
    block_efficiency: float, width_cost: float, propose_cost: float = 0.0, other_cost: float = 0.0
) -> float:
    """Return the predicted speed-up of decoding, tau / (v + propose / T + other / T).

    Args:
        block_efficiency: tau, tokens emitted per step, measured or from ``expected_tokens``; > 0.
        width_cost: v, time of a scoring pass of a step's nodes over T; > 0.
        propose_cost: time of drafting per step over T, >= 0 (gamma c for a chain of fixed length).
        other_cost: everything else per step (verdict, commit, bookkeeping) over T, >= 0.

    Returns:
        A factor over plain decoding at T per token. With v = 1 and other_cost = 0 it is ``walltime_improvement``.

    Raises:
        ValueError: an argument is out of its range.
    """
    check_positive("block_efficiency", block_efficiency)
    check_positive("width_cost", width_cost)
    check_finite("propose_cost", propose_cost)
    check_finite("other_cost", other_cost)
    return block_efficiency / (width_cost + propose_cost + other_cost)


class ListedTree(Protocol):
    """A tree that is known beforehand: ``specdec.Chain``, ``Kary`` or ``Paths``."""

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Every node, as the ranks of the siblings on its path."""


RankRates = Sequence[float] | Mapping[int, float | None]


def acceptance_of_ranks(acceptance_by_rank: RankRates) -> NDArray[np.float64]:
    """Return P(the k-th child of an accepted node is accepted) = a(k) times the product of 1 - a(j) over j < k.

    Args:
        acceptance_by_rank: ``[K]`` a(k) in [0, 1], each given that the earlier siblings were rejected. A list begins
            with rank 1; a mapping, such as ``Stats.acceptance_by_rank``, has the ranks from 1 on as its keys, and None,
            which is 0 here, for a rank that was never tried.

    Raises:
        ValueError: an entry is no probability, or a mapping lacks a rank.
    """
    given = acceptance_by_rank
    if isinstance(given, Mapping):
        given = [given.get(rank, np.nan) or 0.0 for rank in range(1, len(given) + 1)]
    try:
        rates = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        rates = np.array(np.nan)
    if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            "acceptance_by_rank must be a list of probabilities, rank 1 first, or Stats.acceptance_by_rank, whose keys "
            f"are the ranks from 1 on; got {acceptance_by_rank!r}"
        )
    reached: NDArray[np.float64] = rates * np.concatenate([[1.0], np.cumprod(1.0 - rates)[:-1]])[: len(rates)]
    return reached


def expected_tree_tokens(shape: ListedTree, acceptance_by_rank: RankRates) -> float:
    """Return the expected tokens per step of a static tree: 1 + the sum over nodes of P(its path is accepted).

    Args:
        shape: the tree.
        acceptance_by_rank: see ``acceptance_of_ranks``; as long as the widest node has children. A chain's is [alpha].

    Returns:
        A number in [1, depth + 1]; the recovered or bonus token is counted.

    Raises:
        ValueError: an entry is no probability, or a rank of the tree has none.

    Source: Chen et al. 2024 (Sequoia, arXiv 2402.12374), which assumes that acceptance depends on the rank alone.
    """
    reach = acceptance_of_ranks(acceptance_by_rank)
    widest = max((path[-1] for path in shape.paths), default=-1)
    if widest >= len(reach):
        raise ValueError(f"{shape} has children of rank {widest + 1}; acceptance_by_rank ends at {len(reach)}")
    return 1.0 + float(sum(reach[list(path)].prod() for path in shape.paths))
