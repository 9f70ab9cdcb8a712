"""What a pass does at least: a model's sizes, what its attention meets, and the operations and bytes of both."""

from dataclasses import dataclass
from functools import cached_property

from specdec.theory.ranges import check_count, check_positive

# Two products for every position that a query sees, scores and weighted sum: a multiply-add each for every dimension.
_FLOPS_PER_MEETING = 4


@dataclass(frozen=True)
class ModelShape:
    """A decoder-only transformer, as far as operations and bytes depend on it.

    Args:
        num_layers: blocks.
        hidden_size: width of the residual stream.
        num_heads: query heads.
        num_kv_heads: key and value heads; divides ``num_heads``. As many: multi-head attention (MHA); fewer: grouped
            queries (GQA); one: multi-query attention (MQA).
        head_size: width of a head.
        intermediate_size: width of the MLP.
        vocab_size: rows of the head.
        gated: whether the MLP has a third matrix, its gate.
        window: positions that a query sees, its own included (None: all before it).
        bytes_per_weight: of a weight as it is stored.
        bytes_per_cached: of a number in the cache.

    Raises:
        ValueError: an impossible size.
    """

    num_layers: int
    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    intermediate_size: int
    vocab_size: int
    gated: bool = True
    window: int | None = None
    bytes_per_weight: float = 2
    bytes_per_cached: float = 4

    def __post_init__(self) -> None:
        for name in ("num_layers", "hidden_size", "num_heads", "num_kv_heads", "head_size", "intermediate_size"):
            check_count(name, getattr(self, name))
        check_count("vocab_size", self.vocab_size)
        if self.window is not None:
            check_count("window", self.window)
        if self.num_heads % self.num_kv_heads:
            raise ValueError(f"num_kv_heads must divide num_heads {self.num_heads}, got {self.num_kv_heads}")
        check_positive("bytes_per_weight", self.bytes_per_weight)
        check_positive("bytes_per_cached", self.bytes_per_cached)

    @property
    def attention_width(self) -> int:
        """Return the width of all query heads together."""
        return self.num_heads * self.head_size

    @cached_property
    def layer_weights(self) -> int:
        """Return the weights of all layers: queries, keys, values, output and MLP; norms and biases are left out."""
        attention = self.hidden_size * self.head_size * 2 * (self.num_heads + self.num_kv_heads)
        mlp = self.hidden_size * self.intermediate_size * (3 if self.gated else 2)
        return self.num_layers * (attention + mlp)

    @property
    def head_weights(self) -> int:
        """Return the weights of the head that makes logits, tied or not."""
        return self.hidden_size * self.vocab_size

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of weights that a pass with logits reads: all matrices, but no embedding of its own."""
        return (self.layer_weights + self.head_weights) * self.bytes_per_weight

    @property
    def cache_bytes_per_token(self) -> float:
        """Return the bytes of one position's keys and values in all layers."""
        return 2 * self.num_layers * self.num_kv_heads * self.head_size * self.bytes_per_cached


def kv_cache_bytes(shape: ModelShape, length: int, num_rows: int = 1) -> float:
    """Return 2 layers kv_heads head_size bytes min(length, window) num_rows: what must be kept to decode on.

    Args:
        shape: of the model.
        length: tokens of each row, >= 0.
        num_rows: sequences, >= 1.

    Returns:
        Bytes. A cache that keeps what the window has left behind, as those of ``oracles`` do, is larger.

    Raises:
        ValueError: an argument is out of its range.
    """
    check_count("length", length, least=0)
    check_count("num_rows", num_rows)
    kept = length if shape.window is None else min(length, shape.window)
    return shape.cache_bytes_per_token * kept * num_rows


def context_of_equal_bytes(shape: ModelShape, num_rows: int = 1) -> float | None:
    """Return the context from which on a pass reads more keys and values than weights.

    Args:
        shape: of the model.
        num_rows: sequences of that context, >= 1.

    Returns:
        Tokens of each row, weight_bytes / (num_rows cache_bytes_per_token); None if the window is shorter.

    Raises:
        ValueError: ``num_rows`` is out of its range.
    """
    check_count("num_rows", num_rows)
    context = shape.weight_bytes / (num_rows * shape.cache_bytes_per_token)
    return None if shape.window is not None and context > shape.window else context


def visible_positions(width: int, context: int, window: int | None = None) -> int:
    """Return the positions that a chain of nodes sees, added up: sum over i < width of min(context + i + 1, window).

    Args:
        width: nodes, >= 0; each sees those before it and itself.
        context: positions before the first of them, >= 0.
        window: most positions that a node sees, its own included (None: all).

    Raises:
        ValueError: an argument is out of its range.
    """
    check_count("width", width, least=0)
    check_count("context", context, least=0)
    if window is None:
        return width * context + width * (width + 1) // 2
    check_count("window", window)
    growing = min(max(window - context, 0), width)
    return visible_positions(growing, context) + (width - growing) * window


def attention_work_naive(prompt: int, generated: int, width: int, num_layers: int = 1) -> int:
    """Return the FLOPs of attention without a cache: the sum of 4 width t^2 for prompt <= t < prompt + generated.

    Every pass computes all t queries again, and multiplies each with all t keys, including those that the mask hides.

    Args:
        prompt: tokens before the first pass, >= 1.
        generated: tokens, one a pass, >= 0.
        width: of all query heads together.
        num_layers: how many layers do so.

    Raises:
        ValueError: an argument is out of its range.

    Cost: O(generated).
    """
    _check(prompt, generated, width, num_layers)
    squares = sum(t * t for t in range(prompt, prompt + generated))
    return _FLOPS_PER_MEETING * width * num_layers * squares


def attention_work_cached(
    prompt: int, generated: int, width: int, num_layers: int = 1, with_prefill: bool = False
) -> int:
    """Return the FLOPs of attention with a cache: the sum of 4 width t for prompt <= t < prompt + generated.

    Every pass computes one query, which meets the t keys up to its own.

    Args:
        prompt, generated, width, num_layers: see ``attention_work_naive``.
        with_prefill: count the queries of the prompt before its last token too, which meet what they see:
            4 width (prompt - 1) prompt / 2 a layer.

    Raises:
        ValueError: an argument is out of its range.
    """
    _check(prompt, generated, width, num_layers)
    meetings = visible_positions(generated, prompt - 1)
    if with_prefill:
        meetings += visible_positions(prompt - 1, 0)
    return _FLOPS_PER_MEETING * width * num_layers * meetings


def _check(prompt: int, generated: int, width: int, num_layers: int) -> None:
    check_count("prompt", prompt)
    check_count("generated", generated, least=0)
    check_count("width", width)
    check_count("num_layers", num_layers)


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
    attention = _FLOPS_PER_MEETING * shape.num_layers * shape.attention_width * seen
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
