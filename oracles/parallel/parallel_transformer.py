"""An eager transformer that several processes share: heads, MLP widths and ids are split, sums cross processes."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from oracles.parallel.ranks import HASH_BYTES, Ranks
from oracles.parallel.shared_linear import GatheredLinear, SummedLinear
from oracles.parallel.shares import Share
from oracles.parallel.split_bits import has_bitwise_splits
from oracles.transformer.blocks import MLP, SelfAttention
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear
from specdec.cache import PagedKVCache
from specdec.contracts import IntArray

Sums = Literal["blocks", "reduced"]


class ParallelTransformer(Transformer):
    """One process's share of a transformer, which scores as the whole does: all processes make the same calls.

    It is a transformer with fewer heads and a narrower MLP. The two layers of a block that write to the residual stream
    add over processes, and the head gathers logits, so every process has all of them and makes the same decisions.
    Embeddings, norms and the residual stream are whole in every process.

    Args:
        share: of this process.
        ranks: the processes that share the model.

    Attributes:
        sums: "blocks" or "reduced", see ``oracles.load_parallel``.
        bitwise: whether ``pack`` found scores to be bitwise independent of the pass, and, with "blocks", of the number
            of processes; False with "reduced".

    Source: Shoeybi et al. 2019 (arXiv 1909.08053), section 3, for what is split and where sums are taken.
    """

    def __init__(self, share: Share, ranks: Ranks) -> None:
        super().__init__(share.config, seed=None)
        self.share, self.ranks = share, ranks
        self.sums: Sums = "reduced" if share.num_blocks is None else "blocks"
        self.backend = f"{ranks.count}-process"  # as results report it
        whole = share.whole
        for part in self.modules():
            if isinstance(part, SelfAttention):
                out = self._summed_linear(share.attention_start, share.attention_width, whole.attn_out_bias)
                part.register_module("o_proj", out)
            elif isinstance(part, MLP):
                part.register_module("down_proj", self._summed_linear(0, whole.intermediate_size, whole.mlp_bias))
        if self.lm_head is not None:
            first, last = share.own(whole.vocab_size)
            self.lm_head = Linear(whole.hidden_size, last - first, whole.head_bias)

    def _summed_linear(self, first: int, size: int, bias: bool) -> SummedLinear:
        widths = self.share.widths(size)
        return SummedLinear(self.ranks, first, widths, self.config.hidden_size, bias, self.sums == "blocks")

    def cut_head(self) -> Linear:
        """Return the head of this process's ids, which gathers all logits."""
        own = self.lm_head
        if own is None:
            own = Linear.of(self.share.take("lm_head.weight", self.model.embed_tokens.weight).clone())
        return GatheredLinear.from_layer(own, self.ranks, self.vocab_size)

    @torch.no_grad()
    def pack(self) -> "ParallelTransformer":
        """Prepare for inference, once, in place, on all processes together; see ``Transformer.pack``."""
        for part in self.modules():
            if isinstance(part, SummedLinear):
                part.cut()
        super().pack()
        self.ranks.num_bytes_sent = 0
        return self

    def keeps_bits(self) -> bool:
        """Tell whether scores depend bitwise on the path only, on all processes."""
        return (
            self.sums == "blocks"
            and self.dtype == torch.float32
            and self.device.type == "cpu"
            and self.ranks.all_say(has_bitwise_splits(self.share), self.device)
            and super().keeps_bits()
        )

    def agree(self, given: Sequence[Tensor], cache: PagedKVCache, rows: IntArray, *asked: object) -> None:
        """Check that all processes are about to score the same nodes; for arguments see ``Transformer.agree``.

        Raises:
            RanksDisagree: this process, or another one, is about to score other nodes than the rest.
            RankLost: another process is gone.
        """
        words = f"{[tuple(part.shape) for part in given]} {asked} {rows.tolist()}"
        numbers = [part.cpu().numpy().tobytes() for part in given] + [cache.lengths[rows].tobytes()]
        self.ranks.agree(b"".join([words.encode(), *numbers]), self.device)

    def bytes_of_pass(self, num_nodes: int, num_logits: int) -> int:
        """Return the bytes that this process sends in a pass, by the formula of its shape; 0 if it is alone.

        With R processes, L layers of width d, numbers of b bytes, c blocks and v ids of this process, N nodes and M of
        them with logits: (R - 1) (2 L N d b c / R + M v b + 8), and with "reduced" 2 / R in place of c / R.

        Args:
            num_nodes: nodes that the pass computes, padding included.
            num_logits: how many of these get logits: all, one for each row, or none.
        """
        first, last = self.share.own(self.vocab_size)
        each = self.share.num_blocks or 2
        size, others = self.dtype.itemsize, self.ranks.count - 1
        sums = [others * num_nodes * self.config.hidden_size * size * each // self.ranks.count] * (2 * self.num_layers)
        return sum(sums) + others * (num_logits * (last - first) * size + HASH_BYTES)
