"""Which part of every weight each process holds if several processes share a model."""

from dataclasses import dataclass, replace
from itertools import pairwise

from torch import Tensor

from oracles.transformer.config import TransformerConfig

# Blocks of sums over inputs, if no other number is asked for.
NUM_BLOCKS = 4


@dataclass(frozen=True)
class Share:
    """What one process holds of a model.

    Attention is split by key heads, each with its group of query heads. If there are more processes than key heads,
    several processes compute the same heads (and cache their keys), and each multiplies its part of the output.

    Args:
        whole: the model's shape.
        rank, count: number of the process, and number of processes that share the model.
        num_blocks: number of blocks of sums over inputs, the same for every number of processes; None: one for each
            process.

    Raises:
        ValueError: key heads or blocks cannot be split among ``count`` processes; an impossible number of blocks; the
            model is a draft with a vocabulary of its own.
    """

    whole: TransformerConfig
    rank: int
    count: int
    num_blocks: int | None

    def __post_init__(self) -> None:
        if self.whole.draft_vocab_size is not None:
            raise ValueError("a model that writes a draft vocabulary is small: load it whole, by oracles.load")
        narrowest = min(self.attention_width, self.whole.intermediate_size)
        if self.num_blocks is not None and self.num_blocks not in range(1, narrowest + 1):
            raise ValueError(f"num_blocks is {self.num_blocks}; give 1 to {narrowest}, the inputs of the narrowest sum")
        heads = self.whole.kv_heads
        if self.count % heads and heads % self.count:
            possible = [count for count in range(1, max(8, heads) + 1) if not (count % heads and heads % count)]
            raise ValueError(
                f"{self.count} processes cannot share {heads} key heads: start {' or '.join(map(str, possible))} of "
                "them (torchrun --nproc-per-node)"
            )
        if self.num_blocks is not None and self.num_blocks % self.count:
            raise ValueError(
                f"{self.count} processes cannot share num_blocks={self.num_blocks} of every sum: give a multiple of "
                f"{self.count}, or sums='reduced'"
            )

    @property
    def config(self) -> TransformerConfig:
        """The shape of the part: an ordinary transformer of fewer heads and a narrower MLP."""
        heads, keys = self.whole.num_heads // self._num_parts, self.whole.kv_heads // self._num_parts
        first, last = self.own(self.whole.intermediate_size)
        return replace(
            self.whole,
            num_heads=heads,
            num_kv_heads=keys,
            head_dim=self.whole.head_size,
            intermediate_size=last - first,
        )

    @property
    def _num_parts(self) -> int:
        """Number of parts of the attention: several processes have the same part if there are fewer key heads."""
        return min(self.count, self.whole.kv_heads)

    @property
    def _part(self) -> int:
        return self.rank * self._num_parts // self.count

    @property
    def attention_width(self) -> int:
        """Width of the attention output of all heads."""
        return self.whole.num_heads * self.whole.head_size

    @property
    def attention_start(self) -> int:
        """Where this process's inputs of the output projection begin in the output of its own heads."""
        return self.own(self.attention_width)[0] - self._part * (self.attention_width // self._num_parts)

    def own(self, size: int) -> tuple[int, int]:
        """Return (first, last) of this process's part of ``size`` rows or columns."""
        return size * self.rank // self.count, size * (self.rank + 1) // self.count

    def widths(self, size: int) -> list[int]:
        """Return the widths of this process's blocks of ``size`` inputs, in order."""
        blocks = self.num_blocks or self.count
        each = blocks // self.count
        bounds = [size * i // blocks for i in range(self.rank * each, (self.rank + 1) * each + 1)]
        return [end - begin for begin, end in pairwise(bounds)]

    def take(self, name: str, weight: Tensor) -> Tensor:
        """Return this process's part of a parameter, ``[out, in]`` or ``[size]``, a view of the whole one."""
        module, _, kind = name.rpartition(".")
        part = module.rpartition(".")[2]
        if part in ("q_proj", "k_proj", "v_proj"):
            # The rows of this process's heads: queries, keys or values [heads * D, ...]
            rows = len(weight) // self._num_parts
            return weight[self._part * rows : (self._part + 1) * rows]
        if part == "lm_head":
            weight = weight[: self.whole.vocab_size]
        if part in ("gate_proj", "up_proj", "lm_head"):
            return weight[slice(*self.own(len(weight)))]
        if part in ("o_proj", "down_proj") and kind != "bias":
            return weight[:, slice(*self.own(weight.shape[1]))]
        return weight
