"""Lay weights out as the native pass reads them: see ``model.h``."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from oracles.native import bindings
from oracles.native.host_memory import Slabs
from oracles.native.packed_blocks import BLOCK, WIDTH, is_readable, plain_blocks, weight_blocks
from oracles.quantisation import QuantisedWeight
from oracles.transformer.blocks import MLP, Norm, SelfAttention
from oracles.transformer.config import TransformerConfig
from oracles.transformer.linear import Linear


def round_up(size: int, unit: int) -> int:
    """Return ``size`` rounded up to a multiple of ``unit``."""
    return -(-size // unit) * unit


@dataclass
class Weights:
    """The tensors that a native model points into; they live as long as this object."""

    tensors: list[Tensor] = field(default_factory=list)
    _slabs: Slabs = field(default_factory=Slabs)

    @property
    def bytes(self) -> int:
        """Memory of all of them."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def address(self, tensor: Tensor) -> int:
        """Keep a contiguous tensor ``[...]`` and return its address."""
        self.tensors.append(tensor)
        return tensor.data_ptr()

    def vector(self, values: Tensor | None, size: int, order: Tensor | None = None) -> int | None:
        """Keep values in float32 on the host and return their address; None for None.

        Args:
            values: ``[N]``.
            size: they are padded with zeros to this length, if there is no ``order``.
            order: ``[size]`` the value at each place, -1 for a zero; None: as they are.
        """
        if values is None:
            return None
        wide = values.detach().float().cpu()
        wide = functional.pad(wide, (0, size - len(wide))) if order is None else _take(wide, order)
        return self.address(wide.contiguous().clone())

    def norm(self, norm: Norm) -> bindings.Norm:
        """Keep a norm of the residual stream."""
        size = norm.weight.numel()
        padded = round_up(size, WIDTH)
        return bindings.Norm(self.vector(norm.weight, padded), self.vector(norm.bias, padded), norm.eps, size)

    def linear(
        self, layers: Sequence[Linear], order: Tensor | None = None, inputs: Tensor | None = None
    ) -> bindings.Linear:
        """Keep linear layers as one.

        Args:
            layers: their outputs are put side by side.
            order: ``[columns]`` the output at each column, -1 for a column of zeros; None: as they are.
            inputs: the same for the inputs.
        """
        whole = _side_by_side(layers, inputs)
        if order is None:
            order = torch.arange(sum(layer.out_features for layer in layers), device="cpu")
        order = functional.pad(order, (0, -len(order) % BLOCK), value=-1)
        whole = _with_columns(whole, order, inputs)
        biases = [layer.bias.detach().float().cpu() for layer in layers if layer.bias is not None]
        bias, scales = self.vector(torch.cat(biases), len(order), order) if biases else None, None
        if isinstance(whole, Tensor):
            blocks, width = plain_blocks(whole), whole.shape[1]
        else:
            blocks, width = weight_blocks(whole), whole.values.shape[1]
            if whole.format.group is None:
                scales = self.address(whole.scales.flatten().contiguous())
        address = self.address(self._slabs.place(blocks))
        return bindings.Linear(address, bias, scales, width, len(order), storage_of(whole), 0)

    def table(self, values: Tensor) -> tuple[int, int]:
        """Keep a table ``[rows, columns]`` as it is stored; return its address and its storage."""
        whole = _to_storage(values).contiguous()
        return self.address(whole), storage_of(whole)


def storage_of(weight: Tensor | QuantisedWeight) -> int:
    """Return the number by which the native pass knows the dtype or format of a weight ``[...]``."""
    name = str(weight.dtype).removeprefix("torch.") if isinstance(weight, Tensor) else weight.format.name
    return bindings.STORAGES[name]


def _to_storage(weight: Tensor) -> Tensor:
    """Return a weight on the host as it is stored, or as float32 if the native pass does not read its type."""
    known = str(weight.dtype).removeprefix("torch.") in bindings.STORAGES
    return weight.detach().to("cpu", weight.dtype if known else torch.float32)


def _side_by_side(layers: Sequence[Linear], inputs: Tensor | None) -> Tensor | QuantisedWeight:
    """Return the weights of layers as one, ``[columns, inputs]``: in few bits if all of them are, in one format.

    A group has neighbouring inputs. If ``inputs`` parts them, weights are dequantised to float32.
    """
    quantised = [layer.quantised.to("cpu") for layer in layers if layer.quantised is not None]
    if len(quantised) == len(layers) and len({part.format for part in quantised}) == 1:
        joined = QuantisedWeight.stack(quantised)
        parted = joined.format.group is not None and not _changes_nothing(inputs, joined.values.shape[1])
        if is_readable(joined) and not parted:
            return joined
    plain = [_plain(layer) for layer in layers]
    # Parts that are stored differently are widened, exactly.
    same = plain[0].dtype if len({part.dtype for part in plain}) == 1 else torch.float32
    return plain[0] if len(plain) == 1 else torch.cat([part.to(same) for part in plain])


def _with_columns(weight: Tensor | QuantisedWeight, order: Tensor, inputs: Tensor | None) -> Tensor | QuantisedWeight:
    """Return a weight with its outputs and inputs reordered as ``Weights.linear`` says."""
    if isinstance(weight, QuantisedWeight):
        taken = weight.each(lambda part: _take(part, order))
        return taken if inputs is None else replace(taken, values=_take(taken.values.t(), inputs).t())
    columns = _take(weight, order)
    return columns if inputs is None else _take(columns.t(), inputs).t()


def _plain(layer: Linear) -> Tensor:
    if layer.quantised is not None:
        if layer.quantised.format.rounds_inputs:
            raise ValueError(
                "a layer that rounds its inputs cannot be joined with one that does not or is of another format, nor "
                "can groups of inputs be parted by heads whose size is no multiple of 16: take other weights, or "
                "arithmetic in floats"
            )
        return layer.quantised.dequantise().cpu()
    if layer.weight is None:
        raise ValueError("a layer was packed for eager passes and has no plain weight left: give one that was not")
    return _to_storage(layer.weight)


def _changes_nothing(order: Tensor | None, count: int) -> bool:
    return order is None or torch.equal(order, torch.arange(count, device="cpu"))


def _take(values: Tensor, order: Tensor) -> Tensor:
    """Return ``values[order]`` along the first dimension, zeros where ``order`` is -1."""
    if _changes_nothing(order, len(values)):
        return values
    taken = values[order.clamp(min=0)]
    taken[order < 0] = 0
    return taken


def head_order(config: TransformerConfig) -> Tensor:
    """Return the ``[padded head]`` order of a head's dimensions: rotary pairs apart by half of them, zeros (-1) last.

    A permutation of the dimensions that queries and keys share leaves dot products unchanged.
    """
    order = torch.arange(config.head_size, device="cpu")
    if config.rope_interleaved:
        order[: config.rotary_size] = order[: config.rotary_size].view(-1, 2).t().flatten()
    return functional.pad(order, (0, -config.head_size % WIDTH), value=-1)


def attention_order(config: TransformerConfig) -> Tensor:
    """Return the order ``[(H + 2 K) P]`` of the attention's outputs: by key-value head its queries, its key, its value.

    H and K are the numbers of query and key-value heads, P is a head's padded size, and -1 stands for a zero.
    """
    size, groups = config.head_size, config.num_heads // config.kv_heads
    turned = head_order(config)
    plain = functional.pad(torch.arange(size, device="cpu"), (0, -size % WIDTH), value=-1)
    columns = []
    for head in range(config.kv_heads):
        columns += [_shift(turned, (head * groups + i) * size) for i in range(groups)]
        columns.append(_shift(turned, (config.num_heads + head) * size))
        columns.append(_shift(plain, (config.num_heads + config.kv_heads + head) * size))
    return torch.cat(columns)


def heads_order(config: TransformerConfig) -> Tensor:
    """Return the order ``[H P]`` of the inputs of the output projection: H query heads, each padded to P with -1."""
    plain = torch.arange(config.head_size, device="cpu")
    padded = functional.pad(plain, (0, -config.head_size % WIDTH), value=-1)
    return torch.cat([_shift(padded, head * config.head_size) for head in range(config.num_heads)])


def gate_order(inner: int) -> Tensor:
    """Return the order ``[2 P]`` of the outputs of gate and up projection: 16 of one, then the same 16 of the other.

    P is ``inner`` rounded up to a multiple of 16; -1 stands for a zero.
    """
    gates = functional.pad(torch.arange(inner, device="cpu"), (0, -inner % WIDTH), value=-1)
    pairs = torch.stack([gates.view(-1, WIDTH), _shift(gates, inner).view(-1, WIDTH)], dim=1)
    return pairs.flatten()


def _shift(order: Tensor, by: int) -> Tensor:
    return torch.where(order < 0, order, order + by)


class BlockParts(Protocol):
    """The parts of a layer with attention and MLP."""

    self_attn: SelfAttention
    mlp: MLP
    input_layernorm: Norm
    post_attention_layernorm: Norm


def layer_of(config: TransformerConfig, weights: Weights, block: BlockParts) -> bindings.Layer:
    """Return a layer with attention and MLP."""
    attention = block.self_attn
    parts = [part for part in (attention.q_proj, attention.k_proj, attention.v_proj) if part is not None]
    order = head_order(config)
    norms = [None if norm is None else norm.weight for norm in (attention.q_norm, attention.k_norm)]
    layer = mlp_layer(weights, block.mlp)
    layer.before_attention = weights.norm(block.input_layernorm)
    layer.before_mlp = weights.norm(block.post_attention_layernorm)
    layer.qkv = weights.linear(parts, attention_order(config))
    layer.out = weights.linear([attention.o_proj], inputs=heads_order(config))
    layer.query_norm, layer.key_norm = (
        weights.vector(norm, round_up(config.head_size, WIDTH), order) for norm in norms
    )
    layer.reach = reach_of(config.sliding_window)
    return layer


def reach_of(window: int | None, ahead: bool = False) -> bindings.Reach:
    """Return which positions the nodes of a layer see; None as the window means all."""
    return bindings.Reach(window=min(window or 0, bindings.LARGEST), ahead=ahead)


def mlp_layer(weights: Weights, mlp: MLP) -> bindings.Layer:
    """Return a layer with only an MLP's weights."""
    parts = [part for part in (mlp.gate_proj, mlp.up_proj) if part is not None]
    order = gate_order(mlp.up_proj.out_features) if mlp.gate_proj is not None else None
    return bindings.Layer(up=weights.linear(parts, order), down=weights.linear([mlp.down_proj]))
