"""Drafts and laws as compiled judges read them."""

from typing import Any

from specdec.contracts import NEVER, Draft, Tree
from specdec.kernels.compiled import DraftBuffers
from specdec.laws import Laws
from specdec.transfers import on_host


def draft_buffers(draft: Draft, nodes: Tree) -> DraftBuffers:
    """Return a draft as compiled code reads it; ``nodes`` are from ``draft.after``."""
    scouts, sources, undefined = (
        None if part is None else on_host(part) for part in (draft.is_scout, draft.source, draft.undefined)
    )
    return DraftBuffers(*nodes.arrays(), scouts, sources, len(draft.source_names) or 1, undefined, NEVER)


def law_buffers(laws: Laws | None) -> tuple[Any, Any, Any] | None:
    """Return table, index and point of laws; None for none."""
    return None if laws is None else (laws.table, laws.index, laws.point)
