"""The sizes of a decoder-only transformer that decide what a pass costs."""

from dataclasses import dataclass
from functools import cached_property

from specdec.theory.ranges import check_count, check_positive


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
        ValueError: a size that cannot be.
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
