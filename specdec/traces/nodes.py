"""One step as a row per node: what was drafted, what the target thought of it, and what became of it.

A watched session sees a step's draft when it is proposed and the target's scores when it learns what stands; the
``StepInfo`` of the step has the verdict. The engine knows nothing of this.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    Draft,
    DraftSession,
    FloatArray,
    IntArray,
    Randomness,
    Scores,
    StepInfo,
    Warping,
    WatchedSession,
)
from specdec.engine import log_probs_at
from specdec.laws import Laws
from specdec.transfers import all_on_host, on_host, together_on_device

Array = NDArray[Any]
KINDS = ("draft", "scout", "recovered", "bonus")


@dataclass(frozen=True)
class StepNodes:
    """What a step shows of its nodes before it is told what became of them; on the host, except what is drawn from.

    Attributes:
        tokens, parents: ``[B, N]`` of the draft, parents -1 for the pending token.
        depth: ``[B, N]``, 1: after the pending token.
        is_real, is_verified: ``[B, N]`` bool.
        rank: ``[B, N]`` verified siblings before the node.
        source: ``[B, N]``.
        q: ``[B, N]`` the probability of each token under the law that it was drawn from, 1 for a point mass.
        p: ``[B, N]`` the same under the target's warped law; 0 or 1 at temperature 0.
        confidence: ``[B, N]``, NaN if the draft has none.
        logprob: ``[B, N]`` under the target's warped law, the unwarped one at temperature 0; None: not asked for.
        laws: ``[B, N+1]`` of the target.
        logits: ``[B, N+1, V]`` of the target; None: ``logprob`` is not asked for.
        seconds: that it took to see all this. The engine, which knows nothing of it, counts them as drafting.
    """

    tokens: IntArray
    parents: IntArray
    depth: IntArray
    is_real: BoolArray
    is_verified: BoolArray
    rank: IntArray
    source: IntArray
    q: FloatArray
    p: FloatArray
    confidence: FloatArray
    logprob: FloatArray | None
    laws: Laws
    logits: Tensor | None
    seconds: float

    @staticmethod
    def of(draft: Draft, scores: Scores, warping: Warping, logprobs: bool) -> "StepNodes":
        """Return what a draft and the scores of its nodes, root first, show. Cost: a warping, and O(B N^2)."""
        began = time.perf_counter()
        assert scores.logits is not None
        draft = draft.to(scores.logits.device)
        laws = Laws.points(scores.best[0]) if warping.is_argmax() else warping.laws(scores.logits, draft)
        above = draft.tree.above
        at_parents = laws.gather(above)
        host = all_on_host(
            {
                "above": above,
                "is_verified": draft.is_verified,
                "tokens": draft.tokens,
                "depth": draft.tree.depth[:, 1:],
                "is_real": draft.tree.is_real[:, 1:],
                "source": draft.source,
                "q": draft.node_laws.probs_of(draft.tokens),
                "p": at_parents.probs_of(draft.tokens),
                "confidence": None if draft.confidence is None else draft.confidence.double(),
                "logprob": log_probs_at(at_parents, scores.logits, above, draft.tokens) if logprobs else None,
            }
        )
        parents = host.pop("above") - 1
        shown: dict[str, Any] = {"source": np.zeros_like(parents), "confidence": np.full(parents.shape, np.nan)}
        return StepNodes(
            **{**shown, "logprob": None, **host},
            parents=parents,
            rank=ranks_of(parents, host["is_verified"]),
            laws=laws,
            logits=scores.logits if logprobs else None,
            seconds=time.perf_counter() - began,
        )

    def of_drawn(self, stop: IntArray, ids: IntArray) -> tuple[FloatArray, FloatArray | None]:
        """Return ``[B]`` p and log-probability of the tokens ``ids`` after the nodes ``stop`` (-1: the root)."""
        at, drawn = (there[:, None] for there in together_on_device(stop + 1, ids, device=self.laws.index.device))
        laws = self.laws.gather(at)
        logprob = None if self.logits is None else on_host(log_probs_at(laws, self.logits, at, drawn)[:, 0])
        return on_host(laws.probs_of(drawn)[:, 0]), logprob


def ranks_of(parents: IntArray, is_verified: BoolArray) -> IntArray:
    """Return ``[B, N]`` how many verified siblings stand before each node. Cost: O(B N^2)."""
    order = np.arange(parents.shape[1])
    is_elder = (parents[:, :, None] == parents[:, None, :]) & is_verified[:, None, :] & (order < order[:, None])
    ranks: IntArray = is_elder.sum(2)
    return ranks


class NodeSession(WatchedSession):
    """A session whose steps are seen.

    Attributes:
        seen: of the last step; what the oracle lent to it is overwritten by the next one.
    """

    seen: StepNodes

    def __init__(self, inner: DraftSession, logprobs: bool) -> None:
        super().__init__(inner)
        self.logprobs = logprobs
        self._step: tuple[Draft, Warping]

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Return the inner session's draft, and remember it; see ``DraftSession.propose``."""
        draft = self.inner.propose(rows, context, budget, randomness)
        self._step = draft, context.warping
        return draft

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """See the step whose draft was remembered, and forward the call; see ``DraftSession.sync``."""
        assert scores is not None
        draft, warping = self._step
        self.seen = StepNodes.of(draft, scores, warping, self.logprobs)
        self.inner.sync(rows, keep, new_ids, scores)


def _walk(seen: StepNodes, info: StepInfo) -> tuple[BoolArray, IntArray]:
    """Return ``[B, N]`` which nodes the verdict kept, and ``[B]`` where the walk stopped, -1 for the root."""
    accepted = np.zeros(seen.tokens.shape, dtype=np.bool_)
    stop = np.full(len(accepted), -1, dtype=np.int64)
    for rank in info.ranks.T[: int(info.num_accepted.max(initial=0))]:
        is_next = seen.is_verified & (seen.parents == stop[:, None]) & (seen.rank == rank[:, None])
        accepted |= is_next
        stop = np.where(rank >= 0, is_next.argmax(1), stop)
    return accepted, stop


def node_columns(seen: StepNodes, info: StepInfo, steps: IntArray, names: Sequence[int]) -> dict[str, Array]:
    """Return a step as columns ``[R]``, a row for each node and one for each token that a verdict drew and emitted.

    Args:
        seen: of the step.
        info: of the step.
        steps: ``[B]`` the number of the step, counted by each request for itself.
        names: the codes of ``info.source_names``.

    Cost: O(B N D) on the host for D accepted tokens.
    """
    accepted, stop = _walk(seen, info)
    (batch, width), last = accepted.shape, info.num_accepted
    is_drawn = info.num_emitted > last
    drawn = np.where(is_drawn, info.tokens[np.arange(batch), last], 0)
    p, logprob = seen.of_drawn(stop, drawn)
    kind = np.where(seen.is_verified, KINDS.index("draft"), KINDS.index("scout"))
    drawn_kind = np.where(info.stopped_at_leaf, KINDS.index("bonus"), KINDS.index("recovered"))
    whole = {
        "node": (np.broadcast_to(np.arange(width), accepted.shape), np.full(batch, -1)),
        "token": (seen.tokens, drawn),
        "parent": (seen.parents, stop),
        "depth": (seen.depth, last + 1),
        "rank": (np.where(seen.is_verified, seen.rank, -1), np.full(batch, -1)),
        "kind": (kind, drawn_kind),
        "source": (np.asarray([*names, -1])[seen.source], np.full(batch, -1)),
        "q": (seen.q, np.full(batch, np.nan)),
        "p": (seen.p, p),
        "confidence": (seen.confidence, np.full(batch, np.nan)),
        "accepted": (accepted, np.zeros(batch, dtype=np.bool_)),
        "emitted": (accepted & (seen.depth <= info.num_emitted[:, None]), is_drawn),
    }
    if seen.logprob is not None and logprob is not None:
        whole["logprob"] = seen.logprob, logprob
    is_row = np.column_stack([seen.is_real, is_drawn])
    of_row = {"request": info.requests, "step": steps, "num_committed": info.num_committed}
    counts = is_row.sum(1)
    columns: dict[str, Array] = {name: np.repeat(values, counts) for name, values in of_row.items()}
    columns |= {name: np.column_stack(pair)[is_row] for name, pair in whole.items()}
    total = int(counts.sum())
    seconds = {**info.seconds, "propose": max(0.0, info.seconds["propose"] - seen.seconds)}
    return columns | {f"seconds_{name}": np.full(total, taken / total) for name, taken in seconds.items()}
