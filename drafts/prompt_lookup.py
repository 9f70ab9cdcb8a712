"""Draft by copying what followed an earlier occurrence of the latest tokens."""

import sys
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import torch

from specdec.contracts import Context, Draft, IntArray, Needs, Offers, Oracle, Randomness
from specdec.draft_length import LengthPolicy, LengthSession, chain_offers, resolve, shortened
from specdec.drafting import MemorylessSession, point_chains
from specdec.shapes import check_count

Match = Literal["last", "first"]
MAX_ID = sys.maxunicode  # ids are looked for as characters


class PromptLookup:
    """Draft what followed the longest earlier occurrence of the context's suffix (prompt and output).

    The suffix is ``min_ngram`` to ``max_ngram`` tokens long; the longest one that occurs earlier wins, and among its
    occurrences the ``match`` one. An occurrence may overlap the suffix but is never the suffix itself. Drafts are point
    masses.

    Args:
        num_draft_tokens: tokens to copy; shorthand for ``length=Fixed(num_draft_tokens)``. Default 8.
        max_ngram: longest suffix looked for, in tokens.
        min_ngram: shortest suffix that counts as a match.
        match: "last" prefers the most recent occurrence, "first" the earliest.
        min_continuation: an occurrence counts only if at least so many tokens follow it. An occurrence near the end of
            the context has few followers; a larger number looks for another one, with a shorter suffix if need be.
        wrap: if the copy reaches the end of the context, go on with what was copied (the draft becomes periodic, as
            overlapping copies of LZ77 do). Without it the draft ends there.
        length: a length policy that reads no entropy.

    Raises:
        ValueError: an argument out of range; a run on an oracle with ids above MAX_ID, 1,114,111.

    Guarantee: deterministic, so lossless under every lossless rule; reproducible; a row's draft depends on its own ids
        only. Contexts shorter than the n-gram are legal: what fits is matched, else the draft is empty.
    Cost: for each row of L ids, one after the other, at most ``max_ngram`` searches of a string of L characters; no
        memory between steps. If ``length`` reads confidences, each copied token has n / (n + 1) for a match of n
        tokens: a score, which a calibration turns into a survival.
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
        self.length = resolve(num_draft_tokens, length, default=8)
        if self.length.reads_entropy:
            raise ValueError("length reads entropies, but a lookup has no laws: use Fixed, Heuristic or Threshold")
        self.search = Search(max_ngram, min_ngram, match, min_continuation)
        self.wrap = wrap

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return chain_offers(self.length)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run.

        Raises:
            ValueError: ids of the oracle's vocabulary are above MAX_ID.
        """
        if oracle.vocab_size > MAX_ID + 1:
            raise ValueError(f"a lookup takes ids up to {MAX_ID}, and the oracle has {oracle.vocab_size:,}")
        return _Session(self.search, self.wrap, self.length.open(num_rows), oracle.device)


@dataclass(frozen=True)
class Search:
    """Find the longest earlier occurrence of each row's suffix; see ``PromptLookup`` for the arguments."""

    max_ngram: int
    min_ngram: int
    match: Match
    min_continuation: int

    def __call__(self, ids: IntArray, num_committed: IntArray) -> tuple[IntArray, IntArray]:
        """Return how many ids stand after the best match of each row, and how long that is.

        Args:
            ids: ``[B, L]``, 0 .. MAX_ID; columns from ``num_committed[b]`` on are ignored.
            num_committed: ``[B]``.

        Returns:
            ``[B]`` ids from the first one to copy to the end of the context, and ``[B]`` tokens that agree with the
            suffix, up to ``max_ngram``; both 0 if nothing matches.
        """
        lengths = num_committed.tolist()
        found = [self._best(_as_text(row[:length]), length) for row, length in zip(ids, lengths, strict=True)]
        available, matched = np.array(found, dtype=np.int64).reshape(-1, 2).T
        return available, matched

    def _best(self, text: str, length: int) -> tuple[int, int]:
        """Return what ``__call__`` does of a context of ``length`` ids, a character each."""
        find, end = text.rfind if self.match == "last" else text.find, max(length - self.min_continuation, 0)
        for n in range(min(self.max_ngram, end), self.min_ngram - 1, -1):
            at = find(text[length - n :], 0, end)
            if at >= 0:
                return length - at - n, n
        return 0, 0


def _as_text(ids: IntArray) -> str:
    """Return ids ``[L]`` as characters, so that they are looked for by the search of strings, in C."""
    return ids.astype("<u4").tobytes().decode("utf-32-le", "surrogatepass")


class _Session(MemorylessSession):
    def __init__(self, search: Search, wrap: bool, length: LengthSession, device: torch.device) -> None:
        super().__init__(length, device)
        self.search, self.wrap = search, wrap

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        available, matched = self.search(context.ids, context.num_committed)
        counts = limits * (available > 0) if self.wrap else np.minimum(limits, available)
        confidence = None
        if self.length.policy.reads_confidence:
            agreed = torch.from_numpy(matched / (matched + 1))
            confidence = agreed.unsqueeze(1).expand(-1, int(counts.max(initial=0)))
            counts = shortened(self.length, rows, confidence, counts)
        self.length.drafted(rows, counts)
        # Of a row without a match, which drafts nothing, any column will do.
        period = np.maximum(available, 1)[:, None]
        columns = context.num_committed[:, None] - period + np.arange(max(counts.tolist(), default=0)) % period
        return point_chains(context.ids[np.arange(len(rows))[:, None], columns], counts, self.device, confidence)
