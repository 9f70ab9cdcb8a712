"""Chains of drafted tokens whose ids the device finds between passes: one function of static shape."""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import Passes, PassPart
from oracles.graphed.upload import PassIntegers
from specdec.contracts import Draft, first_undefined


def run_chain(passes: Passes, memory: Memory, size: int, packed: PassIntegers) -> tuple[Tensor]:
    """Return the likeliest ids after the nodes of each row, then after each id, up to the row's limit.

    Args:
        passes: of the model.
        memory, packed: of the pass over the given nodes, see ``run_pass``. Its integers say how many
            ids each row wants.
        size: N, at least the most ids that a row wants.

    Returns:
        ``[R, 2 + N]``, which ``drafts_of`` reads: the depth of the first id for which the model gave NaN or +inf; the
        limit; ids, 0 beyond it.

    Guarantee: that of ``run_pass``. Keys of all but the last id of each row are written.
    """
    passed = packed

    def next_logits(depth: int, tokens: Tensor | None) -> Tensor:
        nonlocal passed
        if tokens is not None:
            passed = _next(passed, tokens, packed.limits > depth)
        return passes.read_out(_last(passes.run(memory, PassPart(), passed, None)[0], passed))

    return (follow(next_logits, size, packed.limits),)


def follow(next_logits: Callable[[int, Tensor | None], Tensor], size: int, limits: Tensor) -> Tensor:
    """Return the likeliest ids of each row, up to its limit.

    Args:
        next_logits: given the depth and the ids ``[R, 1]`` above it, None above the first, returns logits ``[R, V]``.
        size: N, the largest limit or more.
        limits: ``[R]``; 0: the row is padding.

    Returns:
        The same as ``run_chain``.
    """
    tokens: list[Tensor] = []
    peaks = []
    for depth in range(size):
        logits = next_logits(depth, tokens[-1] if tokens else None)
        is_over = limits <= depth
        best = logits.argmax(-1)
        peaks.append(logits.gather(-1, best.unsqueeze(-1)).masked_fill(is_over.unsqueeze(-1), 0))
        tokens.append(best.masked_fill(is_over, 0).unsqueeze(-1))
    return torch.cat([first_undefined(peaks), limits.unsqueeze(-1), *tokens], dim=1)


def drafts_of(found: Tensor) -> Draft:
    """Return the chains from the output of ``run_chain``, ``[B, 2 + N]`` of real rows."""
    return Draft(found[:, 2:], found[:, 1], undefined=found[:, :1])


def _last(stream: Tensor, packed: PassIntegers) -> Tensor:
    """Return the stream ``[R, D]`` of each row's last real node, from ``[R * W, D]``; any node's if a row has none."""
    bucket = packed.bucket
    if bucket.width == 1:
        return stream
    at = (packed.num_nodes - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, stream.shape[-1])
    return stream.view(bucket.rows, bucket.width, -1).gather(1, at).squeeze(1)


def _next(packed: PassIntegers, tokens: Tensor, goes_on: Tensor) -> PassIntegers:
    """Return the integers of a pass over the tokens ``[R, 1]`` just found, padding in rows that want no more."""
    bucket, starts = replace(packed.bucket, width=1), packed.starts + packed.num_nodes
    return replace(packed, bucket=bucket, starts=starts, num_nodes=goes_on.long(), tokens=tokens)
