"""Chains of drafted tokens, whose ids the device finds between passes: one function of static shape."""

from dataclasses import replace

import torch
from torch import Tensor

from oracles.graphed.buckets import Bucket
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import Part, Way, run_pass
from oracles.graphed.tiles import by_tiles
from oracles.graphed.upload import Packed
from oracles.transformer.eager import Transformer
from specdec.contracts import Draft, first_undefined


def run_chain(model: Transformer, way: Way, memory: Memory, bucket: Bucket, size: int, packed: Packed) -> tuple[Tensor]:
    """Return the likeliest ids after the nodes of each row, then after each id, up to the row's limit.

    Args:
        model, way, memory, bucket, packed: of the pass over the nodes that stand, see ``run_pass``. Its integers say
            how many ids each row wants.
        size: N, as many ids as the row wants that wants the most, or more.

    Returns:
        ``[R, 2 + N]``, which ``drafts_of`` reads: the depth of the first id for which the model gave NaN or +inf; the
        limit; ids, 0 beyond it.

    Guarantee: that of ``run_pass``. Keys of all but the last id of each row are written.
    """
    part, passed = Part((0, model.config.num_layers), ()), packed
    tokens, peaks = [], []
    for depth in range(size):
        stream = run_pass(model, way, memory, bucket, part, passed, None)[0]
        logits = _read_out(model, way, _last(stream, passed, bucket))
        is_over = packed.limits <= depth
        best = logits.argmax(-1)
        peaks.append(logits.gather(-1, best.unsqueeze(-1)).masked_fill(is_over.unsqueeze(-1), 0))
        tokens.append(best.masked_fill(is_over, 0).unsqueeze(-1))
        passed, bucket = _next(passed, tokens[-1], packed.limits > depth + 1), replace(bucket, width=1)
    return (torch.cat([first_undefined(peaks), packed.limits.unsqueeze(-1), *tokens], dim=1),)


def drafts_of(found: Tensor) -> Draft:
    """Return the chains of what ``run_chain`` has found, ``[B, 2 + N]`` of real rows."""
    return Draft(found[:, 2:], found[:, 1], undefined=found[:, :1])


def _last(stream: Tensor, packed: Packed, bucket: Bucket) -> Tensor:
    """Return ``[R, D]`` of each row's last real node, of a stream ``[R * W, D]``; any node's of a row without one."""
    if bucket.width == 1:
        return stream
    at = (packed.num_nodes - 1).clamp(min=0).view(-1, 1, 1).expand(-1, 1, stream.shape[-1])
    return stream.view(bucket.rows, bucket.width, -1).gather(1, at).squeeze(1)


def _read_out(model: Transformer, way: Way, stream: Tensor) -> Tensor:
    """Return ``[R, V]`` logits of streams ``[R, D]``, in tiles if passes compute so."""
    return by_tiles(model.read_out, stream) if way.in_tiles else model.read_out(stream)


def _next(packed: Packed, tokens: Tensor, goes_on: Tensor) -> Packed:
    """Return the integers of a pass over the tokens ``[R, 1]`` just found, padding in rows that want no more."""
    return replace(packed, starts=packed.starts + packed.num_nodes, num_nodes=goes_on.long(), tokens=tokens)
