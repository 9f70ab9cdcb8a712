"""Linear layers that train as they are and, once packed, read their weights at full bandwidth."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.quantisation import FORMATS, INT8, STORED, WHOLE, Format, QuantisedWeight
from oracles.quantisation.quantised import round_straight_through
from specdec.transfers import HOST

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
}
# The same functions as post-operations of the packed kernel: (name, algorithm).
_POST_OPERATIONS: dict[str | None, tuple[str, str | None]] = {
    None: ("none", None),
    "silu": ("swish", None),
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", None),
}
# Number of rows for which the weights are laid out; calls may have any number. 8 and 16 made passes of 8 rows slower.
_BATCH_HINT = 32


class Linear(nn.Module):
    """Compute ``act(x @ weight.T + bias)``, then add or multiply another tensor.

    Args:
        in_features, out_features: widths.
        bias: whether a bias is added.
        activation: a key of ``ACTIVATIONS``, or None.

    Attributes:
        weight: ``[out, in]``; None in a layer that is quantised or packed.
        quantised: the weight after ``quantise``; None in any other layer. It stays on the device where it was made.
        learns_as: the format to which a weight in training is rounded in every product; None: it is not rounded.

    Guarantee: packed (float32 on CPU), a row's result is bitwise the same for every number of rows of the call; if
        a single row would differ, it is computed beside a copy of itself.
    """

    def __init__(self, in_features: int, out_features: int, bias: bool = False, activation: str | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.activation = in_features, out_features, activation
        self.weight: Tensor | None = nn.Parameter(torch.empty(out_features, in_features))
        self.bias: Tensor | None = nn.Parameter(torch.empty(out_features)) if bias else None
        self.quantised: QuantisedWeight | None = None
        self.learns_as: Format | None = None
        self._packed: Tensor | None = None
        self._min_rows = 1

    @classmethod
    def stack(cls, layers: Sequence["Linear"]) -> "Linear":
        """Return one layer with the outputs of ``layers`` side by side.

        Raises:
            ValueError: some of them are quantised and others are not, or they are quantised to several formats.
        """
        weights = [layer.weight for layer in layers if layer.weight is not None]
        quantised = [layer.quantised for layer in layers if layer.quantised is not None]
        if weights and quantised:
            raise ValueError("layers of which some are quantised cannot become one: quantise all of them, or none")
        biases = [layer.bias for layer in layers if layer.bias is not None]
        bias = torch.cat(biases) if biases else None
        stacked = cls.of(torch.cat(weights), bias) if weights else cls.holding(QuantisedWeight.stack(quantised), bias)
        stacked.activation = layers[0].activation
        return stacked

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None = None) -> "Linear":
        """Return a layer with this weight ``[out, in]`` and bias."""
        with torch.device("meta"):
            layer = cls(weight.shape[1], weight.shape[0])
        layer.weight = nn.Parameter(weight.detach(), requires_grad=False)
        layer.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)
        return layer

    @classmethod
    def holding(cls, quantised: QuantisedWeight, bias: Tensor | None) -> "Linear":
        """Return a layer with this quantised weight ``[out, in]`` and bias ``[out]``."""
        layer = cls.of(quantised.values, bias)
        layer.weight, layer.quantised = None, quantised
        return layer

    def reorder(self, order: Tensor) -> None:
        """Permute the outputs; ``order`` ``[out]`` is the output at each place. Only before packing."""
        if self.quantised is not None:
            self.quantised = self.quantised.rows(order)
        if self.weight is not None:
            self.weight = nn.Parameter(self.weight.detach()[order], requires_grad=False)
        if self.bias is not None:
            self.bias = nn.Parameter(self.bias.detach()[order], requires_grad=False)

    def cut(self, out_features: int) -> "Linear":
        """Return the layer with only its first ``out_features`` outputs; itself if these are all."""
        if out_features == self.out_features:
            return self
        bias = None if self.bias is None else self.bias[:out_features]
        if self.quantised is not None:
            return Linear.holding(self.quantised.rows(slice(out_features)), bias)
        return self if self.weight is None else Linear.of(self.weight[:out_features], bias)

    @property
    def extra_bytes(self) -> int:
        """Memory of a weight that is quantised or packed, and hence no parameter; 0 if it is a parameter."""
        if self.quantised is not None:
            return self.quantised.bytes
        return 0 if self._packed is None else self.in_features * self.out_features * torch.float32.itemsize

    def quantise(self, name: str, format: Format = INT8) -> None:
        """Keep the weight only in few bits; ``name`` is the layer's, for errors. The layer can no longer train.

        Raises:
            ValueError: the weight is not finite, was packed before, or was quantised to another format.
        """
        if self.quantised is not None:
            if self.quantised.format != format:
                raise ValueError(f"{name} was quantised to {self.quantised.format.name}: begin with the plain weights")
            return
        if self.weight is None:
            raise ValueError(f"{name} was packed and has no plain weight left: quantise the model before it is packed")
        self.quantised, self.weight = QuantisedWeight.of(self.weight, name, format), None

    def round_inputs(self, name: str) -> None:
        """Compute products in whole numbers from now on, with rounded inputs; ``name`` is for errors.

        Raises:
            ValueError: the weight is not in a format of GGUF files.
        """
        whole = None if self.quantised is None else WHOLE.get(f"{self.quantised.format.name}-int8")
        if self.quantised is None or whole is None:
            raise ValueError(
                f"{name}: products of whole numbers need weights stored as {', '.join(STORED)}, as in GGUF files; for "
                "a draft give weights='q4_0-int8' in place of arithmetic: it rounds the weights too"
            )
        self.quantised = replace(self.quantised, format=whole)

    def dequantise(self) -> None:
        """Make a quantised weight plain again: value times scale in float32.

        A layer that rounds its inputs stays as it is: no plain weight is equivalent to it.
        """
        if self.quantised is not None and not self.quantised.format.rounds_inputs:
            self.weight = nn.Parameter(self.quantised.dequantise(), requires_grad=False)
            self.quantised = None

    def forward(self, x: Tensor, add: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """Return ``[..., out]`` from ``[..., in]``, plus ``add`` or times ``times``, which have the result's shape."""
        if self._packed is not None:
            return self._forward_packed(x, add, times)
        if self.quantised is None:
            assert self.weight is not None
            out = functional.linear(x, round_straight_through(self.weight, self.learns_as), self.bias)
        else:
            out = self.quantised.product(x)
            out = out if self.bias is None else out + self.bias
        if self.activation is not None:
            out = ACTIVATIONS[self.activation](out)
        if add is not None:
            return out + add
        return out if times is None else out * times

    def _forward_packed(self, x: Tensor, add: Tensor | None, times: Tensor | None) -> Tensor:
        if x.shape[0] < self._min_rows:
            twice = [None if t is None else t.expand(2, -1).contiguous() for t in (x, add, times)]
            assert twice[0] is not None
            return self._forward_packed(twice[0], twice[1], twice[2])[:1]
        other, combine = (add, "add") if times is None else (times, "mul")
        if other is not None and self.activation is None:
            fused: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, other, self._packed, self.bias, combine)
            return fused
        # A kernel with two tensors has no activation between them.
        name, algorithm = _POST_OPERATIONS[self.activation]
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, name, [None], algorithm)
        if add is not None:
            return out + add
        return out if times is None else out * times

    def pack(self) -> None:
        """Lay the weights out for small batches, in float32 on a CPU; elsewhere nothing changes.

        Afterwards calls take ``[rows, in]`` and the layer cannot train. The plain weight is freed.
        """
        if self.weight is None or self.weight.dtype != torch.float32 or self.weight.device.type != "cpu":
            return
        weight = self.weight.detach().contiguous()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, _BATCH_HINT)
        self.weight = None
        self._min_rows = 1 if self._single_row_agrees() else 2

    def _single_row_agrees(self) -> bool:
        x = torch.randn(8, self.in_features, generator=torch.Generator().manual_seed(0), device=HOST)
        together = self._forward_packed(x, None, None)
        return all(torch.equal(self._forward_packed(x[i : i + 1], None, None)[0], together[i]) for i in range(8))


def plain_tensors(weight: Tensor) -> list[Tensor]:
    """Return the plain tensors of a weight ``[...]``: itself, or those inside one that another library quantised."""
    if not hasattr(weight, "__tensor_flatten__"):
        return [weight]
    names, _ = weight.__tensor_flatten__()
    return [part for name in names for part in plain_tensors(getattr(weight, name))]


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits ``[..., V]``, widened if they are in half precision."""
    return logits.float() if logits.itemsize < torch.float32.itemsize else logits


def linear_layers(module: nn.Module) -> list[tuple[str, Linear]]:
    """Return the linear layers of a module, with their names."""
    return [(name, part) for name, part in module.named_modules() if isinstance(part, Linear)]


def weight_type_of(module: nn.Module) -> str | None:
    """Return the name of the format of a module's linear layers, else of their dtype; None if all are packed."""
    layers = [layer for _, layer in linear_layers(module)]
    formats = [layer.quantised.format.name for layer in layers if layer.quantised is not None]
    dtypes = [str(layer.weight.dtype).removeprefix("torch.") for layer in layers if layer.weight is not None]
    return next(reversed(formats or dtypes), None)


def weight_bytes_of(module: nn.Module) -> int:
    """Return the memory of a module's weights, quantised, packed or neither; shared memory counts once."""
    parts = [part for parameter in module.parameters() for part in plain_tensors(parameter)]
    plain = {part.untyped_storage().data_ptr(): part.untyped_storage().nbytes() for part in parts}
    return sum(plain.values()) + sum(layer.extra_bytes for _, layer in linear_layers(module))


def round_inputs(module: nn.Module) -> None:
    """Compute all products of a module's linear layers in whole numbers from now on, in place.

    Raises:
        ValueError: a layer's weight is not in a format of GGUF files; the message names the layer.
    """
    for name, layer in linear_layers(module):
        layer.round_inputs(name)


def store_layers(module: nn.Module, weight_type: str) -> None:
    """Round the weights of a module's linear layers to a type, in place; see ``Transformer.store``."""
    for name, layer in linear_layers(module):
        if weight_type in FORMATS:
            layer.quantise(name, FORMATS[weight_type])
        else:
            round_weight(layer, name, weight_type)


def dequantise_layers(module: nn.Module) -> None:
    """Make a module's quantised weights plain again, in place; see ``Transformer.dequantise``."""
    for _, layer in linear_layers(module):
        layer.dequantise()


def round_weight(layer: Any, name: str, dtype_name: str) -> None:
    """Round the weight of a linear layer or an embedding to a float dtype, in place; ``name`` is for errors.

    Raises:
        ValueError: there is no plain weight left, or one of its numbers is not finite in that dtype.
    """
    if layer.weight is None:
        raise ValueError(f"{name} was quantised or packed and has no plain weight left: store the model before")
    rounded = layer.weight.detach().to(getattr(torch, dtype_name))
    if not bool(rounded.isfinite().all()):
        raise ValueError(f"{name}: a weight is NaN, infinite or too large for {dtype_name}")
    layer.weight = nn.Parameter(rounded, requires_grad=False)
