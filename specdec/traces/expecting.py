"""What a run with drawn drafts would have done on its way to a given output, in expectation.

Let a sampled run that is not coupled have written the output y. A step begins somewhere on y and drafts from laws q.
What it accepted, given y, follows from p and q of y's own tokens. Under the standard rule a token is drafted and
accepted with probability min(p, q), and drawn after a rejection with max(p - q, 0), which adds up to p. So the next
token of y, if the step reaches it, was drafted and accepted with probability min(p, q) / p; among siblings it was
accepted as the one of each rank with a probability that the record has (``specdec/traces/siblings.py``). The step's
block ends with the first token that was not accepted, or with the bonus token at a leaf. Every step draws anew, so
where steps begin is a Markov chain along y, and the expected number of steps is a sum over positions.

The tokens that a step accepted are y's own. So a policy that reads confidences and entropies lets a draft go on along y
by those of y's tokens. What it drafts after a rejected token depends on tokens that are not in y.
"""

from collections.abc import Sequence

import numpy as np

from specdec.contracts import FloatArray, IntArray
from specdec.drafting.lengths import LengthPolicy, open_length
from specdec.traces.dense import DenseRecords, Path_
from specdec.traces.output_laws import ACCEPTED
from specdec.traces.policy_replays import cut

# A row for each position of the outputs: ``request``, ``num_committed``, the ``probability`` that a step begins there,
# and given that it does ``num_accepted`` and ``num_emitted``, expected.
Columns = dict[str, IntArray | FloatArray]


def expectations_by_length(records: DenseRecords, length: LengthPolicy) -> Columns:
    """Return the steps of runs with a length policy, with ``num_drafted`` unless confidences or entropies decide it.

    Args:
        records: with ``p`` and ``q``, of chains.
        length: one that does not adapt, or that goes by ``next_limits``.

    Raises:
        ValueError: the policy decides by what the output does not tell.

    Cost: O(P N) for P positions and drafts of N tokens; for a policy that adapts O(P N^2).
    """
    if length.adaptive:
        return _with_feedback(records, length)
    at = np.arange(len(records.counts))
    session = open_length(length, len(at))
    session.begin(at)
    limits = cut(session, at, records.num_committed, records.counts, *_of_outputs(records))
    within = np.arange(records.tokens.shape[1]) < limits[:, None]
    found = _walk(records, np.where(within, _ahead(records, _stands(records)), 0.0).cumprod(1)[None])
    if not (length.reads_confidence or length.reads_entropy):
        found["num_drafted"] = limits
    return found


def expectations_by_shape(records: DenseRecords, paths: Sequence[Path_]) -> tuple[Columns, float]:
    """Return the steps of runs whose trees have some nodes of the recorded ones, with what is planned.

    Args:
        records: with ``p`` and ``q``.
        paths: of the nodes.

    Returns:
        The steps, and the standard error of the sum of their probabilities; 0: these are exact.

    Cost: O(P N) for P positions and trees of N nodes, ten times that if the record holds estimates.
    """
    estimates = _stands(records)[:, None, None] if records.by_rank is None else records.by_rank
    depths = _depths(records)
    found = _walk(records, _reach_probabilities(records, estimates.mean(1), depths, paths)[None])
    planned = np.array([sum(len(path) <= depth for path in paths) for depth in range(depths.max(initial=0) + 1)])
    found["num_planned" if records.by_rank is not None else "num_drafted"] = planned[depths]
    count = estimates.shape[1]
    if count == 1:
        return found, 0.0
    reached = np.stack([_reach_probabilities(records, estimates[:, one], depths, paths) for one in range(count)])
    sums = [_walk(records, one[None])["probability"].sum() for one in reached]
    return found, float(np.std(sums, ddof=1) / count**0.5)


def _with_feedback(records: DenseRecords, length: LengthPolicy) -> Columns:
    """Return the steps of runs whose policy goes from one limit to the next by how the draft fared."""
    if length.reads_confidence or length.reads_entropy:
        raise ValueError(
            "length adapts to how many tokens were drafted, and decides that by confidences or entropies: after a "
            "rejected token they are those of tokens that the output does not have, which are left to chance: give a "
            "policy that does not adapt or does not read them, or record with rule='coupled'"
        )
    limits, depths = np.arange(length.max_depth + 1), np.arange(records.tokens.shape[1])
    if length.next_limits(limits, limits, limits) is None:
        raise ValueError(
            "length adapts, and does not say how its next limit follows from the last one and the fate of that draft: "
            "give it next_limits, or record with rule='coupled'"
        )
    session, rows = open_length(length, len(records.outputs)), np.arange(len(records.outputs))
    session.begin(rows)
    first = session.limits(rows, records.prompt_lengths)
    drafted = np.minimum(limits[:, None], records.counts)  # [C, P]
    ahead = _ahead(records, _stands(records))
    reached = np.where(depths < drafted[:, :, None], ahead, 0.0).cumprod(2)
    shape = (*drafted.shape, len(depths) + 1)
    accepted = np.minimum(np.arange(shape[2]), drafted[:, :, None])
    fates = (np.broadcast_to(of, shape).reshape(-1) for of in (limits[:, None, None], drafted[:, :, None], accepted))
    onward = length.next_limits(*fates)
    assert onward is not None
    if ((known := np.append(first, onward)) < 0).any() or (known > length.max_depth).any():
        raise ValueError(
            f"length adapts, and its limits go from {known.min()} to {known.max()}: let limits and next_limits stay "
            f"within 0 and max_depth={length.max_depth}, or record with rule='coupled'"
        )
    return _walk(records, reached, onward.reshape(shape), first, drafted)


def _walk(
    records: DenseRecords,
    reached: FloatArray,
    onward: IntArray | None = None,
    first: IntArray | None = None,
    drafted: IntArray | None = None,
) -> Columns:
    """Return the columns of steps that follow one another along the outputs, in one of C courses each.

    Args:
        reached: ``[C, P, D]`` how likely a step accepts at least 1, 2, ... tokens of the output.
        onward: ``[C, P, D + 1]`` the course of the step after one that accepted that many; None: there is one course.
        first: ``[R]`` the courses of the requests' first steps; None: 0.
        drafted: ``[C, P]`` tokens of a step, for the column ``num_drafted``; None: no column.
    """
    request = records.requests
    left = records.starts[request + 1] - np.arange(len(request))
    ends = -np.diff(reached, axis=2, prepend=1, append=0)
    begins = _begins(records, ends, left, onward, np.zeros_like(records.prompt_lengths) if first is None else first)
    probability = begins.sum(0)
    # Where no step begins there is nothing to expect.
    share = np.divide(begins, probability, out=np.zeros_like(begins), where=probability > 0)
    emitted = (ends * np.minimum(np.arange(ends.shape[2]) + 1, left[:, None])).sum(2)
    columns: Columns = {"request": request, "num_committed": records.num_committed}
    columns |= {"probability": probability, "num_accepted": (share * reached.sum(2)).sum(0)}
    columns |= {"num_emitted": (share * emitted).sum(0)}
    return columns if drafted is None else {**columns, "num_drafted": (share * drafted).sum(0)}


def _begins(
    records: DenseRecords, ends: FloatArray, left: IntArray, onward: IntArray | None, first: IntArray
) -> FloatArray:
    """Return ``[C, P]`` the probability that a step begins at each position in each course."""
    begins = np.zeros(ends.shape[:2])
    sizes, emitted = np.diff(records.starts), 1 + np.arange(ends.shape[2])
    some = sizes > 0
    begins[first[some], records.starts[:-1][some]] = 1.0
    for position in range(int(sizes.max(initial=0))):
        at = records.starts[:-1][sizes > position] + position
        rows, counts = np.nonzero(emitted < left[at, None])
        from_ = at[rows]
        mass = begins[:, from_] * ends[:, from_, counts]
        course = np.zeros(mass.shape, dtype=np.int64) if onward is None else onward[:, from_, counts]
        np.add.at(begins, (course, np.broadcast_to(from_ + emitted[counts], mass.shape)), mass)
    return begins


def _stands(records: DenseRecords) -> FloatArray:
    """Return ``[P]`` how likely each output token, if a step reaches it, was drafted by a chain and accepted."""
    assert records.p is not None
    assert records.q is not None
    return ACCEPTED[records.rule](records.p, records.q)


def _ahead(records: DenseRecords, values: FloatArray) -> FloatArray:
    """Return ``[P, D]`` the values ``[P]`` of each position and those after it in the output, 0 beyond its end."""
    places = np.arange(len(values))[:, None] + np.arange(records.tokens.shape[1])
    inside = places < records.starts[records.requests + 1, None]
    return np.where(inside, values[np.minimum(places, max(len(values) - 1, 0))], 0.0)


def _of_outputs(records: DenseRecords) -> tuple[FloatArray | None, FloatArray | None]:
    """Return ``[P, D]`` confidences of drafts that the output follows, and the entropies of their laws; None: unknown.

    The confidence of a drawn token is the probability that it is drawn with. With confidence 1 the draft surely has the
    token. So has a draft whose tokens were chosen and whose confidences are recorded.
    """
    confidence, entropy = records.confidence, records.entropy
    if confidence is not None and confidence.shape[1]:
        assert records.q is not None
        confidence = _ahead(records, np.where(records.q == 1, confidence[:, 0], records.q))
    return confidence, None if entropy is None or not entropy.shape[1] else _ahead(records, entropy[:, 0])


def _depths(records: DenseRecords) -> IntArray:
    """Return ``[P]`` the levels of each recorded draft."""
    at, depth = np.arange(len(records.counts)), np.zeros((len(records.counts), records.tokens.shape[1] + 1), np.int64)
    for node in range(records.tokens.shape[1]):
        below = 1 + depth[at, records.parents[:, node] + 1]
        depth[:, node + 1] = np.where(node < records.counts, below, 0)
    deepest: IntArray = depth.max(1, initial=0)
    return deepest


def _reach_probabilities(
    records: DenseRecords, by_rank: FloatArray, depths: IntArray, paths: Sequence[Path_]
) -> FloatArray:
    """Return ``[P, D]`` how likely a step accepts at least 1, 2, ... tokens, in trees cut to ``depths`` ``[P]``."""
    ahead = np.stack([_ahead(records, own) for own in by_rank.T], axis=2)  # [P, D, R]
    nodes: dict[Path_, FloatArray] = {(): np.ones(len(depths))}
    found = np.zeros(ahead.shape[:2])
    for path in sorted((path for path in paths if len(path) <= depths.max(initial=0)), key=len):
        depth = len(path) - 1
        nodes[path] = nodes[path[:-1]] * ahead[:, depth, path[-1]]
        found[:, depth] += np.where(depth < depths, nodes[path], 0.0)
    return found
