"""A source whose every draft is compared with a slow reference of its head, through whatever came before."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from drafts import BlockDrafter
from oracles import load_head
from oracles.graphed import GraphedTransformer
from oracles.heads import DFlashHead, GraphedBlockHead, NativeBlockHead
from oracles.native import NativeTransformer
from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Oracle, Randomness, WatchedSession
from tests.graphed.histories import Recorded
from tests.support.backends import needed_native
from tests.support.models.head_folders import LAYOUTS, BlockReference, block_folder
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked


@dataclass
class WatchedHead:
    """Draft as a source does, and note how far its laws are from the reference's.

    Drafts must be sampled at temperature 1 without further warping, so that laws are those of the head.

    Attributes:
        worst: the largest difference of a probability.
        worst_confidence: that of a confidence, if the head tells some and a policy reads them.
        depths: of every node that was compared.
        lengths: ids of every row that was asked for a draft of 1 or more.
    """

    inner: Any
    reference: Any
    worst: float = 0.0
    worst_confidence: float = 0.0
    depths: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        return _Session(self.inner.open(oracle, num_rows, capacity), self)


@dataclass
class _Session(WatchedSession):
    source: WatchedHead

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        draft = super().propose(rows, context, budget, randomness)
        for b, count in enumerate(draft.num_nodes.tolist()):
            if count:
                self._compare(draft, b, context.ids[b, : context.num_committed[b]].tolist(), count)
        return draft

    def _compare(self, draft: Draft, row: int, ids: list[int], count: int) -> None:
        tokens, laws = draft.tokens[row].tolist(), draft.node_laws[row]
        above = list(range(-1, count - 1)) if draft.parents is None else draft.parents[row].tolist()
        self.source.lengths.append(len(ids))
        for node in range(count):
            path, parent = [], above[node]
            while parent >= 0:
                path.insert(0, tokens[parent])
                parent = above[parent]
            wanted = torch.softmax(self.source.reference.logits(ids, path), 0)
            found = laws[node].dense(len(wanted)).double()
            self.source.worst = max(self.source.worst, float((found - wanted).abs().max()))
            self.source.depths.append(len(path))
            if draft.confidence is not None and self.source.head.has_confidence:
                gap = abs(float(draft.confidence[row, node]) - self.source.reference.confidence(ids, path))
                self.source.worst_confidence = max(self.source.worst_confidence, gap)


# How far laws may be from those of a float64 reference.
CLOSE = {"eager": 1e-12, "native": 1e-4}
_KINDS = {"eager": DFlashHead, "native": NativeBlockHead, "graphed": GraphedBlockHead}


def watched_block(
    path: Path, layout: str, backend: str = "eager", changes: Any = (), attention: str = "masked", **options: Any
) -> Any:
    """Return a tiny oracle and a block drafter for it, compared with its slow reference at every step.

    Args:
        path: the head is written there.
        layout: a name in ``LAYOUTS``.
        backend: of both: "eager" or "graphed" in float64, or "native" in float32.
        changes: of what is written.
        attention: of a graphed one.
        options: of the source.
    """
    if backend == "native":
        needed_native()
    plain, exact = tiny_unpacked(), tiny_transformer()
    oracle = exact if backend == "eager" else tiny_transformer(4, torch.float32, 0, NativeTransformer)
    if backend == "graphed":
        own = {"new_capture": Recorded, "attention": attention}
        oracle = tiny_transformer(pack=lambda model: GraphedTransformer(model.pack(), **own))
    folder = block_folder(path, **{**LAYOUTS[layout], **dict(changes)})
    head = load_head(folder.path, oracle)
    assert isinstance(head, _KINDS[backend])
    tables = plain.model.embed_tokens.weight.detach(), plain.lm_head.weight.detach()
    return oracle, WatchedHead(BlockDrafter(head, **options), BlockReference(folder, exact, tables))
