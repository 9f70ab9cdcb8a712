"""The formats to which a linear layer's weight may be rounded, or in which it may be stored."""

from dataclasses import dataclass, replace

import torch


@dataclass(frozen=True)
class Format:
    """Whole numbers times scales, plus a minimum if there is one.

    Args:
        name: by which ``oracles.load`` knows it.
        bits: of a weight.
        group: neighbouring inputs of an output that share a scale; None: all of them.
        scales: the dtype whose numbers the scales are (held as float32).
        minima: whether each group has a minimum too, which is added to value times scale: values then count from 0.
        rounds_inputs: whether a product's inputs are rounded to int8 as well: with a scale for each row, or, if weights
            have groups, for each group of a row.

    Raises:
        ValueError: values do not fit int8, or a group is empty.
    """

    name: str
    bits: int
    group: int | None = None
    scales: torch.dtype = torch.float32
    minima: bool = False
    rounds_inputs: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8 or (self.group is not None and self.group < 1):
            raise ValueError(f"a format has 2 to 8 bits and groups of 1 or more, not {self.bits} and {self.group}")

    @property
    def largest(self) -> int:
        """The largest magnitude that it holds on both sides of zero; with minima, the largest number."""
        return int(2 ** (self.bits - (not self.minima)) - 1)


INT8 = Format("int8", 8)
INT4 = Format("int4", 4, group=32, scales=torch.bfloat16)
INT8_DYNAMIC = Format("int8-dynamic", 8, rounds_inputs=True)
# Types of weights that are float dtypes, not formats.
FLOATS = ("float32", "bfloat16", "float16")
# What GGUF files store. A group of q4_0 and q8_0 may hold one number below minus the largest.
Q8_0 = Format("q8_0", 8, group=32, scales=torch.float16)
Q4_0 = Format("q4_0", 4, group=32, scales=torch.float16)
Q4_1 = Format("q4_1", 4, group=32, scales=torch.float16, minima=True)
STORED: dict[str, Format] = {format.name: format for format in (Q8_0, Q4_0, Q4_1)}
# The same, in products of whole numbers.
WHOLE: dict[str, Format] = {
    f"{name}-int8": replace(format, name=f"{name}-int8", rounds_inputs=True) for name, format in STORED.items()
}
# What weights can be rounded to.
FORMATS: dict[str, Format] = {format.name: format for format in (INT8, INT4, INT8_DYNAMIC, WHOLE["q4_0-int8"])}

# Types of GGUF files whose groups have products as scales, which float16 cannot hold: products take them as floats.
Q4_K = Format("q4_k", 4, group=32, minima=True)
Q6_K = Format("q6_k", 6, group=16)


def rounds_inputs(weight_type: str) -> bool:
    """Tell whether products with weights of a type, a dtype's or format's name, are of whole numbers."""
    format = (FORMATS | WHOLE).get(weight_type)
    return format is not None and format.rounds_inputs


def bytes_each(weight_type: str) -> float:
    """Return the bytes of a weight in a dtype or one of ``FORMATS``, with scales of groups but not those of outputs."""
    format = FORMATS.get(weight_type)
    if format is None:
        dtype: torch.dtype = getattr(torch, weight_type)
        return dtype.itemsize
    scales = 0 if format.group is None else format.scales.itemsize / format.group
    return format.bits / 8 + scales
