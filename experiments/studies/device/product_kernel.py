"""A matrix product of fixed tiles, as a Triton kernel: a row is summed in the same order, however many there are."""

import triton
from triton import language as tl


@triton.jit(do_not_specialize=["rows"])
def product_kernel(
    inputs, weight, outputs, rows,
    INNER: tl.constexpr, OUTER: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Write ``outputs`` ``[rows, OUTER]`` = inputs ``[rows, INNER]`` times ``weight`` ``[OUTER, INNER]``.

    Program (tile of columns, tile of rows) sums over all of INNER, a block after the other.
    """
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    summed = tl.zeros([ROWS, COLUMNS], tl.float32)
    for first in range(0, INNER, BLOCK):
        at = first + tl.arange(0, BLOCK)
        x = tl.load(
            inputs + row[:, None] * INNER + at[None, :], mask=(row < rows)[:, None] & (at < INNER)[None, :], other=0.0
        )
        w = tl.load(
            weight + column[:, None] * INNER + at[None, :],
            mask=(column < OUTER)[:, None] & (at < INNER)[None, :],
            other=0.0,
        )
        summed = tl.dot(x, tl.trans(w), summed, input_precision="ieee")
    there = (row < rows)[:, None] & (column < OUTER)[None, :]
    tl.store(outputs + row[:, None] * OUTER + column[None, :], summed.to(outputs.dtype.element_ty), mask=there)
