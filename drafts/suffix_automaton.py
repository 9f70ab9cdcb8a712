"""Draft what most often followed the longest suffix that occurs elsewhere, in the text or in earlier outputs."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import torch

from specdec.contracts import (
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
from specdec.drafting import Automaton
from specdec.drafting.lengths import (
    LengthPolicy,
    LengthSession,
    chain_offers,
    depth_limits,
    kept_counts,
    open_length,
    resolve,
)
from specdec.drafting.shapes import check_size
from specdec.theory import check_count, check_positive, check_share

_END = -1  # stands after each remembered output


class SuffixAutomaton:
    """Draft what followed earlier occurrences of the context's suffix, the more tokens the longer the match.

    Every suffix of the context (prompt and output) that occurs earlier in it, or in an output of an earlier run, is a
    candidate. A candidate of m tokens drafts up to alpha m, alpha = ``tokens_per_match``. They are ordered by D(node),
    the share of occurrences that went on this way: a child has D of its parent times its own count over the sum of the
    counts of all the parent's children. Chains follow the most frequent child, the latest among equals; trees take the
    nodes with the largest D. The candidate whose sum of D over its nodes is largest drafts: that many tokens would
    stand if frequencies were probabilities. If the sums are equal, the context wins over the store, and a longer match
    over a shorter one. Drafts are point masses; ``Draft.confidence`` has each node's share given its parent.

    Args:
        num_draft_tokens: the longest path; for chains it is shorthand for ``length=Fixed(num_draft_tokens)``. Default
            8.
        tokens_per_match: alpha, tokens to draft for each matched token; 0.5 or 2.5 are legal too.
        min_ngram: the shortest suffix that counts as a match.
        max_nodes: the most nodes of a tree; None: chains.
        min_confidence: a node with a smaller D is left out.
        store_size: how many ids of earlier outputs are kept, the newest outputs win; 0 keeps none. See ``remember``.
        length: a length policy for chains, one that reads no entropy.

    Raises:
        ValueError: an argument out of range, or a length beside a tree; in ``open``, a store with ids that the oracle
            does not have.

    Guarantee: deterministic, so lossless under every lossless rule (trees: every one that judges trees). Reproducible:
        the store is frozen when a run begins, so a request's drafts depend on its own ids and on the runs before. A
        run's outputs are remembered when the run ends, in the order in which its requests began, whatever the batch; a
        run that is abandoned leaves nothing. Threads may run at once; if runs end at the same moment, one may leave
        nothing.
    Cost: pure Python, a loop over rows. Each id of the prompt takes some microseconds at the beginning, and about 0.5
        kB; each emitted one as much, and L / p steps more in text that repeats p ids throughout. A draft takes a few
        operations for each candidate and node. Up to 64 ids that are taken back within a step, as inside ``Staged``,
        cost what adding them did; for more the row's text is read anew. The first run after outputs were remembered
        reads the store.
    Source: Oliaro et al. 2024 (SuffixDecoding, arXiv 2411.04975), section 3.
    Deviations: suffix automata, which hold suffixes of any length, in place of trees of bounded depth; among suffixes
        with equal occurrences only the longest, which may draft most, is a candidate. Ties are broken by recency. Their
        store is updated while requests run.
    """

    name = "suffix_automaton"
    needs = Needs()
    vocab_size = None

    def __init__(
        self,
        num_draft_tokens: int | None = None,
        tokens_per_match: float = 2.0,
        min_ngram: int = 1,
        max_nodes: int | None = None,
        min_confidence: float = 0.0,
        store_size: int = 0,
        length: LengthPolicy | None = None,
    ) -> None:
        check_count("min_ngram", min_ngram, 1)
        check_count("store_size", store_size, 0)
        check_positive("tokens_per_match", tokens_per_match)
        check_share("min_confidence", min_confidence)
        self.length = resolve(num_draft_tokens, length, default=8, has_laws=False)
        if max_nodes is not None:
            check_count("max_nodes", max_nodes, 1)
            check_size(max_nodes)
            if length is not None:
                raise ValueError("length ends chains: give max_nodes with num_draft_tokens, or length alone")
        self.tokens_per_match, self.min_ngram, self.max_nodes = tokens_per_match, min_ngram, max_nodes
        self.min_confidence, self.store_size = min_confidence, store_size
        self._outputs: list[list[int]] = []  # replaced, never changed
        # Outputs, their store and their largest id, once a run has asked; earlier ones if the outputs were replaced
        # since.
        self._store: tuple[list[list[int]], Automaton, int] | None = None

    @property
    def offers(self) -> Offers:
        """What it declares."""
        if self.max_nodes is None:
            return replace(chain_offers(self.length), confidence=True, nested=False)
        depth = min(self.length.max_depth, self.max_nodes)
        return Offers(trees=True, confidence=True, nested=False, max_depth=depth, max_nodes=self.max_nodes)

    def remember(self, outputs: Iterable[Sequence[int]]) -> None:
        """Take outputs into the store, for runs that begin later; each run does so with its own when it ends.

        Args:
            outputs: ids of each, oldest first, such as ``Result.tokens``. An output longer than ``store_size`` leaves
                its last ids.

        Raises:
            ValueError: there is no store, or an output is no list of ids.
        """
        if not self.store_size:
            raise ValueError("store_size is 0, so that nothing can be remembered: give the ids that may be kept")
        arrays = [np.asarray(output) for output in outputs]
        if any(ids.ndim != 1 or (ids.size and (ids.dtype.kind not in "iu" or ids.min() < 0)) for ids in arrays):
            raise ValueError("outputs must be lists of ids, 0 or more, one list an output: such as result.tokens")
        kept = [ids[-self.store_size :].tolist() for ids in arrays if ids.size]
        room = self.store_size - np.cumsum([len(output) for output in reversed(self._outputs + kept)])
        count = int((room >= 0).sum())
        self._outputs = (self._outputs + kept)[-count:] if count else []

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``.

        Raises:
            ValueError: an id that is remembered lies beyond the oracle's vocabulary.
        """
        outputs, store = self._outputs, self._store
        if store is None or store[0] is not outputs:
            largest = max((max(output) for output in outputs), default=-1)
            store = self._store = outputs, Automaton(one for output in outputs for one in (*output, _END)), largest
        if store[2] >= oracle.vocab_size:
            raise ValueError(
                f"draft {self.name!r} remembers id {store[2]}, and the oracle has {oracle.vocab_size} ids: give each "
                "vocabulary a source of its own"
            )
        return _Session(self, store[1], open_length(self.length, num_rows), num_rows)


class _Guess(NamedTuple):
    """Nodes to draft: ids, parents and confidences given their parents, and the sum of D, how many may stand."""

    tokens: list[int]
    parents: list[int]
    beliefs: list[float]
    value: float


_NOTHING = _Guess([], [], [], 0.0)


def _chain(text: Automaton, state: int, size: int, least: float) -> _Guess:
    """Return the most frequent continuation of a state's parts, of up to ``size`` ids."""
    tokens: list[int] = []
    beliefs: list[float] = []
    share, value = 1.0, 0.0
    while len(tokens) < size and (best := text.children(state)):
        ((one, state, belief),) = best
        share *= belief
        if share < least:
            break
        tokens.append(one)
        beliefs.append(belief)
        value += share
    return _Guess(tokens, list(range(-1, len(tokens) - 1)), beliefs, value)


def _tree(text: Automaton, state: int, size: int, depth: int, least: float) -> _Guess:
    """Return the ``size`` continuations of a state's parts with the largest D, up to ``depth`` ids long."""
    tokens: list[int] = []
    parents: list[int] = []
    beliefs: list[float] = []
    value = 0.0
    # D negated, then what breaks ties: the latest first.
    heap: list[tuple[float, int, int, int, int, float]] = []
    parent, share, level = -1, 1.0, 0
    levels = {-1: 0}
    while True:
        if level < depth:
            for one, there, belief in text.children(state, size):
                if share * belief >= least:
                    heappush(heap, (-share * belief, -text.latest[there], parent, one, there, belief))
        if not heap or len(tokens) == size:
            return _Guess(tokens, parents, beliefs, value)
        lost, _, above, one, state, belief = heappop(heap)
        parent, share, level = len(tokens), -lost, levels[above] + 1
        levels[parent] = level
        tokens.append(one)
        parents.append(above)
        beliefs.append(belief)
        value += share


class _Row:
    """A request's text, and how long a suffix of it the store holds after each of its ids.

    Args:
        number: of the request in its run.
        store: of earlier outputs.
        prompt: its ids.

    Attributes:
        text: its ids so far.
        found: before the first id and after each, the longest suffix in the store, see ``Automaton.follow``.
    """

    def __init__(self, number: int, store: Automaton, prompt: list[int]) -> None:
        self.number, self.store, self.prompt_length = number, store, len(prompt)
        self.text = Automaton(prompt)
        self.found = [(0, 0)]
        self._find(prompt)

    def _find(self, ids: Iterable[int]) -> None:
        if self.store.ids:
            for one in ids:
                self.found.append(self.store.follow(*self.found[-1], one))

    def append(self, ids: Iterable[int]) -> None:
        """Let ids follow."""
        for one in ids:
            self.text.append(one)
            self._find((one,))

    def cut(self, size: int) -> None:
        """Leave the first ``size`` ids."""
        self.text.cut(size)
        del self.found[size + 1 :]


class _Session(DraftSession):
    def __init__(self, source: SuffixAutomaton, store: Automaton, length: LengthSession, num_rows: int) -> None:
        self.source, self.store, self.length = source, store, length
        self.rows: list[_Row | None] = [None] * num_rows
        self.num_begun = 0
        self.ended: list[tuple[int, list[int]]] = []  # requests and their outputs, until the run ends

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.length.begin(rows)
        for row, prompt in zip(rows.tolist(), prompts, strict=True):
            self.rows[row] = _Row(self.num_begun, self.store, prompt.tolist())
            self.num_begun += 1

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        for row, size, ids in zip(rows.tolist(), keep.tolist(), new_ids.tolist(), strict=True):
            here = self._at(row)
            here.cut(size)
            here.append(one for one in ids if one >= 0)

    def end(self, rows: IntArray) -> None:
        for row in rows.tolist():
            here, self.rows[row] = self.rows[row], None
            if here is not None:
                self.ended.append((here.number, here.text.ids[here.prompt_length :]))

    def close(self) -> None:
        ended, self.ended = sorted(self.ended), []
        if self.source.store_size and ended:
            self.source.remember([output for _, output in ended])

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        source = self.source
        limits = depth_limits(self.length, rows, context.num_committed, budget)
        sizes = limits if source.max_nodes is None else np.minimum(budget.max_nodes, source.max_nodes)
        guesses = [
            self._guess(self._at(row), depth, size) if depth > 0 < size else _NOTHING
            for row, depth, size in zip(rows.tolist(), limits.tolist(), sizes.tolist(), strict=True)
        ]
        return self._draft(rows, guesses)

    def _at(self, row: int) -> _Row:
        here = self.rows[row]
        assert here is not None
        return here

    def _guess(self, row: _Row, depth: int, most: int) -> _Guess:
        """Return the best draft of up to ``most`` nodes and that depth."""
        source, best = self.source, _NOTHING
        for text, match in ((row.text, row.text.match()), (row.store, row.found[-1])):
            for state, length in text.suffixes(*match, source.min_ngram):
                size = int(min(most, source.tokens_per_match * length))
                if size <= best.value:  # no more of them would stand, nor of shorter matches
                    break
                if source.max_nodes is None:
                    guess = _chain(text, state, size, source.min_confidence)
                else:
                    guess = _tree(text, state, size, depth, source.min_confidence)
                if guess.value > best.value:
                    best = guess
        return best

    def _draft(self, rows: IntArray, guesses: Sequence[_Guess]) -> Draft:
        """Return the guesses of all rows as one draft."""
        counts = np.array([len(guess.tokens) for guess in guesses], dtype=np.int64)
        shape = len(guesses), int(counts.max(initial=0))
        tokens, parents, confidence = np.zeros(shape, np.int64), np.full(shape, -1), np.zeros(shape)
        for b, guess in enumerate(guesses):
            size = len(guess.tokens)
            tokens[b, :size], parents[b, :size], confidence[b, :size] = guess.tokens, guess.parents, guess.beliefs
        if self.length.policy.reads_confidence:
            counts = kept_counts(self.length, rows, confidence, counts)
        self.length.note_counts(rows, counts)
        width = int(counts.max(initial=0))
        is_tree = self.source.max_nodes is not None
        return Draft(
            torch.from_numpy(tokens[:, :width]),
            torch.from_numpy(counts),
            torch.from_numpy(parents[:, :width]) if is_tree else None,
            confidence=torch.from_numpy(confidence[:, :width]),
        )
