"""Operations and bytes of one pass."""

from dataclasses import dataclass

from specdec.theory.limits.attention_cost import FLOPS_PER_MEETING, visible_positions
from specdec.theory.limits.model_shape import ModelShape
from specdec.theory.ranges import check_count


@dataclass(frozen=True)
class PassCost:
    """What a pass does at least.

    Attributes:
        flops: of its matrix products.
        weight_bytes: read, each weight once.
        cache_bytes: keys and values of the rows, read once if they stood before, written once if they are new.
    """

    flops: float
    weight_bytes: float
    cache_bytes: float

    @property
    def bytes(self) -> float:
        """Return all bytes."""
        return self.weight_bytes + self.cache_bytes

    @property
    def intensity(self) -> float:
        """Return the arithmetic intensity, FLOPs a byte."""
        return self.flops / self.bytes

    @property
    def cache_share(self) -> float:
        """Return the cache's share of the bytes, in [0, 1)."""
        return self.cache_bytes / self.bytes


def pass_cost(
    shape: ModelShape, batch: int = 1, width: int = 1, context: int = 0, num_logits: int | None = None
) -> PassCost:
    """Return what a pass costs at least: a chain of ``width`` nodes in each row, after ``context`` tokens in the cache.

    With P the weights of the layers, H those of the head, and s the positions that a row's nodes see together,

        FLOPs = batch (2 P width + 2 H num_logits + 4 layers heads head_size s),
        bytes = (P + H) bytes_per_weight + batch 2 layers kv_heads head_size bytes_per_cached (c + width),

    where c is the context, or what the window leaves of it: window - 1 positions.

    Args:
        shape: of the model.
        batch: rows, >= 1.
        width: nodes a row, >= 1, the pending token among them.
        context: tokens of each row that the cache holds, >= 0.
        num_logits: nodes a row that get logits, in [0, width] (None: all). With 0 the head is not read.

    Returns:
        A lower bound, which leaves out what is small or stays in the processor's caches: norms, biases, softmax,
        activations, embedding rows, logits. A tree of as many nodes costs no more: its nodes see fewer of each other.

    Raises:
        ValueError: an argument is out of its range.

    Source: the counting of Pope et al. 2022 (arXiv 2211.05102), section 2, attention's FLOPs added.
    """
    check_count("batch", batch)
    check_count("width", width)
    check_count("context", context, least=0)
    logits = width if num_logits is None else num_logits
    check_count("num_logits", logits, least=0)
    if logits > width:
        raise ValueError(f"num_logits must be at most the width {width}, got {logits}")
    seen = visible_positions(width, context, shape.window)
    attention = FLOPS_PER_MEETING * shape.num_layers * shape.attention_width * seen
    flops = batch * (2 * shape.layer_weights * width + 2 * shape.head_weights * logits + attention)
    weights = shape.layer_weights + (shape.head_weights if logits else 0)
    prefix = context if shape.window is None else min(context, shape.window - 1)
    return PassCost(flops, weights * shape.bytes_per_weight, batch * shape.cache_bytes_per_token * (prefix + width))


def prefill_costs(shape: ModelShape, length: int, chunk: int) -> list[PassCost]:
    """Return the cost of each pass that takes ``chunk`` tokens of one prompt; the last one makes one row of logits.

    Args:
        shape: of the model.
        length: tokens of the prompt, >= 1.
        chunk: tokens of a pass, >= 1; the last pass takes what is left.

    Raises:
        ValueError: an argument is out of its range.
    """
    check_count("length", length)
    check_count("chunk", chunk)
    starts = range(0, length, chunk)
    return [pass_cost(shape, 1, min(chunk, length - at), at, num_logits=int(at + chunk >= length)) for at in starts]
