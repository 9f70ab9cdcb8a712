"""What a source's laws gave to the tokens that an output took, position by position."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, Draft, FloatArray, IntArray
from specdec.laws import Laws

# By rule: the probability [P] that a token of the output was drafted and accepted in a step that reaches it, from its p
# and q. By each of them a token drafted from a point mass stands if and only if the output has it.
ACCEPTED: dict[str, Callable[[FloatArray, FloatArray], FloatArray]] = {
    "standard": lambda p, q: np.minimum(1, q / p),
    "multi_draft": lambda p, q: np.minimum(1, q / p),  # with one child a node it is the standard rule
    "sample_and_match": lambda p, q: q,
}
# Two passes of a drafting model may differ in their last bits.
_RTOL, _ATOL = 1e-4, 1e-6


@dataclass
class _Past:
    """An earlier draft of a row that the output has followed so far.

    Attributes:
        tokens: ``[N]``.
        laws: ``[N]`` that they were drawn from.
        age: tokens of it that the output has taken.
    """

    tokens: list[int]
    laws: Laws
    age: int = 0


def _own(laws: Laws) -> Laws:
    """Return the laws of one row with a table of their own: a part of a step's would keep all of it."""
    if laws.all_points:
        return laws
    places = torch.arange(len(laws.index), device=laws.index.device)
    return Laws(laws.table[laws.index.clamp(min=0)], torch.where(laws.index < 0, -1, places), laws.point)


class OutputLaws:
    """Gathers the probability of each output token under the law of the draft's first token there.

    It stands for the law at every other depth too, if the source draws from a law that the ids alone decide. That is
    checked: a draft whose tokens the output takes has its laws compared with those of the drafts that begin later. (A
    source that drafts on the oracle's cache with other weights fails: the keys of a draft are not those of the output.)

    Args:
        num_draft_tokens: of a whole draft.
        name: of the source, for messages.

    Attributes:
        q: of each step, ``[B]``; 0 where nothing was drafted.
        fault: why q does not stand for the laws at other depths; None: it does.
    """

    def __init__(self, num_draft_tokens: int, name: str) -> None:
        self.num_draft_tokens, self.name = num_draft_tokens, name
        self.q: list[FloatArray] = []
        self.fault: str | None = None
        self._draft: Draft
        self._pasts: dict[int, list[_Past]] = {}

    def begin(self, rows: IntArray) -> None:
        """Forget what the rows held."""
        self._pasts |= {row: [] for row in rows.tolist()}

    def drafted(self, draft: Draft, budget: Budget) -> None:
        """Take in the draft of a step."""
        self._draft = draft
        whole = np.minimum(np.minimum(budget.max_depth, budget.max_nodes), self.num_draft_tokens)
        if draft.parents is not None:
            self._find("drafts trees")
        elif (draft.num_nodes.cpu().numpy() < whole).any():
            self._find("ends drafts by itself")

    def _find(self, fault: str) -> None:
        """Keep the first fault."""
        self.fault = self.fault or f"draft {self.name!r} draws tokens, and {fault}: {_NO}"

    def told(self, rows: IntArray, ids: IntArray) -> None:
        """Take in ``ids`` ``[B]``, the tokens that the output takes after the drafts of the step."""
        draft = self._draft
        laws, wanted = draft.node_laws, torch.from_numpy(ids).to(draft.tokens.device)
        q = np.zeros(len(rows))
        if draft.width:
            q = np.where(draft.num_nodes.cpu().numpy() > 0, _probs(laws[:, 0], wanted), 0.0)
        tokens, counts = draft.tokens.tolist(), draft.num_nodes.tolist()
        for b, row in enumerate(rows.tolist()):
            if counts[b] and self.fault is None:
                self._compare(self._pasts[row], ids[b], q[b])
                self._pasts[row].append(_Past(tokens[b][: counts[b]], _own(laws[b])))
            self._pasts[row] = [past for past in self._pasts[row] if _goes_on(past, int(ids[b]))]
        self.q.append(q)

    def _compare(self, pasts: list[_Past], token: np.int64, q: np.float64) -> None:
        """Compare what earlier drafts gave to a token with what the draft that begins there gives."""
        for past in pasts:
            law = past.laws[past.age : past.age + 1]
            earlier = _probs(law, torch.tensor([int(token)], device=law.point.device))
            if not np.allclose(earlier, q, rtol=_RTOL, atol=_ATOL):
                self._find(
                    f"gave token {token} the probability {earlier[0]:.3g} at depth {past.age + 1} of a draft and "
                    f"{q:.3g} at the beginning of another after the same ids"
                )


_NO = (
    "no dense record of a sampled run that is not coupled, whose expectations need laws that the ids alone decide; "
    "record with rule='coupled'"
)


def _probs(laws: Laws, ids: Tensor) -> FloatArray:
    """Return the probabilities of ids on the host."""
    found: FloatArray = laws.probs_of(ids).cpu().numpy()
    return found


def _goes_on(past: _Past, token: int) -> bool:
    """Move a draft on by the token that the output takes; tell whether it has one more to compare."""
    follows = past.tokens[past.age] == token
    past.age += 1
    return follows and past.age < len(past.tokens)
