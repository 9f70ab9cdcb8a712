"""What theory predicts: tokens per step, speed-up, operations, and the best draft length.

Symbols: alpha, the probability that a draft token is accepted given that it is reached; gamma, the draft length; c, the
time of drafting one token over T, the time of a target pass of one node.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import optimize, sparse

from specdec.shapes import Chain, Kary, Paths


def _check_alpha(alpha: float) -> None:
    if not 0.0 <= alpha <= 1.0:
        raise ValueError(f"alpha is a probability: expected a number in [0, 1], got {alpha!r}")


def _is_count(value: float, least: int) -> bool:
    return math.isfinite(value) and value == int(value) and value >= least


def _check_gamma(gamma: int) -> None:
    if not _is_count(gamma, 0):
        raise ValueError(f"gamma is a draft length: expected an integer >= 0, got {gamma!r}")


def _check_cost(name: str, cost: float) -> None:
    if not (cost >= 0.0 and math.isfinite(cost)):
        raise ValueError(f"{name} is a ratio of times: expected a finite number >= 0, got {cost!r}")


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
    _check_alpha(alpha)
    _check_gamma(gamma)
    return float(sum(alpha**i for i in range(int(gamma) + 1)))


def walltime_improvement(alpha: float, gamma: int, c: float) -> float:
    """Return the expected speed-up over plain decoding, expected_tokens(alpha, gamma) / (gamma c + 1).

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens per step, >= 0.
        c: time of drafting one token over the time of a target pass, >= 0.

    Returns:
        A factor; below 1 where speculation loses.

    Raises:
        ValueError: an argument is out of its range.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), theorem 3.8; the target's pass is taken to cost the same at every
    width (``predicted_speedup`` does not).
    """
    _check_cost("c", c)
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
    _check_cost("c_hat", c_hat)
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
    _check_alpha(alpha)
    _check_cost("c", c)
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
    """Return the expected tokens per step of each row where a batch keeps only what all of its rows accepted.

    All rows accept i tokens with probability alpha^(i batch), so this is expected_tokens(alpha^batch, gamma). A ragged
    batch, as here, emits expected_tokens(alpha, gamma) in every row.

    Args:
        alpha: acceptance rate in [0, 1].
        gamma: draft tokens per step, >= 0.
        batch: rows, >= 1.

    Raises:
        ValueError: an argument is out of its range.
    """
    _check_alpha(alpha)
    if not _is_count(batch, 1):
        raise ValueError(f"batch is a number of rows: expected an integer >= 1, got {batch!r}")
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
    for name, value in (("block_efficiency", block_efficiency), ("width_cost", width_cost)):
        if not (value > 0.0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a finite number > 0, got {value!r}")
    _check_cost("propose_cost", propose_cost)
    _check_cost("other_cost", other_cost)
    return block_efficiency / (width_cost + propose_cost + other_cost)


def acceptance_of_ranks(acceptance_by_rank: Sequence[float]) -> NDArray[np.float64]:
    """Return P(the k-th child of an accepted node is accepted) = a(k) times the product of 1 - a(j) over j < k.

    Args:
        acceptance_by_rank: ``[K]`` a(k) in [0, 1], each given that the earlier siblings were rejected.

    Raises:
        ValueError: an entry is no probability.
    """
    rates = np.asarray(acceptance_by_rank, dtype=np.float64)
    if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"acceptance_by_rank must be a list of probabilities, rank 1 first; got {acceptance_by_rank!r}"
        )
    reached: NDArray[np.float64] = rates * np.concatenate([[1.0], np.cumprod(1.0 - rates)[:-1]])[: len(rates)]
    return reached


def expected_tree_tokens(shape: Paths | Chain | Kary, acceptance_by_rank: Sequence[float]) -> float:
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
    if shape.ranks.max(initial=-1) >= len(reach):
        raise ValueError(
            f"{shape} has children of rank {shape.ranks.max() + 1}; acceptance_by_rank ends at {len(reach)}"
        )
    return 1.0 + float(sum(reach[list(path)].prod() for path in shape.paths))


def _check_laws(target_probs: ArrayLike, draft_probs: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    p, q = np.asarray(target_probs, dtype=np.float64), np.asarray(draft_probs, dtype=np.float64)
    for name, law in (("target_probs", p), ("draft_probs", q)):
        if law.ndim != 1 or law.shape != p.shape or (law < 0).any() or not math.isclose(law.sum(), 1.0, abs_tol=1e-9):
            raise ValueError(f"{name} must be a law over one common vocabulary: [V], non-negative, sum 1; got {law!r}")
    return p, q


def acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return the probability that the standard rule accepts a drawn token, sum of min(p, q).

    Args:
        target_probs: p, ``[V]``.
        draft_probs: q, ``[V]``.

    Raises:
        ValueError: an argument is no law, or the vocabularies differ.

    Source: Leviathan et al. 2023 (arXiv 2211.17192), corollary 3.6.
    """
    p, q = _check_laws(target_probs, draft_probs)
    return float(np.minimum(p, q).sum())


def coupled_acceptance(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return the probability that coupled draws agree, sum over x of 1 / (sum over y of max(p(y)/p(x), q(y)/q(x))).

    Args:
        target_probs: p, ``[V]``; x runs over the ids that both laws can draw.
        draft_probs: q, ``[V]``.

    Raises:
        ValueError: an argument is no law, or the vocabularies differ.

    Cost: O(V^2) time and memory.
    Source: Daliri, Musco, Suresh 2024 (arXiv 2408.07978), Gumbel coupling.
    """
    p, q = _check_laws(target_probs, draft_probs)
    both = (p > 0) & (q > 0)
    # [X, V]: one row per id x that both can draw, one column per rival y.
    rivals = np.maximum(p[None, :] / p[both, None], q[None, :] / q[both, None])
    return float((1.0 / rivals.sum(axis=1)).sum())


def _check_draws(num_draws: int) -> None:
    if not _is_count(num_draws, 1):
        raise ValueError(f"num_draws is a number of candidates: expected an integer >= 1, got {num_draws!r}")


def transport_optimum(
    target_probs: ArrayLike, draft_probs: ArrayLike, num_draws: int, *, replacement: bool = True
) -> float:
    """Return the best acceptance at one position that any lossless rule can reach with these candidates.

    With P(S) the probability that the candidates are the set S, it is the largest mass that can be sent from sets to
    ids in them: the maximum of the sum of m(S, x) over x in S, where m >= 0, sum over x of m(S, x) <= P(S) and sum over
    S of m(S, x) <= p(x).

    Args:
        target_probs: p, ``[V]``.
        draft_probs: q, ``[V]``; the candidates are drawn from it.
        num_draws: k >= 1. Without replacement there are fewer candidates where q has fewer ids.
        replacement: whether a drawn id can be drawn again.

    Returns:
        A number in [0, 1], to the solver's precision of about 1e-9.

    Raises:
        ValueError: an argument is no law, the vocabularies differ, or ``num_draws`` is below 1.

    Cost: a linear programme with one variable per set of at most k ids and member of it, O(k V^k): for small V only.
    Source: Sun et al. 2023 (SpecTr, arXiv 2310.15141), optimal transport with membership cost.
    Deviations: stated over sets instead of tuples; whether an id can be accepted depends on the set alone.
    """
    p, q = _check_laws(target_probs, draft_probs)
    _check_draws(num_draws)
    sets = _candidate_sets(q, num_draws, replacement)
    members = [(row, token) for row, ids in enumerate(sets) for token in sorted(ids)]
    rows, tokens = np.array(members).T
    columns, ones = np.arange(len(members)), np.ones(len(members))
    limits = [
        sparse.coo_array((ones, (rows, columns)), shape=(len(sets), len(members))),
        sparse.coo_array((ones, (tokens, columns)), shape=(len(p), len(members))),
    ]
    matrix: Any = sparse.vstack(limits, format="csr")  # The solver's type stubs know dense ones only.
    solved = optimize.linprog(-ones, A_ub=matrix, b_ub=np.append(list(sets.values()), p), method="highs")
    if not solved.success or solved.fun is None:
        raise ArithmeticError(f"the linear programme of {len(members)} variables was not solved: {solved.message}")
    return float(-solved.fun)


def _candidate_sets(q: np.ndarray, num_draws: int, replacement: bool) -> dict[frozenset[int], float]:
    """Return the probability of each set of ids that the draws can make."""
    sets = {frozenset[int](): 1.0}
    for _ in range(num_draws):
        drawn: dict[frozenset[int], float] = {}
        for ids, mass in sets.items():
            law = q if replacement else np.where(np.isin(np.arange(len(q)), list(ids)), 0.0, q)
            # An exhausted law adds no candidate.
            if not law.any():
                drawn[ids] = drawn.get(ids, 0.0) + mass
            for token in np.flatnonzero(law).tolist():
                more = ids | {token}
                drawn[more] = drawn.get(more, 0.0) + mass * float(law[token] / law.sum())
        sets = drawn
    return sets


def independent_draws_optimum(target_probs: ArrayLike, draft_probs: ArrayLike, num_draws: int) -> float:
    """Return ``transport_optimum`` of k independent draws, min over sets H of ids of p(H) + 1 - q(H)^k.

    All candidates fall into H with probability q(H)^k, and at most p(H) of that can be accepted. p(H) - q(H)^k is
    concave in the two sums, so its minimum lies at a corner of their range: at an H that holds, for some number of ids,
    those whose p / q is smallest.

    Args:
        target_probs: p, ``[V]``.
        draft_probs: q, ``[V]``.
        num_draws: k >= 1; for k = 1 the value is ``acceptance(p, q)``.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: an argument is no law, the vocabularies differ, or ``num_draws`` is below 1.

    Cost: O(V log V), for any vocabulary.
    Source: Hu et al. 2025 (arXiv 2502.18779), subset selection as the dual of the transport problem.
    """
    p, q = _check_laws(target_probs, draft_probs)
    _check_draws(num_draws)
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(ratio, kind="stable")
    values = np.cumsum(p[order]) - np.cumsum(q[order]) ** num_draws
    return float(1.0 + min(values.min(), 0.0))
