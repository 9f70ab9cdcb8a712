"""An n-gram model: counts of a corpus, interpolated over orders by absolute discounting."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from specdec.contracts import FloatArray, IntArray
from specdec.theory import check_count

Sequences = Iterable[Any]  # lists or arrays of ids, texts (str), text files (Path)

END = np.iinfo(np.int64).max
MAX_ORDER = 1024


@dataclass(frozen=True)
class NGramModel:
    """The laws of an n-gram model, as arrays over *states*: the contexts of 0 to order - 1 ids seen in training.

    For a context h with continuation counts c(h, w), total C(h) and number of distinct continuations T(h)::

        P(w | h) = max(c(h, w) - d, 0) / C(h) + d T(h) / C(h) P(w | h'),    P(w | below the empty context) = 1 / V

    where h' is h without its oldest id and the discount d depends on the length of h. An unseen context has the law of
    its longest seen suffix. So every id has positive probability in every context.

    State 0 is the empty context. State s > 0 extends state ``keys[s - 1] // vocab_size`` to the left by the id
    ``keys[s - 1] % vocab_size``; keys ascend, and a last one is larger than any key of a state. The *pairs* of a state
    are its seen continuations, ids ascending.

    Args:
        order: length of the longest n-gram; contexts have up to order - 1 ids.
        vocab_size: V.
        keys: ``[S]`` int64, see above.
        starts: ``[S + 1]`` int64, first pair of each state.
        tokens: ``[P]`` int32, the id of each pair.
        probs: ``[P]`` float64, P(w | h) of each pair.
        backoff: ``[S]`` float64, d T(h) / C(h).
        best: ``[S]`` int64, the likeliest id of each state, the lowest among equals.
        best_probs: ``[S]`` float64, its probability.
        successor: ``[S]`` int64, the state after drafting ``best``.

    Source: Ney, Essen and Kneser 1994, "On structuring probabilistic dependences in stochastic language modelling"
        (absolute discounting, interpolated; d = n1 / (n1 + 2 n2) by default).
    Deviations: d is kept within 0.1..0.9, so that no law loses its support on small corpora.
    """

    order: int
    vocab_size: int
    keys: IntArray
    starts: IntArray
    tokens: NDArray[np.int32]
    probs: FloatArray
    backoff: FloatArray
    best: IntArray
    best_probs: FloatArray
    successor: IntArray

    def states(self, recent: IntArray) -> IntArray:
        """Return ``[B]`` the state of the longest seen suffix of each context.

        Args:
            recent: ``[B, order - 1]`` the latest ids, newest first; -1 if the context is shorter.

        Cost: O(B order log S).
        """
        return _states(self.keys, self.vocab_size, recent)

    def laws(self, states: IntArray) -> FloatArray:
        """Return ``[B, V]`` the laws of some states.

        Cost: O(B V) and the pairs of the states and their suffixes.
        """
        weight = np.ones(len(states))
        path = []
        for _ in range(self.order - 1):
            if not states.any():
                break
            path.append((states, weight))
            weight = np.where(states > 0, weight * self.backoff[states], weight)
            states = np.where(states > 0, self.keys[states - 1] // self.vocab_size, 0)
        uniform = self.backoff[0] / self.vocab_size
        laws = np.full((len(states), self.vocab_size), uniform)
        laws[:, self.tokens[: self.starts[1]]] = self.probs[: self.starts[1]]
        laws *= weight[:, None]
        # Shortest contexts first: a longer one overwrites the ids it has seen.
        for at, share in reversed(path):
            counts = np.where(at > 0, self.starts[at + 1] - self.starts[at], 0)
            rows = np.repeat(np.arange(len(at)), counts)
            pairs = np.arange(len(rows)) + np.repeat(self.starts[at] - (counts.cumsum() - counts), counts)
            laws[rows, self.tokens[pairs]] = self.probs[pairs] * share[rows]
        return laws

    @classmethod
    def train(
        cls,
        sequences: Sequences,
        vocab_size: int,
        order: int = 4,
        tokenizer: Any | None = None,
        discount: float | None = None,
        progress: bool = True,
    ) -> Self:
        """Count and smooth a corpus; n-grams do not span sequences.

        Args:
            sequences: ids (lists or arrays), texts (``str``) or text files (``pathlib.Path``, UTF-8).
            vocab_size: V.
            order: length of the longest n-gram, 1 to ``MAX_ORDER``.
            tokenizer: a ``tokenizers.Tokenizer``; needed for texts.
            discount: d, strictly between 0 and 1, for every context length; None: estimated for each.
            progress: show progress bars.

        Raises:
            ValueError: an argument out of range, a single text, no ids, ids outside the vocabulary, a text without a
                tokenizer or a file that is not UTF-8.

        Cost: O(order T log T) time and O(order T) memory for T ids.
        """
        check_count("order", order)
        check_count("vocab_size", vocab_size)
        if order > MAX_ORDER:
            raise ValueError(f"order must be {MAX_ORDER} or less, not {order}")
        if discount is not None and not 0 < discount < 1:
            raise ValueError(f"discount must lie strictly between 0 and 1, not {discount}")
        if isinstance(sequences, str | Path):
            raise ValueError("sequences must be a list of id lists, texts or Paths: put a single one into a list")
        ids, age = _read(tqdm(sequences, desc="reading", disable=not progress), tokenizer, vocab_size)
        steps = tqdm(range(order), desc="counting n-grams", unit="order", disable=not progress)
        keys, pairs, counts = _count(ids, age, vocab_size, steps)
        starts = np.searchsorted(pairs, np.arange(len(keys) + 1) * vocab_size)
        tokens = pairs % vocab_size
        probs, backoff = _smooth(keys, pairs, counts, starts, vocab_size, discount)
        best, best_probs = _best(keys, tokens, starts, probs, backoff, vocab_size)
        successor = _successors(keys, best, vocab_size, order)
        return cls(
            order, vocab_size, keys, starts, tokens.astype(np.int32), probs, backoff, best, best_probs, successor
        )


def _states(keys: IntArray, vocab_size: int, recent: IntArray) -> IntArray:
    """Return what ``NGramModel.states`` does, of a model with these keys."""
    states = np.zeros(len(recent), dtype=np.int64)
    known = np.ones(len(recent), dtype=np.bool_)
    for column in recent.T:
        wanted = states * vocab_size + column
        at = np.searchsorted(keys, wanted)
        known &= (column >= 0) & (keys[at] == wanted)
        if not known.any():
            break
        states = np.where(known, at + 1, states)
    return states


def _read(sequences: Iterable[Any], tokenizer: Any | None, vocab_size: int) -> tuple[IntArray, IntArray]:
    """Return all ids ``[T]`` side by side, and how many ids of its own sequence precede each."""
    arrays = [np.asarray(_ids_of(sequence, tokenizer)) for sequence in sequences]
    for i, array in enumerate(arrays):
        if array.ndim != 1 or (array.size and not np.issubdtype(array.dtype, np.integer)):
            raise ValueError(f"sequences[{i}] must be a 1-D list of integer ids, a text or a Path")
    if not sum(len(array) for array in arrays):
        raise ValueError("sequences hold no ids: there is nothing to train on")
    ids = np.concatenate(arrays).astype(np.int64)
    if ids.min() < 0 or ids.max() >= vocab_size:
        raise ValueError(f"sequences hold ids from {ids.min()} to {ids.max()}, outside 0..{vocab_size - 1}")
    return ids, np.concatenate([np.arange(len(array)) for array in arrays])


def _ids_of(sequence: Any, tokenizer: Any | None) -> Any:
    if isinstance(sequence, Path):
        try:
            sequence = sequence.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"sequences: {sequence} is no UTF-8: {error}") from error
    if not isinstance(sequence, str):
        return sequence
    if tokenizer is None:
        raise ValueError("sequences hold text: give the oracle's tokenizer")
    return tokenizer.encode(sequence, add_special_tokens=False).ids


def _count(
    ids: IntArray, age: IntArray, vocab_size: int, lengths: Iterable[int]
) -> tuple[IntArray, IntArray, IntArray]:
    """Return the states' keys, the pairs (state * V + id, ascending) and their counts, for contexts of all lengths."""
    at = np.arange(len(ids))
    states = np.zeros(len(ids), dtype=np.int64)
    all_keys, all_pairs, all_counts, num_states = [], [], [], 1
    for length in lengths:
        if length:
            long_enough = age[at] >= length
            at, states = at[long_enough], states[long_enough]
            keys, inverse = np.unique(states * vocab_size + ids[at - length], return_inverse=True)
            states = num_states + inverse
            num_states += len(keys)
            all_keys.append(keys)
        pairs, counts = np.unique(states * vocab_size + ids[at], return_counts=True)
        all_pairs.append(pairs)
        all_counts.append(counts)
    return np.concatenate([*all_keys, [END]]), np.concatenate(all_pairs), np.concatenate(all_counts)


def levels(keys: IntArray, vocab_size: int) -> Iterator[slice]:
    """Yield the states of each context length, shortest first; those of a length follow one another.

    Args:
        keys: ``[S]`` of the states, see ``NGramModel``.
        vocab_size: V.
    """
    first, stop = 0, 1
    while first < stop:
        yield slice(first, stop)
        # The states that extend one of [first, stop) have keys below stop * V.
        first, stop = stop, 1 + int(np.searchsorted(keys[:-1], stop * vocab_size))


def _smooth(
    keys: IntArray, pairs: IntArray, counts: IntArray, starts: IntArray, vocab_size: int, discount: float | None
) -> tuple[FloatArray, FloatArray]:
    """Return the probability of every pair and the backoff weight of every state."""
    totals = np.add.reduceat(counts, starts[:-1])
    backoff, probs = np.empty(len(totals)), np.empty(len(pairs))
    for level in levels(keys, vocab_size):
        own = slice(starts[level.start], starts[level.stop])
        d = _discount(counts[own]) if discount is None else discount
        states = pairs[own] // vocab_size
        backoff[level] = d * np.diff(starts[level.start : level.stop + 1]) / totals[level]
        lower: Any = 1 / vocab_size
        if level.start:
            shorter = keys[states - 1] // vocab_size * vocab_size + pairs[own] % vocab_size
            lower = probs[np.searchsorted(pairs, shorter)]
        probs[own] = (counts[own] - d) / totals[states] + backoff[states] * lower
    return probs, backoff


def _discount(counts: IntArray) -> float:
    """Return n1 / (n1 + 2 n2) within 0.1..0.9, from the numbers of n-grams seen once and twice."""
    once, twice = int((counts == 1).sum()), int((counts == 2).sum())
    return float(np.clip(once / max(once + 2 * twice, 1), 0.1, 0.9))


def _best(
    keys: IntArray, tokens: IntArray, starts: IntArray, probs: FloatArray, backoff: FloatArray, vocab_size: int
) -> tuple[IntArray, FloatArray]:
    """Return the likeliest id of every state, the lowest among equals, and its probability.

    It is the best of the state's own pairs, or the best id of the state one id shorter, if this one has not seen that.
    """
    best_probs = np.maximum.reduceat(probs, starts[:-1])
    tops = np.flatnonzero(probs == np.repeat(best_probs, np.diff(starts)))
    best = tokens[tops[np.searchsorted(tops, starts[:-1])]]
    for level in levels(keys, vocab_size):
        if level.start:
            shorter = keys[level.start - 1 : level.stop - 1] // vocab_size
            other, prob = best[shorter], backoff[level] * best_probs[shorter]
            better = (prob > best_probs[level]) | ((prob == best_probs[level]) & (other < best[level]))
            best[level] = np.where(better, other, best[level])
            best_probs[level] = np.maximum(prob, best_probs[level])
    return best, best_probs


def _successors(keys: IntArray, best: IntArray, vocab_size: int, order: int) -> IntArray:
    """Return ``[S]`` the state of every state followed by its best id."""
    successor = np.empty_like(best)
    ids, first = np.empty((1, 0), dtype=np.int64), 0  # of the states of a level, newest first, and which is its first
    for level in levels(keys, vocab_size):
        if level.start:
            own = keys[level.start - 1 : level.stop - 1]
            ids, first = np.column_stack([ids[own // vocab_size - first], own % vocab_size]), level.start
        recent = np.column_stack([best[level], ids])[:, : order - 1]
        successor[level] = _states(keys, vocab_size, recent)
    return successor
