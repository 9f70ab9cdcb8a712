"""What EAGLE-3 heads have in common whose passes are operations of torch."""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from oracles.heads.eagle3_base import Eagle3Base
from oracles.heads.eagle3_config import Eagle3Shape
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import Attend
from oracles.transformer.linear import at_least_float32, linear_layers
from specdec.cache import FeatureSlots
from specdec.contracts import HostOracle, IntArray, Tree
from specdec.transfers import on_host


class TorchEagle3Head(Eagle3Base):
    """Compute what a pass of an EAGLE-3 head computes, whoever says where its nodes stand.

    Args:
        network: with its weights; it is packed.
        shape, oracle, name: see ``Eagle3Base``.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840).
    """

    bitwise, chains = False, False

    def __init__(self, network: Eagle3Network, shape: Eagle3Shape, oracle: HostOracle, name: str) -> None:
        super().__init__(shape, oracle, name, network.num_written(oracle.vocab_size))
        # What another backend reads of the norm are the plain weights.
        borrowed = None if network.lm_head is not None else oracle.read_out_after(network.norm)
        self._network = network.pack()
        self._read: Callable[[Tensor], Tensor] = self._own_logits if borrowed is None else borrowed

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self._network.norm.weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Of weights, activations and cache."""
        return self._network.norm.weight.dtype

    @property
    def weight_type(self) -> str:
        """The dtype of its weights."""
        return str(self.dtype).removeprefix("torch.")

    @property
    def weight_bytes(self) -> int:
        """Memory of its own weights."""
        packed = sum(layer.extra_bytes for _, layer in linear_layers(self._network))
        return packed + sum(parameter.nbytes for parameter in self._network.parameters())

    def _stream(self, ids: Tensor, positions: Tensor, end: int, feature: Tensor, attend: Attend) -> Tensor:
        """Return the streams ``[N, H]`` of nodes after the layer.

        Args:
            ids, positions: ``[N]``; a position beyond the context, which padding may have, is its last one here.
            end: no other position is as large.
            feature: ``[N, H]`` that the nodes read.
            attend: keeps their keys, too.
        """
        own, end = self._network.embed_tokens, min(end, self.max_context)
        rope = self._network.rotary.rows(positions.clamp(max=self.max_context - 1), end, self.dtype)
        embedded = self.oracle.embed(ids).to(self.device, self.dtype) if own is None else own(ids)
        stream: Tensor = self._network.layer(embedded, feature, rope, attend)
        return stream

    def _guess(self, stream: Tensor) -> Tensor:
        """Return the features ``[N, H]`` that nodes leave for their children."""
        guess: Tensor = self._network.norm(stream) if self._network.norm_output else stream
        return guess

    def _own_logits(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from streams ``[R, H]``, padding cut off."""
        assert self._network.lm_head is not None
        return at_least_float32(self._network.lm_head(self._network.norm(stream))[..., : self.vocab_size])


def check_order(tree: Tree, cache: FeatureSlots, rows: IntArray, first: int) -> None:
    """Raise ValueError if a node needs what its parent leaves in this very pass; tensors of a device are not read."""
    given = tree.tokens, tree.num_nodes, tree.parents
    if tree.size == first + 1 or not all(part is None or part.is_cpu for part in given):
        return
    above = on_host(tree.above)
    is_real = np.arange(1, tree.size) < on_host(tree.num_nodes)[:, None]
    is_guess = cache.lengths[rows][:, None] + above + 1 >= cache.known[rows][:, None]
    if (is_real & is_guess & (above >= first)).any():
        raise ValueError(
            "a node hangs on one of the same pass, whose feature is not there yet: score a chain token by token, and a "
            "tree level by level"
        )
