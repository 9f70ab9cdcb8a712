"""Draft what a grammar leaves no choice about."""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec.contracts import Context, Draft, IntArray, Needs, Offers, Oracle, Randomness, Scores, Warping
from specdec.drafting import MemorylessSession, list_chains
from specdec.drafting.lengths import Fixed, chain_offers
from specdec.theory import check_count
from specdec.transfers import on_device, on_host


class Forced:
    """Draft the ids that a request's grammar leaves no choice about; a request without a grammar gets no draft.

    If a mask allows only one id, the target's law is on that id too, and the draft is certain to stand: it widens the
    pass, and costs no drafting model. Give it to ``Cascade`` or ``Merged`` with a source for the other positions.

    Args:
        num_draft_tokens: the longest draft.
        max_ids: also draft at positions with up to this many allowed ids: the likeliest of them by the oracle's last
            law, that of the latest position of its own drafts that stands. 1: only positions without a choice.

    Raises:
        ValueError: an argument out of range.

    Guarantee: drafts are point masses, lossless under every lossless rule. Reproducible.
    Cost: the masks of the drafted positions, which the verdict reads too (see ``specdec.grammars.Grammar``). With
        ``max_ids`` above 1 a copy of V logits a row and step.
    """

    name = "forced"
    vocab_size = None

    def __init__(self, num_draft_tokens: int = 16, max_ids: int = 1) -> None:
        check_count("max_ids", max_ids, 1)
        self.length, self.max_ids = Fixed(num_draft_tokens), max_ids

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(logits=self.max_ids > 1, prompt=False)

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return chain_offers(self.length)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return _Session(self)


class _Session(MemorylessSession):
    """Remembers, if asked for more than what is forced, the last law of each row and what was drafted after it."""

    def __init__(self, source: Forced) -> None:
        super().__init__(source.length)
        self.max_ids = source.max_ids
        self._logits: dict[int, Tensor] = {}
        self._chains: dict[int, list[int]] = {}

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        super().begin(rows, prompts, scores)
        self.end(rows)

    def end(self, rows: IntArray) -> None:
        for row in rows.tolist():
            self._logits.pop(row, None)
            self._chains.pop(row, None)

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        chains = [
            self._chain(context.warping, b, self._logits.get(row), limit)
            for b, (row, limit) in enumerate(zip(rows.tolist(), limits.tolist(), strict=True))
        ]
        self._chains.update(zip(rows.tolist(), chains, strict=True))
        return list_chains(chains)

    def _chain(self, warping: Warping, row: int, logits: Tensor | None, limit: int) -> list[int]:
        """Return the ids that a row goes on with, as long as few enough are allowed."""
        chain: list[int] = []
        most = 1 if logits is None else self.max_ids
        while len(chain) < limit:
            mask = warping.allowed_ids(row, np.array(chain, dtype=np.int64))
            if mask is None or not 0 < np.count_nonzero(mask) <= most:
                break
            ids = np.flatnonzero(mask)
            best = 0 if logits is None else int(on_host(logits[on_device(ids, logits.device)]).argmax())
            chain.append(int(ids[best]))
        return chain

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        if self.max_ids == 1:
            return
        chains = [self._chains.pop(row, []) for row in rows.tolist()]
        if scores is None or scores.logits is None:
            self.end(rows)
            return
        for b, (row, chain, new) in enumerate(zip(rows.tolist(), chains, new_ids.tolist(), strict=True)):
            agrees = [one == other for one, other in zip(chain, new, strict=False)]
            stood = agrees.index(False) if False in agrees else len(agrees)
            # An id of a chain that a budget has dropped may come all the same: nothing was scored after it.
            accepted = min(stood, sum(one >= 0 for one in new) - 1)
            self._logits[row] = scores.logits[b, accepted].clone()
