"""How passes compute on a device, and what that can guarantee."""

from collections.abc import Callable
from typing import Literal

import torch

from oracles.graphed.buckets import MAX_NODES
from oracles.graphed.chunks import ChunkedAttention
from oracles.graphed.graphed_attention import MaskedAttention
from oracles.graphed.graphed_nodes import PassNodes
from oracles.graphed.graphed_passes import PassMode
from oracles.graphed.tiles import TILE
from oracles.graphed.triton_attention import TritonAttention, missing_requirement
from oracles.transformer.attention import Attend
from oracles.transformer.config import check_choice

AttentionName = Literal["masked", "chunked", "triton"]
ATTENTIONS: dict[str, Callable[[PassNodes], Attend]] = {
    "masked": MaskedAttention, "chunked": ChunkedAttention, "triton": TritonAttention,
}  # fmt: skip


def way_of(device: torch.device, dtype: torch.dtype, head_size: int, bitwise: bool, attention: str | None) -> PassMode:
    """Return the way for passes with heads of a size: with this attention, else with Triton's if it runs.

    If it does not, the library's attention is taken, or for ``bitwise`` passes the one in chunks.

    Raises:
        ValueError: an unknown attention, one that cannot run here, or one that cannot be ``bitwise``.
    """
    if attention is not None:
        check_choice("attention", attention, AttentionName, ", or None")
    if bitwise and attention == "masked":
        raise ValueError("attention='masked' sums in an order that depends on the pass: leave it out, or bitwise=True")
    reason = missing_requirement(device, dtype, head_size)
    if attention == "triton" and reason is not None:
        raise ValueError(f"attention='triton': {reason}; leave it out")
    without = "chunked" if bitwise else "masked"
    chosen = attention or (without if reason else "triton")
    # Chunks of tiles repeat the same operations; kernels run in grids of different sizes, masks have different shapes.
    return PassMode(ATTENTIONS[chosen], bitwise, 2 * TILE if chosen == "chunked" else MAX_NODES)
