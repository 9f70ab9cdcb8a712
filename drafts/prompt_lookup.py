"""Draft by copying what followed an earlier occurrence of the latest tokens."""

from typing import Literal, get_args

import numpy as np

from specdec.contracts import Context, Draft, IntArray, Needs, Offers, Oracle, Randomness
from specdec.drafting import MemorylessSession, point_chains
from specdec.drafting.lengths import LengthPolicy, LengthSession, chain_offers, kept_counts, open_length, resolve
from specdec.theory import check_count, check_flag

Match = Literal["last", "first"]


class PromptLookup:
    """Draft what followed the longest earlier occurrence of the context's suffix (prompt and output).

    The suffix is ``min_ngram`` to ``max_ngram`` tokens long; the longest one that occurs earlier wins, and ``match``
    chooses among its occurrences. An occurrence may overlap the suffix but is never the suffix itself. Drafts are point
    masses.

    Args:
        num_draft_tokens: tokens to copy; shorthand for ``length=Fixed(num_draft_tokens)``. Default 8.
        max_ngram: longest suffix looked for, in tokens.
        min_ngram: shortest suffix that counts as a match.
        match: "last" prefers the most recent occurrence, "first" the earliest.
        min_continuation: an occurrence counts only if at least this many tokens follow it. An occurrence near the end
            of the context has few followers; a larger number looks for another one, with a shorter suffix if need be.
        wrap: if the copy reaches the end of the context, go on with what was copied (the draft becomes periodic, as
            overlapping copies of LZ77 do). Without it the draft ends there.
        length: a length policy that reads no entropy.

    Raises:
        ValueError: an argument out of range.

    Guarantee: deterministic, so lossless under every lossless rule; reproducible; a row's draft depends on its own ids
        only. Contexts shorter than the n-gram are legal: what fits is matched, else the draft is empty.
    Cost: O(L) for a row of L ids, and O(``max_ngram``) for each place where its last id occurs before, in numpy for all
        rows at once; no memory between steps. If ``length`` reads confidences, each copied token has n / (n + 1) for a
        match of n tokens: a score, which a calibration turns into a survival.
    Source: Saxena 2023, "Prompt Lookup Decoding" (apoorvumang/prompt-lookup-decoding).
    Deviations: the public implementations are settings of this one.

        - transformers (``prompt_lookup_num_tokens=k``, ``max_matching_ngram_size=n``, default 2) and llama-cpp-python
          (``num_pred_tokens=k``, ``max_ngram_size=n``): ``PromptLookup(k, max_ngram=n, match="first")``. transformers
          also cuts the copy before an EOS or a forbidden id; here verification ends it.
        - vLLM's n-gram proposer (``prompt_lookup_min=a``, ``prompt_lookup_max=n``):
          ``PromptLookup(k, max_ngram=n, min_ngram=a, match="first")``.
        - the original notebook (``max_ngram_size=n``, ``num_pred_tokens=k`` > n), which demands k followers:
          ``PromptLookup(k, max_ngram=n, match="first", min_continuation=k)``.
    """

    name = "prompt_lookup"
    needs = Needs()
    vocab_size = None

    def __init__(
        self,
        num_draft_tokens: int | None = None,
        max_ngram: int = 3,
        min_ngram: int = 1,
        match: Match = "last",
        min_continuation: int = 1,
        wrap: bool = False,
        length: LengthPolicy | None = None,
    ) -> None:
        for name, value in (("max_ngram", max_ngram), ("min_ngram", min_ngram), ("min_continuation", min_continuation)):
            check_count(name, value, 1)
        if min_ngram > max_ngram:
            raise ValueError(f"need min_ngram <= max_ngram, not min_ngram={min_ngram}, max_ngram={max_ngram}")
        if match not in get_args(Match):
            raise ValueError(f"match must be one of {get_args(Match)}, not {match!r}")
        check_flag("wrap", wrap)
        self.length = resolve(num_draft_tokens, length, default=8, has_laws=False)
        self.max_ngram, self.min_ngram, self.match = max_ngram, min_ngram, match
        self.min_continuation, self.wrap = min_continuation, wrap

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return chain_offers(self.length)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return _Session(self, open_length(self.length, num_rows))


class _Session(MemorylessSession):
    def __init__(self, source: PromptLookup, length: LengthSession) -> None:
        super().__init__(length)
        self.source = source

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        tokens, counts, matched = self.search(context.ids, context.num_committed, limits)
        confidence = None
        if self.length.policy.reads_confidence:
            agreed = matched / (matched + 1)
            confidence = np.repeat(agreed[:, None], int(counts.max(initial=0)), axis=1)
            counts = kept_counts(self.length, rows, confidence, counts)
        self.length.note_counts(rows, counts)
        return point_chains(tokens, counts, confidence)

    def search(self, ids: IntArray, sizes: IntArray, limits: IntArray) -> tuple[IntArray, IntArray, IntArray]:
        """Return the ids to copy of each row, how many there are, and how long the match is.

        Args:
            ids: ``[B, L]``; columns from ``sizes[b]`` on are ignored.
            sizes: ``[B]``.
            limits: ``[B]`` ids to copy at most; N is the largest.

        Returns:
            ``[B, N]`` ids, any beyond their counts; ``[B]`` counts, 0 if nothing matches; ``[B]`` tokens that agree
            with the suffix, up to ``max_ngram``.

        Cost: O(B L), and O(``max_ngram``) for each place where the last id occurs before.
        """
        rows, size = np.arange(len(ids)), ids.shape[1] + 1
        # The places where the last id occurs before: only for these few does it matter how many ids before them agree.
        last = ids[rows, np.maximum(sizes - 1, 0)][:, None]
        row, at = np.nonzero((ids == last) & (np.arange(ids.shape[1]) < sizes[:, None] - self.source.min_continuation))
        length = np.ones_like(at)
        for n in range(1, self.source.max_ngram):
            before, wanted = ids[row, np.maximum(at - n, 0)], ids[row, np.maximum(sizes[row] - 1 - n, 0)]
            grows = (length == n) & (at >= n) & (before == wanted)
            if not grows.any():
                break
            length += grows
        # The longest match of each row, and among equals the one that is asked for, as one number.
        best = np.zeros(len(ids), dtype=np.int64)
        np.maximum.at(best, row, length * size + (at if self.source.match == "last" else size - 1 - at))
        matched, place = np.divmod(best, size)
        at = place if self.source.match == "last" else size - 1 - place
        found = matched >= self.source.min_ngram
        available = np.where(found, sizes - 1 - at, 0)
        counts = limits * found if self.source.wrap else np.minimum(limits, available)
        # For a row without a match, which drafts nothing, any column will do.
        period = np.maximum(available, 1)[:, None]
        columns = sizes[:, None] - period + np.arange(max(limits.tolist(), default=0)) % period
        return ids[rows[:, None], columns], counts, np.where(found, matched, 0)
