"""Draft n-grams that the oracle itself made while decoding: its own Jacobi trajectories, gathered as it goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    Draft,
    DraftSession,
    IntArray,
    Needs,
    Offers,
    Oracle,
    Randomness,
    Scores,
)
from specdec.drafting import compact
from specdec.theory import check_count, check_flag
from specdec.transfers import on_device, on_host


class Lookahead:
    """Draft from n-grams that are collected in the passes that verify them; no second model.

    Every pass carries two branches below the pending token. The *lookahead branch* is a window of W = ``window``
    columns and N - 1 levels, N = ``ngram``. Level 0 is the pending token and a guess of what follows it; a node of a
    higher level hangs on the node of its column one level below. So the node of level l and column j stands at depth
    j + l and sees level 0 up to its column, then the lower levels of its column: the last N - 1 steps of a Jacobi
    iteration. These nodes are scouts. The oracle's likeliest id after the last level completes one n-gram of N ids
    per column: it enters the row's pool, and that id becomes the new last level, while the others move down by one and
    the oldest leaves. The *verification branch* holds up to G = ``guesses`` continuations of N - 1 ids: what follows
    the pending token in the pool's n-grams that begin with it, newest first; those that begin alike share nodes.

    Args:
        window: W, columns of the lookahead branch; 0 leaves it out, and the pool has only what the text gives it.
        ngram: N, length of the n-grams, 2 or more.
        guesses: G, continuations verified in a pass, 1 or more.
        pool_size: n-grams kept for each row, the newest win; 0 keeps none, so that nothing is ever guessed.
        from_prompt: the pool takes the n-grams of the prompt and of the output, too.

    Raises:
        ValueError: an argument out of range.

    Guarantee: drafts are point masses, so they are lossless under every lossless rule that judges trees. Reproducible:
        a row's window and pool follow from its own request and begin anew with it. Neither branch sees the other: they
        share the pending token and what stands before it. If the budget is short, guesses are cut to it first. Then
        the window keeps the first columns that fit, or none: column j needs a depth of j + N - 2, and w columns need
        w (N - 1) - 1 nodes. A column that is left out stays as it is until it is scored again.
    Cost: no pass of its own; up to (W + G)(N - 1) nodes a row and pass, the pending token included: W (N - 1) - 1
        scouts and G (N - 1) verified nodes. On the host O(P (W + N) + P log P) a row and step for a pool of P n-grams,
        which takes 8 P (N + 1) bytes a row. One copy of W ids a row from the device in ``sync``, when the engine has
        waited for the same pass already.
    Source: Fu, Bailis, Stoica and Zhang 2024 (arXiv 2402.02057); layout and pool as in their program
        (hao-ai-lab/LookaheadDecoding, whose ``POOL_FROM_PROMPT`` is ``from_prompt``).
    Deviations:

        - The window begins full, with the last ids of the prompt in their order; theirs begins with level 0 drawn from
          the prompt, and verifies nothing until N - 2 passes have filled the other levels.
        - The pool bounds the n-grams of a row. Theirs keeps G for every first id, and any number of first ids.
        - Guesses are merged into a trie; theirs repeat what they share.
        - An EOS in the window stays; theirs is replaced.
        - The window moves by one position a step, however many tokens were accepted: their default
          (``ALWAYS_FWD_ONE``).
    """

    name = "lookahead"
    needs = Needs(logits=True, prompt=False)
    vocab_size = None

    def __init__(
        self,
        window: int = 3,
        ngram: int = 5,
        guesses: int = 3,
        pool_size: int = 1024,
        from_prompt: bool = True,
    ) -> None:
        check_count("window", window, 0)
        check_count("ngram", ngram, 2)
        check_count("guesses", guesses, 1)
        check_count("pool_size", pool_size, 0)
        check_flag("from_prompt", from_prompt)
        self.window, self.ngram, self.guesses = window, ngram, guesses
        self.pool_size, self.from_prompt = pool_size, from_prompt

    @property
    def offers(self) -> Offers:
        """What it declares."""
        num_levels = self.ngram - 1
        depth = max(num_levels, self.window + num_levels - 2 if self.window else 0)
        nodes = max(self.window * num_levels - 1, 0) + self.guesses * num_levels
        return Offers(trees=True, max_depth=depth, max_nodes=nodes)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return _Session(self, oracle, num_rows)


class NGramPool:
    """Hold the newest distinct n-grams of every row, up to a number.

    Args:
        num_rows: rows.
        size: P, n-grams kept a row.
        ngram: N, their length.
    """

    def __init__(self, num_rows: int, size: int, ngram: int) -> None:
        self.size, self._clock = size, 0
        # In no order; an empty slot holds -1 and was born before all others.
        self._ids = np.full((num_rows, ngram, size), -1, dtype=np.int64)
        self._born = np.full((num_rows, size), -1, dtype=np.int64)

    def clear(self, rows: IntArray) -> None:
        """Empty some rows ``[R]``."""
        self._ids[rows], self._born[rows] = -1, -1

    def fill(self, row: int, ids: IntArray) -> None:
        """Put the n-grams of a text ``[L]`` into an empty row. Cost: O(L log L)."""
        length = self._ids.shape[1]
        if self.size == 0 or len(ids) < length:
            return
        newest_first = sliding_window_view(ids, length)[::-1]
        _, first = np.unique(newest_first, axis=0, return_index=True)
        kept = newest_first[np.sort(first)[: self.size]][::-1]
        self._ids[row, :, : len(kept)] = kept.T
        self._born[row, : len(kept)] = self._clock + np.arange(len(kept))
        self._clock += len(kept)

    def add(self, rows: IntArray, ngrams: IntArray) -> None:
        """Put n-grams ``[B, K, N]`` (-1 in the first place: none) into ``rows``, oldest first; equal ones become new.

        Cost: O(B (K P + P log P + K^2 N)).
        """
        count = ngrams.shape[1]
        if self.size == 0 or count == 0:
            return
        self._remove(rows, ngrams)
        is_repeated = (ngrams[:, :, None] == ngrams[:, None]).all(3) & ~np.tri(count, dtype=np.bool_)
        is_new = (ngrams[:, :, 0] >= 0) & ~is_repeated.any(2)
        left = is_new[:, ::-1].cumsum(1)[:, ::-1]  # the newest has 1
        b, k = np.nonzero(is_new & (left <= self.size))
        oldest = self._born[rows].argsort(1, kind="stable")[:, :count]
        slots = oldest[b, np.minimum(left[b, 0], self.size) - left[b, k]]
        self._ids[rows[b], :, slots] = ngrams[b, k]
        self._born[rows[b], slots] = self._clock + k
        self._clock += count

    def _remove(self, rows: IntArray, ngrams: IntArray) -> None:
        """Empty the slots that hold one of the n-grams."""
        first = np.where(ngrams[:, :, 0] >= 0, ngrams[:, :, 0], -2)  # equals no empty slot
        b, slots, k = np.nonzero(self._ids[rows, 0][:, :, None] == first[:, None])
        is_equal = (self._ids[rows[b], :, slots] == ngrams[b, k]).all(1)
        at = rows[b[is_equal]], slots[is_equal]
        self._ids[at[0], :, at[1]], self._born[at] = -1, -1

    def beginning_with(self, rows: IntArray, first: IntArray, count: int) -> IntArray:
        """Return ``[B, count, N - 1]`` the ids after ``first`` ``[B]`` in the newest n-grams that begin with it.

        The newest comes first; -1 stands for none. Cost: O(B P).
        """
        found = np.full((len(rows), count, self._ids.shape[1] - 1), -1, dtype=np.int64)
        b, slots = np.nonzero(self._ids[rows, 0] == first[:, None])
        newest_first = np.lexsort((-self._born[rows[b], slots], b))
        slots = slots[newest_first]
        rank = np.arange(len(b)) - np.searchsorted(b, b)  # b ascends, before and after sorting
        kept = rank < count
        found[b[kept], rank[kept]] = self._ids[rows[b[kept]], 1:, slots[kept]]
        return found


@dataclass(frozen=True)
class _Part:
    """Nodes of all rows in one order, some of them left out; a parent is a place in that order, -1 the root."""

    tokens: IntArray
    parents: IntArray
    kept: BoolArray


def _trie(guesses: IntArray, depth: IntArray, nodes: IntArray) -> _Part:
    """Return the guesses ``[B, G, D]`` as nodes in the order [G, D], each beginning kept once, within the limits.

    Args:
        guesses: -1 if there is none.
        depth: ``[B]`` longest path.
        nodes: ``[B]`` most nodes.
    """
    batch, count, length = guesses.shape
    agree = np.logical_and.accumulate(guesses[:, :, None] == guesses[:, None], axis=3)  # [B, G, G, D]
    first = agree.argmax(2)  # [B, G, D]: the first guess that begins with the same ids
    kept = (guesses >= 0) & (first == np.arange(count)[:, None]) & (np.arange(length) < depth[:, None, None])
    parents = np.full_like(guesses, -1)
    parents[:, :, 1:] = first[:, :, :-1] * length + np.arange(length - 1)
    kept = kept.reshape(batch, -1)
    return _Part(guesses.reshape(batch, -1), parents.reshape(batch, -1), kept & (kept.cumsum(1) <= nodes[:, None]))


def _columns(window: IntArray, num_columns: IntArray) -> _Part:
    """Return the first columns of the windows ``[B, N - 1, W]`` as nodes in the order [N - 1, W], without the root."""
    batch, levels, width = window.shape
    flat = (batch, levels * width)
    below = np.arange(levels * width).reshape(levels, width) - width
    below[0] = np.arange(width) - 1
    # The root is level 0 of column 0: it is no node, and what hangs on it has the parent -1.
    parents = np.where(below == 0, -1, below).reshape(-1)
    kept = np.repeat((np.arange(width) < num_columns[:, None])[:, None], levels, axis=1)
    kept[:, :1, :1] = False
    return _Part(window.reshape(flat), np.broadcast_to(parents, flat), kept.reshape(flat))


def _join(guesses: _Part, columns: _Part) -> tuple[Draft, IntArray]:
    """Return both branches as one draft without gaps, and the place ``[B, (N - 1) W]`` of each column's nodes in it.

    A node that is left out has no place of its own; the root, left out of the columns, has -1.
    """
    num_guessed = guesses.tokens.shape[1]
    tokens = np.concatenate([guesses.tokens, columns.tokens], axis=1)
    above = np.where(columns.parents < 0, -1, columns.parents + num_guessed)
    kept = np.concatenate([guesses.kept, columns.kept], axis=1)
    trees = compact(kept, np.concatenate([guesses.parents, above], axis=1))
    moved = tokens[np.arange(len(tokens))[:, None], trees.order]
    draft = Draft(
        tokens=torch.from_numpy(np.where(trees.is_padding, 0, moved)),
        num_nodes=torch.from_numpy(trees.num_nodes),
        parents=torch.from_numpy(trees.parents),
        is_scout=torch.from_numpy(trees.order >= num_guessed),
    )
    places = kept.cumsum(1) - 1
    places[:, num_guessed : num_guessed + 1] = -1
    return draft, places[:, num_guessed:]


def _best_at(scores: Scores, nodes: IntArray) -> IntArray:
    """Return the ids of the largest logits at ``nodes`` ``[B, W]``."""
    if scores.likeliest is not None:
        best: IntArray = np.take_along_axis(on_host(scores.likeliest[0]), nodes, 1)
        return best
    assert scores.logits is not None
    at = on_device(nodes, scores.logits.device)
    every = torch.arange(len(nodes), device=at.device).unsqueeze(1)
    return on_host(scores.logits[every, at].argmax(-1))


class _Session(DraftSession):
    def __init__(self, source: Lookahead, oracle: Oracle, num_rows: int) -> None:
        self.source = source
        self.pool = NGramPool(num_rows, source.pool_size, source.ngram)
        # Level 0 of column 0 is the pending token of the draft last proposed.
        self.window = np.zeros((num_rows, source.ngram - 1, source.window), dtype=np.int64)
        # The scoring nodes of the last level in the draft last proposed; -1: not scored.
        self.ends = np.full((num_rows, source.window), -1, dtype=np.int64)
        self.num_read = np.zeros(num_rows, dtype=np.int64)  # ids whose n-grams went into the pool

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.end(rows)
        levels, width = self.window.shape[1:]
        for row, prompt in zip(rows, prompts, strict=True):
            latest = np.arange(-levels * width, 0).reshape(levels, width)
            self.window[row] = prompt[latest % len(prompt)]
            self.num_read[row] = len(prompt)
            if self.source.from_prompt:
                self.pool.fill(row, prompt)

    def end(self, rows: IntArray) -> None:
        self.pool.clear(rows)
        self.ends[rows] = -1

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        if self.source.from_prompt:
            self._read(rows, context)
        pending = context.pending
        self.window[rows, :1, :1] = pending[:, None, None]
        depth, nodes = np.maximum(budget.max_depth, 0), np.maximum(budget.max_nodes, 0)
        guesses = _trie(self.pool.beginning_with(rows, pending, self.source.guesses), depth, nodes)
        levels, width = self.window.shape[1:]
        fit = np.minimum(depth - levels + 2, (nodes - guesses.kept.sum(1) + 1) // levels)
        num_columns = np.clip(fit, 0, width)
        draft, places = _join(guesses, _columns(self.window[rows], num_columns))
        ends = places.reshape(len(rows), levels, width)[:, -1]
        self.ends[rows] = np.where(np.arange(width) < num_columns[:, None], ends + 1, -1)
        return draft

    def _read(self, rows: IntArray, context: Context) -> None:
        """Put the n-grams that end in ids not read yet into the pool: the newest, as many as it holds."""
        size, ends = self.source.ngram, context.num_committed
        first = np.maximum(np.maximum(self.num_read[rows], ends - self.pool.size), size - 1)
        last = first[:, None] + np.arange(max(int((ends - first).max()), 0))
        columns = np.minimum(last[:, :, None], ends[:, None, None] - 1) - np.arange(size)[::-1]  # [B, K, N]
        ngrams = context.ids[np.arange(len(rows))[:, None, None], np.maximum(columns, 0)]
        self.pool.add(rows, np.where((last < ends[:, None])[:, :, None], ngrams, -1))
        self.num_read[rows] = ends

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Put the window's n-grams into the pool and move it on by its last scores; without scores it stays."""
        self.num_read[rows] = np.minimum(self.num_read[rows], keep)
        ends, self.ends[rows] = self.ends[rows], -1
        if scores is None or scores.logits is None or not (ends >= 0).any():
            return
        best = _best_at(scores, np.maximum(ends, 0))
        longer = np.concatenate([self.window[rows], best[:, None]], axis=1)  # [B, N, W]
        is_scored = (ends >= 0)[:, None]
        self.pool.add(rows, np.where(is_scored, longer, -1).swapaxes(1, 2))
        self.window[rows] = np.where(is_scored, longer[:, 1:], self.window[rows])
