"""Asking a length policy about recorded chains, as a source would ask it."""

import torch

from specdec.contracts import Budget, FloatArray, IntArray
from specdec.drafting.lengths import LengthPolicy, LengthSession, cut_limits, depth_limits
from specdec.traces.dense import DenseRecords


def check_length(records: DenseRecords, length: LengthPolicy) -> None:
    """Raise ValueError if the records lack what a policy asks for."""
    if not records.is_chain:
        raise ValueError("length: the recorded drafts branch, and a length cuts chains: give shape, or record chains")
    if length.max_depth > len(records.paths):
        raise ValueError(
            f"length drafts up to {length.max_depth} tokens, but the record holds drafts of {len(records.paths)}: "
            f"record with num_draft_tokens={length.max_depth}, or give a policy that stays within"
        )
    if length.reads_entropy and records.entropy is None:
        raise ValueError("length reads entropies, which were not recorded: record with entropies=True")
    if length.reads_confidence and records.confidence is None and records.counts.any():
        raise ValueError(
            "length reads confidences, and the recorded drafts carry none, or others than the probabilities that "
            "tokens were drawn with"
        )


def cut(
    session: LengthSession,
    rows: IntArray,
    committed: IntArray,
    counts: IntArray,
    confidence: FloatArray | None,
    entropy: FloatArray | None,
) -> IntArray:
    """Return ``[B]`` how many tokens of some chains a policy keeps.

    Args:
        session: the policy's.
        rows: ``[B]`` slots of it.
        committed: ``[B]`` ids that stand.
        counts: ``[B]`` tokens of the chains.
        confidence, entropy: ``[B, N]`` of the tokens, and of the laws that they were drawn from; None: not recorded.
    """
    policy = session.policy
    limits = depth_limits(session, rows, committed, Budget(counts, counts))
    depth = 0
    while depth < limits.max(initial=0):
        if policy.reads_entropy and entropy is not None:
            limits = cut_limits(limits, depth, session.draws(rows, torch.from_numpy(entropy[:, depth])))
        depth += 1
        if policy.reads_confidence and confidence is not None and depth <= limits.max(initial=0):
            limits = cut_limits(limits, depth, session.continues(rows, torch.from_numpy(confidence[:, :depth])))
    session.note_counts(rows, limits)
    return limits
