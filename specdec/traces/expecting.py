"""What a run with drawn drafts would have done on its way to a given output, in expectation.

Let a sampled run that is not coupled have written the output y. A step begins somewhere on y and drafts k tokens from
laws q. What it accepted, given y, follows from p and q of y's own tokens. Under the standard rule a token is drafted
and accepted with probability min(p, q), and drawn after a rejection with max(p - q, 0), which makes p in all. So the
next token of y, if the step reaches it, was drafted and accepted with probability min(p, q) / p, and the step's block
ends with the first one that was not, or with the bonus token after k accepted ones. Every step draws anew, so where
steps begin is a Markov chain along y, and the expected number of steps is a sum over positions.
"""

import numpy as np

from specdec.contracts import Budget, FloatArray, IntArray
from specdec.draft_length import LengthPolicy, depth_limits
from specdec.traces.dense import DenseRecords
from specdec.traces.output_laws import ACCEPTED


def expected_steps(records: DenseRecords, length: LengthPolicy) -> dict[str, IntArray | FloatArray]:
    """Return a row for each position of the outputs: the probability that a step begins there, and what it would do.

    Args:
        records: with ``p`` and ``q``.
        length: reads nothing of drafts, and does not adapt.

    Returns:
        ``request``, ``num_committed``, ``probability``, and given that a step begins there ``num_drafted`` and the
        expected ``num_accepted`` and ``num_emitted``, all ``[P]``.

    Raises:
        ValueError: the policy decides by what the record does not have.

    Cost: O(P N) for P positions and drafts of N tokens.
    """
    if length.adaptive or length.reads_confidence or length.reads_entropy:
        raise ValueError(
            "length: tokens were drawn, and which of them a run draws is left to chance: only a length that neither "
            "reads drafts nor adapts to how they fared has expectations, such as Fixed; or record with rule='coupled'"
        )
    assert records.p is not None
    assert records.q is not None
    counts, stands = _counts(records, length), ACCEPTED[records.rule](records.p, records.q)
    columns = {name: np.zeros(len(counts)) for name in ("probability", "num_accepted", "num_emitted")}
    for start, end in zip(records.starts[:-1], records.starts[1:], strict=True):
        for name, values in _along(stands[start:end], counts[start:end]).items():
            columns[name][start:end] = values
    request, committed = _places(records)
    return {"request": request, "num_committed": committed, "num_drafted": counts, **columns}


def _places(records: DenseRecords) -> tuple[IntArray, IntArray]:
    """Return ``[P]`` the request of each position, and the ids that stand before it."""
    sizes = np.diff(records.starts)
    request = np.repeat(np.arange(len(sizes)), sizes)
    position = np.arange(len(request)) - np.repeat(records.starts[:-1], sizes)
    return request, records.prompt_lengths[request] + position


def _counts(records: DenseRecords, length: LengthPolicy) -> IntArray:
    """Return ``[P]`` how many tokens a step that begins at each position drafts."""
    rows, (_, committed) = np.arange(len(records.counts)), _places(records)
    session = length.open(len(rows))
    session.begin(rows)
    return depth_limits(session, rows, committed, Budget(records.counts, records.counts))


def _along(stands: FloatArray, counts: IntArray) -> dict[str, FloatArray]:
    """Return ``[T]`` of one output what ``expected_steps`` has of each position."""
    size = len(stands)
    begins, accepted, emitted = np.zeros((3, size))
    begins[:1] = 1
    for at, count in enumerate(counts.tolist()):
        reached = np.cumprod(stands[at : at + count])  # that the first i + 1 tokens are accepted
        accepted[at] = reached.sum()
        # Accepted tokens: 0, 1, ..., all; the block has one more, but none beyond the end.
        ends = np.append(1, reached) - np.append(reached, 0)
        after = np.minimum(at + 1 + np.arange(len(ends)), size)
        emitted[at] = (ends * (after - at)).sum()
        inside = after < size
        begins[after[inside]] += begins[at] * ends[inside]
    return {"probability": begins, "num_accepted": accepted, "num_emitted": emitted}
