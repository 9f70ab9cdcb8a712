"""How GGUF files store numbers, and the weights that these encode: bit for bit those of ggml.

The names of a block's parts and their order are ggml's; a block's numbers are neighbours in a row.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from oracles.quantisation import Q4_0, Q4_1, Q4_K, Q6_K, Q8_0, QuantisedWeight

Bytes = NDArray[np.uint8]
# Numbers that share the scales of the K types.
_SUPER = 256


@dataclass(frozen=True)
class Storage:
    """A type of ggml.

    Args:
        name: ggml's.
        block: numbers that are stored together.
        block_bytes: bytes of a block.
        read: returns the numbers ``[rows, columns]`` of rows ``[rows, bytes]``: as floats, or as whole numbers with
            scales.
        is_widened: whether whole numbers become floats because none of our formats holds them.
    """

    name: str
    block: int
    block_bytes: int
    read: Callable[[Bytes], Tensor | QuantisedWeight]
    is_widened: bool = False


def _floats(dtype: torch.dtype) -> Callable[[Bytes], Tensor]:
    def read(rows: Bytes) -> Tensor:
        return torch.from_numpy(rows.copy()).view(dtype)

    return read


def _halves(blocks: Bytes) -> Tensor:
    """Return float16 numbers ``[..., n]`` as float32, from ``[..., 2 n]`` bytes."""
    return torch.from_numpy(blocks.copy()).view(torch.float16).float()


def _values(numbers: NDArray[np.int8], rows: int) -> Tensor:
    """Return whole numbers ``[blocks, n]`` row by row."""
    return torch.from_numpy(numbers.reshape(rows, -1))


def _nibbles(packed: Bytes) -> NDArray[np.int8]:
    """Return ``[..., 2 n]``: the low halves of bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=-1).astype(np.int8)


def _q8_0(rows: Bytes) -> QuantisedWeight:
    """A scale, 32 numbers."""
    blocks = rows.reshape(len(rows), -1, 34)
    values = blocks[..., 2:].copy().view(np.int8)
    return QuantisedWeight(_values(values, len(rows)), _halves(blocks[..., :2])[..., 0], Q8_0)


def _q4_0(rows: Bytes) -> QuantisedWeight:
    """A scale, 32 numbers that are 8 too large."""
    blocks = rows.reshape(len(rows), -1, 18)
    return QuantisedWeight(
        _values(_nibbles(blocks[..., 2:]) - np.int8(8), len(rows)), _halves(blocks[..., :2])[..., 0], Q4_0
    )


def _q4_1(rows: Bytes) -> QuantisedWeight:
    """A scale, a minimum, 32 numbers."""
    blocks = rows.reshape(len(rows), -1, 20)
    scales, minima = _halves(blocks[..., :4]).unbind(-1)
    return QuantisedWeight(
        _values(_nibbles(blocks[..., 4:]), len(rows)), scales.contiguous(), Q4_1, minima.contiguous()
    )


def _fifth_bits(packed: Bytes) -> NDArray[np.int8]:
    """Return the fifth bit of each number, ``[..., 32]``, from the 4 bytes that hold these bits."""
    return (np.unpackbits(packed, axis=-1, bitorder="little") << 4).astype(np.int8)


def _q5_0(rows: Bytes) -> Tensor:
    """A scale, fifth bits, four bits of 32 numbers that are 16 too large."""
    blocks = rows.reshape(len(rows), -1, 22)
    values = torch.from_numpy((_nibbles(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])) - np.int8(16))
    return (values.float() * _halves(blocks[..., :2])).flatten(1)


def _q5_1(rows: Bytes) -> Tensor:
    """A scale, a minimum, fifth bits, four bits of 32 numbers."""
    blocks = rows.reshape(len(rows), -1, 24)
    values = torch.from_numpy(_nibbles(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8]))
    parts = _halves(blocks[..., :4])
    return (values.float() * parts[..., :1] + parts[..., 1:]).flatten(1)


def _q4_k(rows: Bytes) -> QuantisedWeight:
    """Two float16, a scale and a minimum of 6 bits for each of 8 groups of 32, 256 numbers.

    A group's scale is the first float16 times its 6 bits; the second times the minimum's 6 bits is subtracted.
    """
    blocks = rows.reshape(len(rows), -1, 144)
    scales, minima = _group_scales(blocks)
    return QuantisedWeight(_values(_low_bits(blocks[..., 16:]), len(rows)), scales.flatten(1), Q4_K, minima.flatten(1))


def _q5_k(rows: Bytes) -> Tensor:
    """As Q4_K, with 32 bytes of fifth bits before the low four bits: bit i of byte j is that of number j of group i."""
    blocks = rows.reshape(len(rows), -1, 176)
    scales, minima = _group_scales(blocks)
    fifth = (blocks[..., None, 16:48] >> np.arange(8, dtype=np.uint8)[:, None] & 1) << 4
    values = _low_bits(blocks[..., 48:]).reshape(fifth.shape) | fifth.astype(np.int8)
    return (torch.from_numpy(values).float() * scales.unsqueeze(-1) + minima.unsqueeze(-1)).flatten(1)


def _low_bits(packed: Bytes) -> NDArray[np.int8]:
    """Return four bits of 256 numbers, 64 at a time: the low halves of 32 bytes, then the high ones."""
    return _nibbles(packed.reshape(*packed.shape[:-1], 4, 32))


def _group_scales(blocks: Bytes) -> tuple[Tensor, Tensor]:
    """Return the scales and minima ``[..., 8]`` of Q4_K and Q5_K, from the first 16 bytes of blocks."""
    parts, (small, least) = _halves(blocks[..., :4]), _sixes(blocks[..., 4:16])
    return parts[..., :1] * small, -(parts[..., 1:] * least)


def _sixes(packed: Bytes) -> tuple[Tensor, Tensor]:
    """Return ``[..., 8]`` scales and minima of 6 bits, from 12 bytes.

    Those of the first 4 groups are the low 6 bits of a byte each. The others have their 4 low bits in the last 4 bytes,
    and their 2 high bits above the 6 bits of the first groups.
    """
    first, second, rest = packed[..., :4], packed[..., 4:8], packed[..., 8:]
    scales = np.concatenate([first & 63, (rest & 15) | (first >> 6) << 4], axis=-1)
    minima = np.concatenate([second & 63, (rest >> 4) | (second >> 6) << 4], axis=-1)
    return torch.from_numpy(scales).float(), torch.from_numpy(minima).float()


def _q6_k(rows: Bytes) -> QuantisedWeight:
    """Low 4 bits and high 2 bits of 256 numbers that are 32 too large, 16 whole scales, a float16 that they share."""
    blocks = rows.reshape(len(rows), -1, 210)
    # 128 numbers at a time: 4 stretches of 32, of which byte i of the high bits holds number i of each.
    low = _nibbles(blocks[..., :128].reshape(len(rows), -1, 2, 64)).reshape(len(rows), -1, 2, 4, 32)
    both = blocks[..., 128:192].reshape(len(rows), -1, 2, 1, 32) >> np.array([0, 2, 4, 6], np.uint8)[:, None]
    values = (low | ((both & 3) << 4).astype(np.int8)) - np.int8(32)
    whole = torch.from_numpy(blocks[..., 192:208].copy().view(np.int8)).float()
    return QuantisedWeight(_values(values, len(rows)), (whole * _halves(blocks[..., 208:])).flatten(1), Q6_K)


# By ggml's number.
STORAGES: dict[int, Storage] = {
    0: Storage("F32", 1, 4, _floats(torch.float32)),
    1: Storage("F16", 1, 2, _floats(torch.float16)),
    30: Storage("BF16", 1, 2, _floats(torch.bfloat16)),
    8: Storage("Q8_0", 32, 34, _q8_0),
    2: Storage("Q4_0", 32, 18, _q4_0),
    3: Storage("Q4_1", 32, 20, _q4_1),
    6: Storage("Q5_0", 32, 22, _q5_0, is_widened=True),
    7: Storage("Q5_1", 32, 24, _q5_1, is_widened=True),
    12: Storage("Q4_K", _SUPER, 144, _q4_k),
    13: Storage("Q5_K", _SUPER, 176, _q5_k, is_widened=True),
    14: Storage("Q6_K", _SUPER, 210, _q6_k),
}
# Types that are named when they are refused.
OTHER_STORAGES = {
    9: "Q8_1", 10: "Q2_K", 11: "Q3_K", 15: "Q8_K", 16: "IQ2_XXS", 17: "IQ2_XS", 18: "IQ3_XXS", 19: "IQ1_S",
    20: "IQ4_NL", 21: "IQ3_S", 22: "IQ2_S", 23: "IQ4_XS", 24: "I8", 25: "I16", 26: "I32", 27: "I64", 28: "F64",
    29: "IQ1_M", 34: "TQ1_0", 35: "TQ2_0", 39: "MXFP4", 40: "NVFP4", 41: "Q1_0",
}  # fmt: skip
