"""What a drawn verdict means for each row: the block that it emits. Host side, no model, no loop over rows."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import BoolArray, IntArray, Likeliest


@dataclass(frozen=True)
class Walk:
    """The trees of a step and the walks through them, unless they are chains.

    Attributes:
        parents: ``[B, N+1]``, -1 for the root.
        depth: ``[B, N+1]``.
        path: ``[B, N+1]`` from the root to the stop, arbitrary beyond.
    """

    parents: IntArray
    depth: IntArray
    path: IntArray


class Decision(NamedTuple):
    """The drawn decisions of a step, on the host. Nodes are scored nodes, root first, unless said otherwise.

    Attributes:
        tokens: ``[B, N]`` of the draft's nodes.
        num_nodes: ``[B]`` of the draft.
        stop: ``[B]`` node where the walk stopped.
        next_ids: ``[B]`` the token drawn there.
        is_scout: ``[B, N+1]``, of the root nothing is read; None: no node.
        source: likewise; None: all nodes are by source 0.
        walk: None for chains.
        logprobs: ``[B, N+1]`` along the accepted path, the next token last; None if nobody asked for them.
    """

    tokens: IntArray
    num_nodes: IntArray
    stop: IntArray
    next_ids: IntArray
    is_scout: BoolArray | None = None
    source: IntArray | None = None
    walk: Walk | None = None
    logprobs: NDArray[np.float64] | None = None

    @property
    def draft_depth(self) -> IntArray:
        """``[B]`` the longest path of each draft, scouts included."""
        if self.walk is None:
            return self.num_nodes
        is_real = np.arange(self.walk.depth.shape[1]) <= self.num_nodes[:, None]
        depth: IntArray = np.where(is_real, self.walk.depth, 0).max(1)
        return depth

    @property
    def is_verified(self) -> BoolArray:
        """``[B, N]``: neither the root nor padding nor a scout."""
        real: BoolArray = np.arange(self.tokens.shape[1]) < self.num_nodes[:, None]
        return real if self.is_scout is None else real & ~self.is_scout[:, 1:]


def block_of(decision: Decision) -> tuple[IntArray, IntArray]:
    """Return the tokens that each walk emits if no ending comes first, and how many of them are accepted.

    Returns:
        ``[B, N+1]`` the accepted tokens and the next one, -1 beyond; ``[B]``.

    Cost: O(B N).
    """
    accepted, ids, walk = decision.stop, decision.tokens, decision.walk
    batch, width = ids.shape
    if walk is not None and width:
        accepted = np.take_along_axis(walk.depth, decision.stop[:, None], 1)[:, 0]
        # Beyond the stop the path may hold the root, which is no node of the draft; that is not read.
        ids = np.take_along_axis(ids, walk.path[:, 1:] - 1, 1)
    tokens = np.full((batch, width + 1), -1, dtype=np.int64)
    np.copyto(tokens[:, :-1], ids, where=np.arange(width) < accepted[:, None])
    tokens[np.arange(batch), accepted] = decision.next_ids
    return tokens, accepted


class StepOutcome(NamedTuple):
    """What a step made, from which the rest of its record follows; nobody writes it afterwards.

    Attributes:
        decision: what the blocks follow from.
        block: ``[B, N+1]`` the accepted tokens and the next one, -1 beyond.
        num_accepted: ``[B]``.
        counts: ``[B]`` how many tokens of each block are emitted.
        endings: ``[B]`` codes of the ``Ending`` that each row has met.
        judge: who judged: the rule's name, "native: " before it if a compiled judge did.
        likeliest: of the step's scores, on the host, for a source that reads logits of a device; None: not asked for.
    """

    decision: Decision
    block: IntArray
    num_accepted: IntArray
    counts: IntArray
    endings: IntArray
    judge: str = ""
    likeliest: Likeliest | None = None

    @property
    def path(self) -> Tensor | None:
        """``[B, N+1]`` nodes from the root to the stop, arbitrary beyond; None for chains."""
        return None if self.decision.walk is None else torch.from_numpy(self.decision.walk.path)

    def emitted(self) -> IntArray:
        """Return the tokens that are emitted, ``[B, N+1]``, -1 beyond; a copy."""
        # If no row met an ending, blocks stand whole.
        if not any(self.endings.tolist()):
            return self.block.copy()
        return np.where(np.arange(self.block.shape[1]) < self.counts[:, None], self.block, -1)
