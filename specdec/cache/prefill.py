"""Prefill: prompts without their last token go into the cache, in chunks, with logits only if they are wanted."""

from collections.abc import Iterator, Sequence

import numpy as np

from specdec.contracts import BITWISE_NODES, Cache, IntArray, Needs, Oracle, Scores, ids_device, pad_rows
from specdec.transfers import together_on_device

CHUNK = BITWISE_NODES


def prefill(
    oracle: Oracle, cache: Cache, rows: IntArray, prompts: Sequence[IntArray], needs: Needs | None = None
) -> tuple[Scores | None, int]:
    """Put all but the last token of each prompt into the cache, except those that are there already.

    Args:
        oracle: scores the chunks.
        cache: of that oracle.
        rows: ``[B]`` cache rows. They may hold the first tokens of their prompts, but none if scores are needed.
        prompts: ids of each row, ragged.
        needs: which scores are returned, ``[B, L, ...]`` over the L scored tokens of the longest prompt (beyond a row's
            own tokens they are arbitrary); None: none.

    Returns:
        The scores asked for (None if nothing was asked for, or all prompts have one id), and the number of passes.

    Cost: ceil(L / 128) passes of at most 128 tokens a row; more if rows that hold much already lack the room to be
        padded to the width of others.
    """
    rests = [prompt[start:-1] for prompt, start in zip(prompts, cache.lengths[rows].tolist(), strict=True)]
    lengths = np.array([len(rest) for rest in rests], dtype=np.int64)
    ids = pad_rows(rests)
    needs = Needs() if needs is None or not needs.prompt else needs
    wanted = needs.logits or bool(needs.hidden)
    want, hidden = "all" if needs.logits else "none", needs.hidden
    collected: list[Scores] = []
    for start in range(0, ids.shape[1], CHUNK):
        counts = np.clip(lengths - start, 0, CHUNK)
        room = cache.capacity - cache.lengths[rows]
        for live in [np.arange(len(rows))] if wanted else _passes(counts, room):
            some = counts[live]
            given = ids[live, start : start + int(some.max())], np.maximum(some, 1)
            chunk, nodes = together_on_device(*given, device=ids_device(oracle))
            scores = oracle.score(chunk, None, nodes, cache, rows[live], want, hidden)  # type: ignore[arg-type]
            cache.commit(rows[live], None, some)
            collected.append(scores)
    return (Scores.concat(collected) if wanted and collected else None), len(collected)


def _passes(counts: IntArray, room: IntArray) -> Iterator[IntArray]:
    """Yield the rows of each pass, until each has read ``counts`` ``[B]`` tokens.

    A pass takes all rows that are left and have ``room`` ``[B]`` for the most tokens.
    """
    left = np.flatnonzero(counts)
    while left.size:
        # A row without room for its own tokens is told so by the pass.
        fits = np.maximum(room, counts)[left] >= counts[left].max()
        yield left[fits]
        left = left[~fits]
