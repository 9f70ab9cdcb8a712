"""Check that sources and their drafts have the form that the contracts ask for."""

import torch
from torch import Tensor

from specdec.contracts.draft import Draft
from specdec.contracts.source import DraftSource


def check_source(source: object, argument: str) -> None:
    """Raise ValueError, naming the argument, if something else is given than a draft source, a name for instance."""
    parts = ("name", "needs", "offers", "vocab_size", "open")
    if not isinstance(source, type) and all(hasattr(source, part) for part in parts):
        return
    said = f"of type {type(source).__name__}"
    if isinstance(source, type):
        said = f"the class {source.__name__}"
    elif isinstance(source, (str, int, float)):
        said = repr(source)
    raise ValueError(f"{argument} is {said}, not a draft source; give an object, such as drafts.PromptLookup()")


# What ought to be tensors of a draft, one entry a node.
_OF_NODES = ("tokens", "parents", "without_replacement", "confidence", "is_scout", "source", "decided")
_IDS = ("tokens", "num_nodes", "parents")


def form_fault(draft: Draft, batch: int) -> str | None:
    """Return what is wrong with the shapes and types of a draft for ``batch`` rows; None: nothing.

    Cost: reads no tensor, so it never waits for the device.
    """
    if not isinstance(draft, Draft):
        return f"propose returned {draft!r}; return a Draft (Draft.empty(batch, device) to draft nothing)"
    given = [(name, x) for name in _OF_NODES if (x := getattr(draft, name)) is not None or name == "tokens"]
    if draft.laws is not None:
        given += [("laws", draft.laws.index), ("laws.point", draft.laws.point)]
    for name, x in (*given, ("num_nodes", draft.num_nodes)):
        if not isinstance(x, Tensor):
            return f"{name} must be a tensor, not {type(x).__name__}"
    wanted, counts = (batch, *draft.tokens.shape[1:2]), draft.num_nodes
    shapes = {name: tuple(x.shape) for name, x in given if x.shape != wanted}
    if counts.shape != (batch,):
        shapes["num_nodes"] = tuple(counts.shape)
    if shapes:
        return f"shapes for {batch} rows: {shapes} should be {wanted}, that of num_nodes ({batch},)"
    if draft.resume is not None and draft.resume.stream.shape[:2] != (batch, draft.width + 1):
        return f"resume.stream {tuple(draft.resume.stream.shape)} must begin with {(batch, draft.width + 1)}"
    by_source = (batch, max(len(draft.source_names), 1))
    if draft.undefined is not None and draft.undefined.shape != by_source:
        return f"undefined {tuple(draft.undefined.shape)} should be {by_source}"
    ids = (draft.tokens, counts, draft.parents)
    types = {name: x.dtype for name, x in zip(_IDS, ids, strict=True) if x is not None and x.dtype != torch.int64}
    return f"tokens, num_nodes and parents must be int64: {types}" if types else None


def check_tensors(source: DraftSource, draft: Draft, batch: int) -> None:
    """Raise ValueError if a source's answer is no draft for ``batch`` rows, by its shapes and types."""
    fault = form_fault(draft, batch)
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")
