"""Penalties for the ids that stand before a node, in its row and on its path."""

from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import BoolArray, FloatArray, IntArray
from specdec.transfers import on_device

PENALTIES = ("repetition", "presence", "frequency")


@dataclass(frozen=True)
class Past:
    """What stands in R of B rows, on the host.

    Attributes:
        rows: ``[R]`` those with penalties.
        strengths: ``[3, R]`` the PENALTIES of these.
        ids: ``[R, L]``, 0 where none stands.
        stands: ``[R, L]`` bool.
        produced: ``[R, L]`` bool: stands, and is no part of the prompt.
        num_produced: ``[B]``.
        eos_ids: those that may be banned.
        bans: whether they are in any row.
    """

    rows: IntArray
    strengths: FloatArray
    ids: IntArray
    stands: BoolArray
    produced: BoolArray
    num_produced: IntArray
    eos_ids: IntArray
    bans: bool

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        """What is needed beside the logits."""
        of_bans = (self.num_produced, self.eos_ids) if self.bans else ()
        of_penalties = (self.rows, self.strengths, self.ids, self.stands, self.produced) if self.rows.size else ()
        return (*of_penalties, *of_bans)


def penalise(logits: Tensor, tokens: Tensor, mask: Tensor, past: Past) -> None:
    """Apply the penalties to the rows of ``past``, in place.

    Args:
        logits: ``[B, M, V]``.
        tokens: ``[B, N]`` drafted ids.
        mask: ``[B, M, N]`` bool, those on the path to each node.
        past: what stands before them.

    Cost: O(R (L + M V)).
    """
    at, strengths, ids_before, stands, produced_before = (
        on_device(part, logits.device) for part in (past.rows, past.strengths, past.ids, past.stands, past.produced)
    )
    shape = (len(at), mask.shape[1], logits.shape[-1])
    drafted = torch.zeros(shape, dtype=logits.dtype, device=logits.device)
    ids = tokens[at].unsqueeze(1).expand(-1, mask.shape[1], -1)
    drafted.scatter_add_(2, ids, mask[at].to(logits.dtype))
    produced = _counts(ids_before, produced_before, drafted)
    seen = _counts(ids_before, stands, drafted) > 0
    repetition, presence, frequency = strengths.to(logits.dtype).unsqueeze(-1).unsqueeze(-1)
    values = logits[at]
    scaled = torch.where(values > 0, values / repetition, values * repetition)
    values = torch.where(seen & (repetition != 1), scaled, values)
    logits[at] = values - presence * (produced > 0) - frequency * produced


def _counts(ids: Tensor, counted: Tensor, drafted: Tensor) -> Tensor:
    """Return ``[R, M, V]`` occurrences: those of ids ``[R, L]`` marked by ``counted``, and the paths' ``drafted``."""
    base = torch.zeros(len(ids), drafted.shape[-1], dtype=drafted.dtype, device=drafted.device)
    return base.scatter_add_(1, ids, counted.to(drafted.dtype)).unsqueeze(1) + drafted
