"""What theory says of one position: how often a rule can accept a drawn token."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from specdec.theory.ranges import check_count


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
        num_draws: k >= 1. Without replacement there are fewer candidates if q has fewer ids.
        replacement: whether a drawn id can be drawn again.

    Returns:
        A number in [0, 1], to the solver's precision of about 1e-9.

    Raises:
        ValueError: an argument is no law, the vocabularies differ, or ``num_draws`` is below 1.

    Cost: a linear programme with one variable per set of at most k ids and member of it, O(k V^k): for small V only.
    Source: Sun et al. 2023 (SpecTr, arXiv 2310.15141), optimal transport with membership cost.
    Deviations: stated over sets instead of tuples; whether an id can be accepted depends on the set alone.
    """
    from scipy import optimize, sparse  # heavy: decoding never loads it

    p, q = _check_laws(target_probs, draft_probs)
    check_count("num_draws", num_draws)
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
    check_count("num_draws", num_draws)
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(ratio, kind="stable")
    values = np.cumsum(p[order]) - np.cumsum(q[order]) ** num_draws
    return float(1.0 + min(values.min(), 0.0))


def distinct_pair_optimum(target_probs: ArrayLike, draft_probs: ArrayLike) -> float:
    """Return ``transport_optimum`` of two draws without replacement, min over sets H of p(H) + 1 - Q(H).

    Both candidates fall into H with probability Q(H), the sum over x in H of q(x) (q(H) - q(x)) / (1 - q(x)), and at
    most p(H) of that can be accepted. As for independent draws the minimum lies at an H that holds, for some number of
    ids, those whose p / q is smallest.

    Args:
        target_probs: p, ``[V]``.
        draft_probs: q, ``[V]``; if it has one id, there is one candidate.

    Returns:
        A number in [0, 1].

    Raises:
        ValueError: an argument is no law, or the vocabularies differ.

    Cost: O(V log V), for any vocabulary.
    Source: Hu et al. 2025 (arXiv 2502.18779), subset selection as the dual of the transport problem.
    """
    p, q = _check_laws(target_probs, draft_probs)
    if np.count_nonzero(q) < 2:
        return acceptance(p, q)
    ratio = np.divide(p, q, out=np.full_like(p, np.inf), where=q > 0)
    order = np.argsort(ratio, kind="stable")
    # The likeliest id has its own sum: beside it 1 - q may be all rounding, or 0.
    first, likeliest = q[order], int(q[order].argmax())
    others = np.where(np.arange(len(q)) == likeliest, 0.0, first)
    odds = others / (1 - others)
    pairs = np.cumsum(first) * np.cumsum(odds) - np.cumsum(others * odds)
    pairs[likeliest:] += first[likeliest] * np.cumsum(others)[likeliest:] / others.sum()
    return float(1.0 + min((np.cumsum(p[order]) - pairs).min(), 0.0))
