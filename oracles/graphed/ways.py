"""Which way passes compute on a device, and what it can promise."""

from collections.abc import Callable
from typing import Literal, get_args

from oracles.attention import Attend
from oracles.graphed.attention import MaskedAttention
from oracles.graphed.buckets import MAX_NODES
from oracles.graphed.chunks import ChunkedAttention
from oracles.graphed.nodes import Nodes
from oracles.graphed.passes import Way
from oracles.graphed.tiles import TILE
from oracles.transformer import Transformer

AttentionName = Literal["masked", "chunked"]
ATTENTIONS: dict[str, Callable[[Nodes], Attend]] = {"masked": MaskedAttention, "chunked": ChunkedAttention}


def way_of(model: Transformer, bitwise: bool, attention: str | None) -> Way:
    """Return the way for a model, of this attention or of the one that fits.

    Raises:
        ValueError: an unknown attention, or one that cannot be ``bitwise``.
    """
    if attention not in (None, *get_args(AttentionName)):
        known = ", ".join(map(repr, get_args(AttentionName)))
        raise ValueError(f"attention is {attention!r}; choose one of {known}, or None")
    if bitwise and attention == "masked":
        raise ValueError("attention='masked' sums in an order that depends on the pass: leave it out, or bitwise=True")
    chosen = attention or ("chunked" if bitwise else "masked")
    return Way(ATTENTIONS[chosen], bitwise, 2 * TILE if bitwise and chosen == "chunked" else MAX_NODES)
