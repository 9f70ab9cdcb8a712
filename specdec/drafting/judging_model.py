"""A drafting model that is drafted for itself: it scores chains in the pass that catches up with what stands."""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Draft, IntArray
from specdec.drafting.model import DraftModel
from specdec.transfers import on_device


class ChainStart(NamedTuple):
    """Where the chains that a model scores begin."""

    rows: IntArray  # ``[R]``
    standing: IntArray  # ``[R, M]`` the ids that stand and have no keys, padded with the last of each row
    behind: IntArray  # ``[R]`` how many these are


class JudgingModel(DraftModel):
    """Score chains that another source drafts for a drafting model; arguments as in ``DraftModel``."""

    def chain_start(self, rows: IntArray, ids: IntArray, ends: IntArray) -> ChainStart:
        """Return where chains begin that follow the first ``ends[b]`` ids of each row.

        ``score_chain`` and ``keep_chain`` must follow before anything else is scored.

        Args:
            rows: ``[R]``, all of which take part.
            ids: ``[R, L]`` that stand in them.
            ends: ``[R]``.

        Cost: none but for rows that are far behind; then passes.
        """
        self.cache.truncate(rows, np.minimum(self.cache.lengths[rows], ends - 1))
        if (far := np.flatnonzero(self.cache.lengths[rows] < ends - 2)).size:
            self._catch_up(rows[far], ids[far], ends[far] - 1)
        behind = ends - self.cache.lengths[rows]
        columns = (ends - behind)[:, None] + np.minimum(np.arange(int(behind.max())), behind[:, None] - 1)
        standing = np.take_along_axis(ids, columns, axis=1)
        self.ids[rows[:, None], columns] = standing
        return ChainStart(rows, standing, behind)

    def score_chain(self, start: ChainStart, draft: Draft) -> Tensor:
        """Score chains ``[R, N]``, in the pass that catches up with the ids before them.

        Returns:
            ``[R, N + 1, V]`` logits after the last id that stands and after each drafted one, on the model's device.

        Cost: one pass of 1 + N tokens a row; one more token if the last id that was handed on was never scored.
        """
        device, lead = self.model.device, start.standing.shape[1]
        place = self._place if draft.tokens.is_cpu else device
        tokens = torch.nn.functional.pad(on_device(start.standing, place), (0, draft.width))
        first, there = on_device(start.behind, place), draft.to(place)
        at = first.unsqueeze(1) + torch.arange(-1, draft.width, device=place)
        tokens.scatter_(1, at[:, 1:], there.tokens)
        logits = self.model.score(tokens, None, first + there.num_nodes, self.cache, start.rows, "all").detach().logits
        assert logits is not None
        if lead == 1:
            return logits
        at = on_device(start.behind, device).unsqueeze(1) + torch.arange(-1, draft.width, device=device)
        return logits.gather(1, at.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))

    def keep_chain(self, rows: IntArray, ends: IntArray, tokens: IntArray, counts: IntArray) -> None:
        """Keep the first ``counts[b]`` drafted tokens of ``score_chain``; arguments as there.

        Args:
            rows, ends: ``[R]``.
            tokens: ``[R, M]`` on the host, M >= counts.
            counts: ``[R]``, 0..N.
        """
        self.cache.commit(rows, None, ends - self.cache.lengths[rows] + counts)
        self.ids[self._places(rows, ends, tokens.shape[1])] = tokens  # padding is as stale as what stood there
