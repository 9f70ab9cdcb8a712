"""Replays of rules: the law of a rule's decision at every recorded step, from recorded p and q, without a model."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Draft, FloatArray, IntArray, Reads, VerificationRule
from specdec.laws import Laws
from specdec.traces.parts import NodeRecords
from specdec.verify import resolve_rule

_ROWS = 256


def expected_acceptance(records: NodeRecords, rule: str | VerificationRule) -> dict[str, IntArray | FloatArray]:
    """Return the expected accepted and emitted tokens of every recorded step under a rule; see ``replay``.

    All other ids of the vocabulary are taken for one id, the rest: for these rules the probability of each stop depends
    on p and q of the drafted tokens alone.

    Args:
        records: of the nodes of a run, with p and q.
        rule: the rule, or its name.

    Returns:
        Columns ``[S]``, an entry a step: ``request``, ``step``, ``num_committed`` and ``num_drafted``, int64, and
            ``num_accepted`` and ``num_emitted``, float64.

    Raises:
        ValueError: the rule needs more than p and q of the drafted tokens, or cannot judge these drafts.

    Cost: O(S N^2) for S steps of N nodes.
    """
    chosen = resolve_rule(rule)
    if chosen.coupled:
        raise ValueError(f"rule={chosen.name!r} compares ids that are drawn: dense records replay it, token by token")
    reads = getattr(chosen, "reads", Reads.LAWS)
    if not isinstance(reads, Reads):
        raise ValueError(f"rule={chosen.name!r}: reads is {reads!r}; give a member of specdec.contracts.Reads")
    drafts = _Drafts(records)
    is_drawn = drafts.q < 1  # what a point mass leaves of a law follows from p alone
    lacks_siblings = reads is Reads.SIBLINGS and (drafts.branches & is_drawn.any(1)).any()
    if reads is Reads.LAWS or lacks_siblings or (reads is Reads.DRAWN and is_drawn.any()):
        raise ValueError(f"rule={chosen.name!r}: {reads.value}; replay 'sample_and_match' or 'standard' on chains")
    parts = [drafts.judge(chosen, slice(at, at + _ROWS)) for at in range(0, len(drafts.counts), _ROWS)]
    accepted = np.concatenate([np.zeros(0), *parts])
    return {**drafts.columns, "num_drafted": drafts.num_drafted, "num_accepted": accepted, "num_emitted": accepted + 1}


class _Drafts:
    """The recorded drafts, rebuilt, a row for each step."""

    def __init__(self, records: NodeRecords) -> None:
        rows = records.columns()
        rows = rows if "node" in rows else {}  # requests without a step have but two columns
        keys = np.stack([rows[name] for name in _KEYS]) if rows else np.zeros((len(_KEYS), 0), dtype=np.int64)
        found, step = np.unique(keys, axis=1, return_inverse=True)
        self.columns: dict[str, IntArray | FloatArray] = dict(zip(_KEYS, found, strict=True))
        is_node = rows["node"] >= 0 if rows else np.zeros(0, dtype=np.bool_)
        self.counts = np.bincount(step.reshape(-1)[is_node], minlength=found.shape[1])
        self._rows = {name: rows[name][is_node] if rows else np.zeros(0, dtype=of) for name, of in _READ.items()}
        self._place = step.reshape(-1)[is_node], self._rows["node"]
        shape = len(self.counts), int(self.counts.max(initial=1))
        chain = np.broadcast_to(np.arange(-1, shape[1] - 1), shape)
        self.parents = self._fill(chain, "parent")
        self.tokens = self._fill(np.zeros(shape, dtype=np.int64), "token")
        self.p, self.q = self._fill(np.zeros(shape), "p"), self._fill(np.ones(shape), "q")
        self.is_scout = self._fill(np.full(shape, "draft"), "kind") == "scout"
        self.num_drafted = self.counts - self.is_scout.sum(1)
        self.branches: BoolArray = (self.parents != chain).any(1)

    def _fill(self, table: NDArray[Any], name: str) -> NDArray[Any]:
        """Return a column as ``[S, N]``; padding is that of ``table``."""
        filled = table.copy()
        filled[self._place] = self._rows[name]
        return filled

    def judge(self, rule: VerificationRule, some: slice) -> FloatArray:
        """Return the expected accepted tokens of some steps. Raises ValueError if the rule refuses their drafts."""
        ids = torch.from_numpy(_distinct(self.tokens[some], self.parents[some]))
        p, q = torch.from_numpy(self.p[some]), torch.from_numpy(self.q[some])
        batch, width = ids.shape
        drawn_from = q.new_zeros(batch, width, width + 1).scatter_(2, ids.unsqueeze(2), q.unsqueeze(2))
        drawn_from[:, :, width] += 1 - q
        laws = Laws.from_probs(drawn_from)
        laws = Laws(laws.table, torch.where(q < 1, laws.index, -1), ids)
        draft = Draft(
            ids,
            torch.from_numpy(self.counts[some]),
            parents=torch.from_numpy(self.parents[some]) if self.branches[some].any() else None,
            laws=laws if bool((q < 1).any()) else None,
            is_scout=torch.from_numpy(self.is_scout[some]) if self.is_scout.any() else None,
        )
        target = p.new_zeros(batch, width + 1, width + 1)
        rows = torch.arange(batch, device=ids.device).unsqueeze(1).expand(ids.shape)
        target[rows, draft.tree.above, ids] = p * draft.tree.is_real[:, 1:]
        target[:, :, width] = (1 - target.sum(-1)).clamp(min=0)
        stops = rule(draft, Laws.from_probs(target)).stop_probs
        expected: FloatArray = (stops * draft.tree.depth).sum(-1).numpy()
        return expected


_KEYS = ("request", "step", "num_committed")
_READ = {"node": np.int64, "parent": np.int64, "token": np.int64, "p": np.float64, "q": np.float64, "kind": np.str_}


def _distinct(tokens: IntArray, parents: IntArray) -> IntArray:
    """Return ``[S, N]`` the number of each node's first sibling with the same token: its id in a small vocabulary.

    The last id, N, is every other token.
    """
    same = (parents[:, :, None] == parents[:, None, :]) & (tokens[:, :, None] == tokens[:, None, :])
    first: IntArray = same.argmax(2)
    return first
