"""Lay weights out as the native pass reads them: see ``model.h``."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn import functional

from oracles.blocks import Norm as PlainNorm
from oracles.config import TransformerConfig
from oracles.linear import Linear as PlainLinear
from oracles.native import bindings

BLOCK, WIDTH = 32, 16


def rounded(size: int, unit: int) -> int:
    """Return ``size`` rounded up to a multiple of ``unit``."""
    return -(-size // unit) * unit


@dataclass
class Weights:
    """The tensors that a native model points into; they live as long as this does."""

    tensors: list[Tensor] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        """Memory of all of them."""
        return sum(tensor.nbytes for tensor in self.tensors)

    def address(self, tensor: Tensor) -> int:
        """Keep a contiguous tensor and return where it lies."""
        self.tensors.append(tensor)
        return tensor.data_ptr()

    def vector(self, values: Tensor | None, size: int, order: Tensor | None = None) -> int | None:
        """Keep float32 values, padded with zeros to ``size``, and return where they lie; None for None."""
        if values is None:
            return None
        wide = values.detach().float().cpu()
        wide = functional.pad(wide, (0, size - len(wide))) if order is None else _taken(wide, order)
        return self.address(wide.contiguous().clone())

    def norm(self, norm: PlainNorm) -> bindings.Norm:
        """Keep a norm of the residual stream."""
        size = norm.weight.numel()
        padded = rounded(size, WIDTH)
        return bindings.Norm(self.vector(norm.weight, padded), self.vector(norm.bias, padded), norm.eps, size)

    def linear(
        self, layers: Sequence[PlainLinear], order: Tensor | None = None, inputs: Tensor | None = None
    ) -> bindings.Linear:
        """Keep linear layers as one.

        Args:
            layers: whose outputs stand side by side.
            order: ``[columns]`` the output at each column, -1 for one of zeros; None: as they are.
            inputs: the same for the inputs.
        """
        whole, scales = _side_by_side(layers)
        if order is None:
            order = torch.arange(len(whole), device="cpu")
        order = functional.pad(order, (0, rounded(len(order), BLOCK) - len(order)), value=-1)
        whole = _taken(whole, order)
        if inputs is not None:
            whole = _taken(whole.t(), inputs).t()
        biases = [layer.bias.detach().float().cpu() for layer in layers if layer.bias is not None]
        return bindings.Linear(
            self.address(_blocks(whole)),
            self.vector(torch.cat(biases), len(order), order) if biases else None,
            self.vector(scales, len(order), order),
            whole.shape[1],
            len(order),
            storage_of(whole),
            0,
        )

    def table(self, values: Tensor) -> tuple[int, int]:
        """Keep a table ``[rows, columns]`` as it is stored; return where it lies, and its storage."""
        whole = _stored(values).contiguous()
        return self.address(whole), storage_of(whole)


def storage_of(weight: Tensor) -> int:
    """Return the number by which the native pass knows a dtype."""
    return bindings.STORAGES[str(weight.dtype).removeprefix("torch.")]


def _stored(weight: Tensor) -> Tensor:
    """Return a weight on the host as it is stored, as float32 where the native pass does not read its type."""
    known = str(weight.dtype).removeprefix("torch.") in bindings.STORAGES
    return weight.detach().to("cpu", weight.dtype if known else torch.float32)


def _side_by_side(layers: Sequence[PlainLinear]) -> tuple[Tensor, Tensor | None]:
    """Return the weights of layers as one, ``[columns, inputs]``, and a scale for each column if they are int8."""
    quantised = [layer.quantised for layer in layers if layer.quantised is not None]
    if len(quantised) == len(layers):
        parts = [part.values.cpu() for part in quantised]
        return torch.cat(parts), torch.cat([part.scales for part in quantised]).squeeze(1)
    plain = [_plain(layer) for layer in layers]
    # Parts that are stored differently are widened, exactly.
    same = plain[0].dtype if len({part.dtype for part in plain}) == 1 else torch.float32
    return plain[0] if len(plain) == 1 else torch.cat([part.to(same) for part in plain]), None


def _plain(layer: PlainLinear) -> Tensor:
    if layer.quantised is not None:
        return layer.quantised.dequantised().cpu()
    if layer.weight is None:
        raise ValueError("a layer was packed for eager passes and has no plain weight left: give one that was not")
    return _stored(layer.weight)


def _taken(values: Tensor, order: Tensor) -> Tensor:
    """Return ``values[order]`` along the first dimension, zeros where ``order`` is -1."""
    if torch.equal(order, torch.arange(len(values), device="cpu")):
        return values
    taken = values[order.clamp(min=0)]
    taken[order < 0] = 0
    return taken


def _blocks(weight: Tensor) -> Tensor:
    """Return ``[columns, inputs]`` in blocks of 32 columns that lie side by side for every input."""
    inputs = weight.shape[1]
    if weight.dtype != torch.bfloat16:
        return weight.view(-1, BLOCK, inputs).transpose(1, 2).contiguous()
    # [blocks, halves, 16, inputs] -> [blocks, inputs, 16, halves]: a word holds the columns c and c + 16.
    return weight.reshape(-1, 2, WIDTH, inputs).permute(0, 3, 2, 1).contiguous()


def head_order(config: TransformerConfig) -> Tensor:
    """Return the ``[padded head]`` order of a head's dimensions: rotary pairs apart by half, zeros (-1) at the end.

    Dot products do not see a permutation of the dimensions that queries and keys share.
    """
    order = torch.arange(config.head_size, device="cpu")
    if config.rope_interleaved:
        order[: config.rotary_size] = order[: config.rotary_size].view(-1, 2).t().flatten()
    return functional.pad(order, (0, rounded(config.head_size, WIDTH) - config.head_size), value=-1)


def attention_order(config: TransformerConfig) -> Tensor:
    """Return the order of the attention's outputs: by key-value head its queries, its key, its value."""
    size, groups = config.head_size, config.num_heads // config.kv_heads
    turned = head_order(config)
    plain = functional.pad(torch.arange(size, device="cpu"), (0, len(turned) - size), value=-1)
    columns = []
    for head in range(config.kv_heads):
        columns += [_shifted(turned, (head * groups + i) * size) for i in range(groups)]
        columns.append(_shifted(turned, (config.num_heads + head) * size))
        columns.append(_shifted(plain, (config.num_heads + config.kv_heads + head) * size))
    return torch.cat(columns)


def heads_order(config: TransformerConfig) -> Tensor:
    """Return the order of the inputs of the projection back: every query head padded."""
    plain = torch.arange(config.head_size, device="cpu")
    padded = functional.pad(plain, (0, rounded(config.head_size, WIDTH) - config.head_size), value=-1)
    return torch.cat([_shifted(padded, head * config.head_size) for head in range(config.num_heads)])


def gate_order(inner: int) -> Tensor:
    """Return the order of the outputs of gate and up projection: 16 of the one, the same 16 of the other."""
    gates = functional.pad(torch.arange(inner, device="cpu"), (0, rounded(inner, WIDTH) - inner), value=-1)
    pairs = torch.stack([gates.view(-1, WIDTH), _shifted(gates, inner).view(-1, WIDTH)], dim=1)
    return pairs.flatten()


def _shifted(order: Tensor, by: int) -> Tensor:
    return torch.where(order < 0, order, order + by)
