"""Whether what a user or a source hands over has the form that the contracts ask for."""

import torch
from torch import Tensor

from specdec.contracts.draft import Draft
from specdec.contracts.source import DraftSource


def check_source(source: object, argument: str) -> None:
    """Raise ValueError, naming the argument, where something else is given than a draft source, a name for instance."""
    parts = ("name", "needs", "offers", "vocab_size", "open")
    if not isinstance(source, type) and all(hasattr(source, part) for part in parts):
        return
    said = f"of type {type(source).__name__}"
    if isinstance(source, type):
        said = f"the class {source.__name__}"
    elif isinstance(source, (str, int, float)):
        said = repr(source)
    raise ValueError(f"{argument} is {said}, not a draft source; give an object, such as drafts.PromptLookup()")


def _parts(draft: Draft) -> dict[str, object]:
    """Return what ought to be tensors of a draft, by name."""
    return {
        "tokens": draft.tokens,
        "parents": draft.parents,
        "without_replacement": draft.without_replacement,
        "confidence": draft.confidence,
        "is_scout": draft.is_scout,
        "source": draft.source,
        "decided": draft.decided,
        "laws": None if draft.laws is None else draft.laws.index,
        "num_nodes": draft.num_nodes,
    }


def form_fault(draft: Draft, batch: int) -> str | None:
    """Return what is wrong with the shapes and types of a draft for ``batch`` rows; None: nothing.

    Cost: reads no tensor, so it never waits for the device.
    """
    if not isinstance(draft, Draft):
        return f"propose returned {draft!r}; return a Draft (Draft.empty(batch, device) to draft nothing)"
    fields: dict[str, Tensor] = {}
    for name, x in _parts(draft).items():
        if isinstance(x, Tensor):
            fields[name] = x
        elif x is not None or name in ("tokens", "num_nodes"):
            return f"{name} must be a tensor, not {type(x).__name__}"
    wanted = (batch, draft.width)
    shapes = {name: tuple(x.shape) for name, x in fields.items() if x.shape != wanted and name != "num_nodes"}
    if draft.resume is not None and draft.resume.stream.shape[:2] != (batch, draft.width + 1):
        return f"resume.stream {tuple(draft.resume.stream.shape)} must begin with {(batch, draft.width + 1)}"
    by_source = (batch, max(len(draft.source_names), 1))
    if draft.undefined is not None and draft.undefined.shape != by_source:
        return f"undefined {tuple(draft.undefined.shape)} should be {by_source}"
    if draft.num_nodes.shape != (batch,):
        shapes["num_nodes"] = tuple(draft.num_nodes.shape)
    if shapes:
        return f"shapes for {batch} rows: {shapes} should be {wanted}, that of num_nodes ({batch},)"
    ids = {"tokens": draft.tokens, "num_nodes": draft.num_nodes, "parents": draft.parents}
    types = {name: x.dtype for name, x in ids.items() if x is not None and x.dtype != torch.int64}
    return f"tokens, num_nodes and parents must be int64: {types}" if types else None


def check_tensors(source: DraftSource, draft: Draft, batch: int) -> None:
    """Raise ValueError where a source's answer is no draft for ``batch`` rows, by its shapes and types."""
    fault = form_fault(draft, batch)
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")
