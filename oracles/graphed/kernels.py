"""Attention on a CUDA device, as two Triton kernels; imported only if they run, since Triton may be missing.

Both are compiled once for a model and a dtype, and nothing that depends on a pass is compiled in. So chains and trees
of all widths and batches run the same instructions.
"""

import triton
from triton import language as tl


@triton.jit
def block_of_keys(
    past, shared, own, begin, prefix_end, first_node, start, last, total, paths, node, position,
    WINDOW: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return positions and slots ``[BLOCK]`` of a block of keys, and which queries see them ``[QUERIES, BLOCK]``.

    Args:
        past: number of the block after the ``shared`` ones; below 0 for a shared one.
        own: blocks of each node from ``prefix_end`` on.
        paths: of the row; see ``attend_to_chunks`` for all others.
    """
    one = first_node + past // tl.maximum(own, 1)
    block = tl.where(past < 0, begin + (past + shared) * BLOCK, prefix_end + past % tl.maximum(own, 1) * BLOCK)
    at = block + tl.arange(0, BLOCK)
    in_tree = (at >= tl.where(past < 0, last + 1, start)) & (at <= last)
    above = tl.load(paths + one * total + at - start, mask=in_tree, other=0)
    slot = tl.where(in_tree, start + above, at)
    seen = (at[None, :] <= position[:, None]) & (node == tl.where(past < 0, node, one))[:, None]
    if WINDOW > 0:
        seen = seen & (at[None, :] > position[:, None] - WINDOW)
    return at, slot, seen


@triton.jit
def with_a_block(scores, value, top, weight, summed):
    """Return largest score, sum of the weights and weighted sum of the values, a block included."""
    highest = tl.maximum(top, tl.max(scores, 1))
    base = tl.where(highest == float("-inf"), 0.0, highest)
    weights = tl.exp2(scores - base[:, None])
    # What sees nothing in a block keeps its bits.
    kept = tl.where(highest == top, 1.0, tl.exp2(top - base))
    summed = tl.dot(weights.to(value.dtype), value, summed * kept[:, None], input_precision="ieee")
    return highest, weight * kept + tl.sum(weights, 1), summed


@triton.jit(
    do_not_specialize=["scale", "first_row", "width", "capacity", "num_chunks", "num_tiles", "total"],
    do_not_specialize_on_alignment=["rows", "starts", "positions", "paths", "tops", "totals", "sums"],
)
def attend_to_chunks(
    queries, keys, values, rows, starts, positions, paths, tops, totals, sums,
    scale, first_row, width, capacity, num_chunks, num_tiles, total,
    HEADS: tl.constexpr, GROUPS: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr,
    QUERIES: tl.constexpr, BLOCK: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Attend from a tile of queries of a row and key head to one chunk of its positions.

    Program (row * num_tiles + tile, head, chunk) has the queries ``tile * QUERIES ..`` of the head, the query heads of
    a node side by side. Keys before the tree lie in the slots of their positions, and all queries read them at once.
    Later keys are gathered in the order of positions, for one node of the tile after the other: the same product, in
    which the other queries see nothing. Without a tree, ``total`` 0, slots are positions.

    Args:
        queries: ``[N, HEADS * GROUPS, SIZE]``, N = rows * width.
        keys, values: ``[lines, SIZE]`` of a layer; a line for every row, head and slot.
        rows, starts: ``[rows]`` rows of the cache, and tokens before the tree.
        positions: ``[N]`` of the nodes; -1: padding.
        paths: ``[N, total]`` nodes on each node's path, by depth.
        tops, totals, sums: ``[nodes of this launch, heads, num_chunks]`` (sums ``[..., PADDED]``), float32, written:
            largest score, sum of the weights, weighted sum of the values. Scores are logarithms to base 2.
        scale: of scores, times log2(e).
        first_row: of the pass in this launch.
        capacity: slots of a row.
    """
    local_row, tile = tl.program_id(0) // num_tiles, tl.program_id(0) % num_tiles
    head, chunk, row = tl.program_id(1), tl.program_id(2), first_row + local_row
    start = tl.load(starts + row)
    asked = tile * QUERIES + tl.arange(0, QUERIES)
    node, group = asked // GROUPS, asked % GROUPS
    position = tl.load(positions + row * width + node, mask=node < width, other=-1)
    last = tl.max(position, 0)
    begin, end = chunk * CHUNK, tl.minimum((chunk + 1) * CHUNK, last + 1)
    if WINDOW > 0:
        lowest = tl.min(tl.where(position < 0, last, position), 0)
        begin = tl.maximum(begin, tl.maximum(lowest - WINDOW + 1, 0) // BLOCK * BLOCK)
    if begin >= end:
        return
    dim = tl.arange(0, PADDED)
    there = dim[None, :] < SIZE
    query_at = ((row * width + node) * HEADS + head) * GROUPS + group
    query = tl.load(queries + query_at[:, None] * SIZE + dim[None, :], mask=(position >= 0)[:, None] & there, other=0.0)
    line = (tl.load(rows + row) * HEADS + head) * capacity
    top = tl.full([QUERIES], float("-inf"), tl.float32)
    weight = tl.zeros([QUERIES], tl.float32)
    summed = tl.zeros([QUERIES, PADDED], tl.float32)

    # Blocks for all queries, then those of the tree, for a node at a time.
    prefix_end = tl.where(total > 0, tl.minimum(end, tl.maximum(start // BLOCK * BLOCK, begin)), end)
    shared, own = tl.cdiv(prefix_end - begin, BLOCK), tl.cdiv(end - prefix_end, BLOCK)
    first_node = tile * QUERIES // GROUPS
    num_nodes = tl.minimum(width, ((tile + 1) * QUERIES - 1) // GROUPS + 1) - first_node
    for i in range(shared + own * num_nodes):
        at, slot, seen = block_of_keys(
            i - shared, shared, own, begin, prefix_end, first_node, start, last, total,
            paths + row * width * total, node, position, WINDOW, BLOCK,
        )  # fmt: skip
        place = (line + slot)[:, None] * SIZE + dim[None, :]
        key = tl.load(keys + place, mask=(at <= last)[:, None] & there, other=0.0)
        value = tl.load(values + place, mask=(at <= last)[:, None] & there, other=0.0)
        scores = tl.dot(query, tl.trans(key), input_precision="ieee") * scale
        top, weight, summed = with_a_block(tl.where(seen, scores, float("-inf")), value, top, weight, summed)

    # Offsets into the sums of long contexts need more than 32 bits.
    to = (((local_row * width + node) * HEADS + head) * GROUPS + group).to(tl.int64) * num_chunks + chunk
    tl.store(tops + to, top, mask=position >= 0)
    tl.store(totals + to, weight, mask=position >= 0)
    tl.store(sums + to[:, None] * PADDED + dim[None, :], summed, mask=(position >= 0)[:, None])


@triton.jit(
    do_not_specialize=["first_node", "num_chunks"],
    do_not_specialize_on_alignment=["positions", "tops", "totals", "sums", "found"],
)
def combine_chunks(
    tops, totals, sums, positions, found, first_node, num_chunks,
    ALL_HEADS: tl.constexpr, SIZE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """Combine what a node's query head found in the chunks up to its position, one after the other.

    Program (node, head) writes ``found`` ``[N, ALL_HEADS, SIZE]``, zeros for padding; see ``attend_to_chunks``.
    """
    local_node, head = tl.program_id(0).to(tl.int64), tl.program_id(1)
    node = first_node + local_node
    position = tl.load(positions + node)
    dim = tl.arange(0, PADDED)
    first = 0
    if WINDOW > 0:
        first = tl.maximum(position - WINDOW + 1, 0) // CHUNK
    top, weight = float("-inf"), 0.0
    summed = tl.zeros([PADDED], tl.float32)
    for chunk in range(first, (position + CHUNK) // CHUNK):
        at = (local_node * ALL_HEADS + head) * num_chunks + chunk
        own = tl.load(tops + at)
        highest = tl.maximum(top, own)
        kept, part = tl.exp2(top - highest), tl.exp2(own - highest)
        weight = weight * kept + tl.load(totals + at) * part
        summed = summed * kept + tl.load(sums + at * PADDED + dim) * part
        top = highest
    summed = summed / tl.where(weight > 0, weight, 1.0)
    to = (node * ALL_HEADS + head) * SIZE + dim
    tl.store(found + to, summed.to(found.dtype.element_ty), mask=dim < SIZE)
