"""Blocks of weights as ``storages.h`` reads them: 32 columns side by side."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from oracles.quantisation import FORMATS, INT4, INT8, INT8_DYNAMIC, STORED, WHOLE, QuantisedWeight

BLOCK, WIDTH = 32, 16
# Inputs that one step of int4 or int8-dynamic weights takes.
_STEP = 4


def plain_blocks(weight: Tensor) -> Tensor:
    """Return a view of ``[columns, inputs]`` as blocks of 32 columns, side by side for every input."""
    inputs = weight.shape[1]
    if weight.dtype != torch.bfloat16:
        return weight.reshape(-1, BLOCK, inputs).transpose(1, 2)
    return _pairs(weight)


def weight_blocks(weight: QuantisedWeight) -> Tensor:
    """Return the blocks ``[blocks, ...]`` of a quantised weight ``[columns, inputs]`` with padded columns."""
    return _LAYOUTS[weight.format.name](weight)


def is_readable(weight: QuantisedWeight) -> bool:
    """Tell whether the native pass reads a weight as it is.

    It knows the formats of ``FORMATS`` and of GGUF files; int4 scales must be bfloat16 numbers whose product with 24
    is finite in float32.
    """
    if weight.format in (*STORED.values(), *WHOLE.values()):
        return True
    if weight.format not in FORMATS.values():
        return False
    halves = torch.equal(weight.scales.bfloat16().float(), weight.scales)
    return weight.format.group is None or (halves and bool((24 * weight.scales).isfinite().all()))


def _pairs(columns: Tensor) -> Tensor:
    """Return ``[columns, n]`` as ``[blocks, n, 16, halves]``: column c beside column c + 16."""
    return columns.reshape(-1, 2, WIDTH, columns.shape[1]).permute(0, 3, 2, 1)


def _int4_blocks(weight: QuantisedWeight) -> Tensor:
    """Return ``[blocks, groups, bytes]``: a group's scales, then bytes of two columns, four inputs side by side."""
    group = INT4.group
    assert group is not None
    padded = functional.pad(weight.values, (0, -weight.values.shape[1] % group))
    halves = _pairs((padded + 8).to(torch.uint8))  # [blocks, inputs, 16, halves]
    both = halves[..., 0] | halves[..., 1] << 4
    steps = both.view(len(both), -1, group // _STEP, _STEP, WIDTH).transpose(3, 4)
    scales = _pairs(weight.scales.bfloat16()).contiguous().view(torch.uint8)  # [blocks, groups, 16, bytes]
    return torch.cat([scales.flatten(2), steps.flatten(2)], dim=2)


def _dynamic_blocks(weight: QuantisedWeight) -> Tensor:
    """Return ``[blocks, bytes]``: for each sum, minus what the inputs' offset of 128 adds to it; then the steps."""
    values = functional.pad(weight.values, (0, -weight.values.shape[1] % _STEP))
    steps = values.view(-1, BLOCK, values.shape[1] // _STEP, _STEP).transpose(1, 2)
    excess = -128 * values.sum(dim=1, dtype=torch.int32).view(-1, BLOCK)
    return torch.cat([excess.view(torch.int8), steps.flatten(1)], dim=1)


def _byte_blocks(weight: QuantisedWeight) -> Tensor:
    """Return ``[blocks, groups, bytes]``: a group's scales and minima, then steps of one word for each column."""
    group, bits = weight.format.group, weight.format.bits
    assert group is not None
    values = functional.pad(weight.values, (0, -weight.values.shape[1] % group)).to(torch.int16)
    above = 0 if weight.format.minima else 2 ** (bits - 1)
    words = (values + above).to(torch.uint8).view(-1, BLOCK, values.shape[1] // group, bits, 32 // bits // _STEP, _STEP)
    steps = words[..., 0, :] if bits == 8 else words[..., 0, :] | words[..., 1, :] << 4
    steps = steps.permute(0, 2, 3, 1, 4)  # [blocks, groups, steps, columns, bytes]
    heads = [weight.scales] if weight.minima is None else [weight.scales, weight.minima]
    # [blocks, groups, columns] halves each, as bytes
    halves = [h.half().view(-1, BLOCK, h.shape[1]).transpose(1, 2).contiguous().view(torch.uint8) for h in heads]
    return torch.cat([*halves, steps.flatten(2)], dim=2)


_LAYOUTS: dict[str, Callable[[QuantisedWeight], Tensor]] = {
    INT8.name: lambda weight: plain_blocks(weight.values),
    INT4.name: _int4_blocks,
    INT8_DYNAMIC.name: _dynamic_blocks,
    **dict.fromkeys((*STORED, *WHOLE), _byte_blocks),
}
