"""Does an oracle score chains and trees on its cache as it scores whole sequences?"""

import itertools
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from specdec.cache.compared_passes import Reading, Walk, values_of
from specdec.contracts import BITWISE_NODES, IntArray, Oracle, Scores, pad_rows

# By bytes of a number: root mean square of the differences of a node's logits, over the logits' own deviation.
TOLERANCES = {8: 1e-5, 4: 5e-4, 2: 0.1}
LEAST_CONTEXT = 12
_ROLLED_BACK = 2
_NOT_LAST = "not the last real node, or not its logits"
# Of the last passes over a prefix; the rest of it is read in two chunks, or in more if these were too wide.
_WIDTHS = (1, 2, 3, 5, 8, 4, 17)


def node_by_node(oracle: Oracle, layers: Sequence[int] = ()) -> Reading:
    """Return a reading in passes of one node, each sequence on a cache of its own, with these hidden layers."""

    def read(ids: Tensor) -> tuple[Tensor, ...]:
        cache, rows, parts = oracle.new_cache(1, len(ids)), np.zeros(1, dtype=np.int64), []
        one = torch.ones(1, dtype=torch.int64, device=ids.device)
        for node in ids.view(-1, 1, 1):
            scores = oracle.score(node, None, one, cache, rows, "all", layers)
            cache.commit(rows, None, np.ones(1, dtype=np.int64))
            assert scores.logits is not None
            parts.append([layer[0].clone() for layer in (scores.logits, *scores.hidden)])
        return tuple(torch.cat(layer) for layer in zip(*parts, strict=True))

    return read


def check_scores(
    oracle: Oracle,
    reading: Reading,
    prefixes: tuple[int, int],
    depth: int,
    *,
    layers: Sequence[int] = (),
    bit_for_bit: bool = False,
) -> None:
    """Compare what an oracle scores on its cache with whole sequences.

    Two rows of different lengths are scored together: their prefixes as chains; then trees, also level by level. A
    branch of the last tree is kept, shortened by some tokens, and followed by a chain; then a row serves another text.

    Args:
        oracle: it is not changed.
        reading: of whole sequences.
        prefixes: tokens of each row before the trees.
        depth: of the last tree, 6 or more. The larger prefix and it fit into the context.
        layers: hidden layers that are compared too; ``reading`` returns them.
        bit_for_bit: nothing may differ; else ``TOLERANCES`` says how much may.

    Raises:
        ScoresDiffer: with what differs, and where.

    Cost: about 25 passes, and ``reading`` of some 16 sequences, of which one at a time is kept.
    """
    tolerance = 0.0 if bit_for_bit else TOLERANCES[oracle.dtype.itemsize]
    cache = oracle.new_cache(3, max(prefixes) + 2 * depth)
    walk = Walk(oracle, cache, tuple(layers), tolerance)
    _read_prefixes(walk, prefixes)
    _grow(walk, 2)
    _ask_for_less(walk)
    paths = _grow(walk, depth)
    _roll_back(walk, paths)
    _plant_two_roots(walk)
    _use_again(walk, min(max(prefixes), BITWISE_NODES))
    walk.compare(reading)


def _cuts(length: int) -> Iterator[int]:
    """Yield the widths of the passes over a prefix."""
    rest = max(length - sum(_WIDTHS), 0)
    wide = min(-(-rest // 2), BITWISE_NODES)
    while rest:
        yield (width := min(wide, rest))
        rest -= width
    rest = min(length, sum(_WIDTHS))
    for width in _WIDTHS:
        if rest:
            yield min(width, rest)
            rest -= min(width, rest)


def _read_prefixes(walk: Walk, prefixes: tuple[int, int]) -> None:
    """Read a text of each row in chunks of many widths."""
    why = "widths, positions, windows, batch or the cache are not used as they are given"
    texts = [np.split(ids, np.cumsum([*_cuts(len(ids))])[:-1]) for ids in walk.ids(*prefixes)]
    walk.stands = {int(row): np.zeros(0, dtype=np.int64) for row in walk.rows}
    for number, parts in enumerate(itertools.zip_longest(*texts)):
        live = np.flatnonzero([part is not None for part in parts])
        chunks = [parts[row] for row in live]
        walk.read("a chain in chunks", why, walk.rows[live], chunks, twice=number == 0)


def _ask_for_less(walk: Walk) -> None:
    """Ask for the logits of last nodes, or for none, in rows of different lengths."""
    what, nodes = "a chain of which want='last' asks", walk.ids(3, 1)
    last = walk.score(what, walk.rows, nodes, want="last").logits
    assert last is not None
    for row, ids, logits in zip(walk.rows.tolist(), nodes, last, strict=True):
        walk.claim(what, _NOT_LAST, row, ids, [logits])
    what = "a chain of which want='none' asks"
    walk.score(what, walk.rows, nodes, want="none")
    walk.keep(what, walk.rows, nodes, None)
    walk.read("a chain after want='none'", "its keys were not left in the cache", walk.rows, walk.ids(1, 1))
    for row, number in zip(walk.rows, (4, 2), strict=True):
        walk.cut(np.array([row]), number)


def _tree(walk: Walk, depth: int) -> tuple[IntArray, IntArray]:
    """Return parents ``[N]`` of a tree, and the two paths ``[2, depth]`` that end on its last level.

    Two siblings stand on each level below the root; a random one of them has children.
    """
    chosen = np.concatenate([[0], 2 * np.arange(1, depth) - walk.random.integers(2, size=depth - 1)])
    parents = np.concatenate([[-1], chosen[:-1].repeat(2)])
    return parents, np.stack([[*chosen[:-1], 2 * depth - 3], [*chosen[:-1], 2 * depth - 2]])


def _grow(walk: Walk, depth: int) -> list[tuple[IntArray, IntArray]]:
    """Score trees by their levels, then as a whole, twice; return a path of each row's, and its ids.

    The second row's tree is a level less deep.
    """
    trees = [_tree(walk, size) for size in (depth, max(depth - 1, 2))]
    nodes = walk.ids(*(len(parents) for parents, _ in trees))
    parents = pad_rows([above for above, _ in trees])
    fewest = min(map(len, nodes))
    what = f"a tree of {len(nodes[0])} nodes, {depth} deep"
    why = "parents or 4-D masks are not obeyed, or not in every layer"
    cuts = [*sorted({0, 1, fewest // 2, fewest - 1}), parents.shape[1]]
    grown = Scores.concat(
        [
            walk.score(f"{what}, by levels", walk.rows, [ids[:stop] for ids in nodes], parents[:, :stop], first=start)
            for start, stop in itertools.pairwise(cuts)
        ]
    )
    scores = walk.score(what, walk.rows, nodes, parents)
    again = walk.score(what, walk.rows, nodes, parents)
    for b, (row, (_, paths)) in enumerate(zip(walk.rows.tolist(), trees, strict=True)):
        for path in paths:
            walk.claim(what, why, row, nodes[b][path], values_of(scores, b, path))
            walk.same(what, row, values_of(scores, b, path), values_of(again, b, path))
            walk.claim(f"{what}, by levels (first=)", why, row, nodes[b][path], values_of(grown, b, path))
    last = walk.score(what, walk.rows, nodes, parents, want="last").logits
    assert last is not None
    for b, (row, (_, paths)) in enumerate(zip(walk.rows.tolist(), trees, strict=True)):
        walk.claim(f"{what}, of which want='last' asks", _NOT_LAST, row, nodes[b][paths[1]], [last[b]])
    return [(paths[b], nodes[b][paths[b]]) for b, (_, paths) in enumerate(trees)]


def _roll_back(walk: Walk, paths: Sequence[tuple[IntArray, IntArray]]) -> None:
    """Keep a path of each row, the second one in part; take back some of both, and go on otherwise."""
    less = [paths[0], (paths[1][0][:-1], paths[1][1][:-1])]
    walk.keep("a path of a tree", walk.rows, [ids for _, ids in less], [nodes for nodes, _ in less])
    walk.cut(walk.rows, _ROLLED_BACK)
    why = "keys that were cached cannot be kept in part"
    walk.read("a chain after rollback", why, walk.rows, walk.ids(_ROLLED_BACK, 1))


def _plant_two_roots(walk: Walk) -> None:
    """Score trees after a pending token that is cached: two nodes follow what stands."""
    walk.cut(walk.rows, 2)
    nodes = walk.ids(3, 3)
    scores = walk.score("a tree with two roots", walk.rows, nodes, np.array([[-1, -1, 0]] * 2))
    for b, row in enumerate(walk.rows.tolist()):
        for path in (np.array([0, 2]), np.array([1])):
            why = "parent -1 is what stands, for every node that has it"
            walk.claim("a tree with two roots", why, row, nodes[b][path], values_of(scores, b, path))


def _use_again(walk: Walk, length: int) -> None:
    """Empty a row for another text, which goes on beside the other row."""
    rows = walk.rows[1:]
    walk.cache.reset(rows)
    walk.stands[int(rows[0])] = np.zeros(0, dtype=np.int64)
    walk.check_lengths("reset")
    why = "what a row held is not forgotten, or the other rows are not left alone"
    walk.read("a row that is used again", why, rows, walk.ids(length))
    walk.read("a row that is used again, beside another", why, walk.rows[::-1].copy(), walk.ids(2, 1))
