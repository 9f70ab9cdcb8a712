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


# What is a tensor of a draft, with one entry for each node or, of counts, for each row; and its type, if one is asked.
_TYPES = {
    "tokens": torch.int64,
    "num_nodes": torch.int64,
    "parents": torch.int64,
    "without_replacement": torch.bool,
    "confidence": None,
    "is_scout": torch.bool,
    "source": torch.int64,
    "decided": torch.bool,
    "laws": torch.int64,
    "laws.point": torch.int64,
}


def form_fault(draft: Draft, batch: int) -> str | None:
    """Return what is wrong with the shapes and types of a draft for ``batch`` rows; None: nothing.

    Cost: reads no tensor, so it never waits for the device.
    """
    if not isinstance(draft, Draft):
        return f"propose returned {draft!r}; return a Draft (Draft.empty(batch, device) to draft nothing)"
    of_laws: dict[str, object] = {"laws": None, "laws.point": None}
    if draft.laws is not None:
        of_laws = {"laws": draft.laws.index, "laws.point": draft.laws.point}
    of_nodes: tuple[int, ...] = (batch, 0)
    shapes: dict[str, tuple[int, ...]] = {}
    types: dict[str, torch.dtype] = {}
    for name, dtype in _TYPES.items():
        x = of_laws[name] if name in of_laws else getattr(draft, name)
        if x is None and name not in ("tokens", "num_nodes"):
            continue
        if not isinstance(x, Tensor):
            return f"{name} must be a tensor, not {type(x).__name__}"
        if name == "tokens":
            of_nodes = (batch, x.shape[1] if x.dim() > 1 else 0)
        if x.shape != ((batch,) if name == "num_nodes" else of_nodes):
            shapes[name] = tuple(x.shape)
        if dtype is not None and x.dtype != dtype:
            types[name] = x.dtype
    if shapes:
        return f"shapes for {batch} rows: {shapes} should be {of_nodes}, that of num_nodes ({batch},)"
    if draft.resume is not None and draft.resume.stream.shape[:2] != (batch, draft.width + 1):
        return f"resume.stream {tuple(draft.resume.stream.shape)} must begin with {(batch, draft.width + 1)}"
    by_source = (batch, max(len(draft.source_names), 1))
    if draft.undefined is not None:
        if draft.undefined.shape != by_source:
            return f"undefined {tuple(draft.undefined.shape)} should be {by_source}"
        if draft.undefined.dtype != torch.int64:
            types["undefined"] = draft.undefined.dtype
    wanted = {name: _TYPES.get(name, torch.int64) for name in types} if types else None
    return f"tensors of the types {types} must be {wanted}" if types else None


def check_tensors(source: DraftSource, draft: Draft, batch: int) -> None:
    """Raise ValueError if a source's answer is no draft for ``batch`` rows, by its shapes and types."""
    fault = form_fault(draft, batch)
    if fault is not None:
        raise ValueError(f"draft {source.name!r} is malformed: {fault}")
