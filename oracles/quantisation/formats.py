"""What a linear layer's weight may be rounded to."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Format:
    """Whole numbers times scales.

    Args:
        name: that ``oracles.load`` knows it by.
        bits: of a weight.
        group: neighbouring inputs of an output that share a scale; None: all of them.
        half_scales: whether scales are bfloat16 numbers, else float32.
        rounds_inputs: whether a product's inputs are rounded as well, to int8 with a scale for each row.

    Raises:
        ValueError: values do not fit int8, or a group is empty.
    """

    name: str
    bits: int
    group: int | None = None
    half_scales: bool = False
    rounds_inputs: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8 or (self.group is not None and self.group < 1):
            raise ValueError(f"a format has 2 to 8 bits and groups of 1 or more, not {self.bits} and {self.group}")

    @property
    def largest(self) -> int:
        """The largest magnitude that it holds on both sides of zero."""
        return int(2 ** (self.bits - 1) - 1)


INT8 = Format("int8", 8)
INT4 = Format("int4", 4, group=32, half_scales=True)
INT8_DYNAMIC = Format("int8-dynamic", 8, rounds_inputs=True)
# Types of weights that are no format but a float dtype.
FLOATS = ("float32", "bfloat16", "float16")
FORMATS: dict[str, Format] = {format.name: format for format in (INT8, INT4, INT8_DYNAMIC)}


def bytes_each(weight_type: str) -> float:
    """Return the bytes that a weight of a dtype or format takes, scales of groups included, those of outputs not."""
    if weight_type not in FORMATS:
        dtype: torch.dtype = getattr(torch, weight_type)
        return dtype.itemsize
    format = FORMATS[weight_type]
    return format.bits / 8 + (0 if format.group is None else (2 if format.half_scales else 4) / format.group)
