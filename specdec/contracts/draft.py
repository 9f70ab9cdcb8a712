"""The draft that a source hands over, its form, and the budget that bounds it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle_kinds import LayeredOracle
from specdec.contracts.step import StageInfo
from specdec.contracts.token_tree import Tree, is_chain, parents_with_root, with_root
from specdec.laws import Laws, scatter_rows
from specdec.transfers import on_device, on_host

NEVER = 1 << 32  # more than any depth; see ``Draft.undefined``


@dataclass(frozen=True)
class Resume:
    """The rest of a scoring pass whose lower layers a source has run, on the target's own cache.

    Attributes:
        oracle: whose pass it is: the decoder's own.
        layers: (lowest, last) as in ``specdec.contracts.LayeredOracle.score``.
        stream: ``[B, N+1, D]`` before layer ``lowest``, of the pending token and every node; finite for padding.
    """

    oracle: LayeredOracle
    layers: tuple[int, int]
    stream: Tensor

    def to(self, device: torch.device) -> "Resume":
        """Return it on a device."""
        return replace(self, stream=on_device(self.stream, device))

    def scatter_rows(self, places: IntArray, batch: int) -> "Resume":
        """Return it at ``places`` ``[R]`` of ``batch`` rows, zeros elsewhere; see ``Draft.scatter_rows``."""
        return replace(self, stream=scatter_rows(self.stream, places, batch))


@dataclass(frozen=True)
class Draft:
    """Proposed trees, one per row, and the laws that their nodes were drawn from.

    Args:
        tokens: ``[B, N]`` int64.
        num_nodes: ``[B]`` int64, 0..N; nodes beyond are padding (any valid id).
        parents: ``[B, N]`` int64, -1 = the pending token, else a smaller index; None for chains.
        laws: the law each node was *actually drawn from*, shape ``[B, N]``; None: every token was chosen
            deterministically (a point mass on itself). Never a soft probability of a greedily chosen token.
        without_replacement: ``[B, N]`` bool: the node's earlier siblings by the same source were removed from its law
            (without ``source``, all siblings are by the same one). None: no node.
        confidence: ``[B, N]`` the source's belief that the node stands; beside the law, never in place of it.
        is_scout: ``[B, N]`` bool: scored and handed back, never verified, without verified descendants.
        source: ``[B, N]`` int64, index into ``source_names``: who proposed the node.
        source_names: see ``source``; empty: the source's own name.
        decided: ``[B, N]`` bool: a lossless verdict inside the source gave the token. It follows the node's law, but is
            no single draw from it. None: no node.
        stages: the work of the stages inside the source in this call.
        undefined: ``[B, S]`` int64, a column for each of ``source_names`` (one if there are none): the depth of the
            first token for which that source's model gave NaN or +inf (0: it follows the pending token), or ``NEVER``.
            If it is not ``NEVER``, the engine raises, whatever became of the draft. None: no row.
        shortened: ``[B]`` bool: a budget across rows has dropped nodes of the row. None: of no row.
        resume: the lower layers of the scoring pass are done; only by sources that share the target's cache.
        is_native: a drafting model made the whole draft in one call of compiled code; results report it.

    Siblings are in the order in which they were drawn.
    """

    tokens: Tensor
    num_nodes: Tensor
    parents: Tensor | None = None
    laws: Laws | None = None
    without_replacement: Tensor | None = None
    confidence: Tensor | None = None
    is_scout: Tensor | None = None
    source: Tensor | None = None
    source_names: tuple[str, ...] = ()
    decided: Tensor | None = None
    stages: tuple[StageInfo, ...] = ()
    undefined: Tensor | None = None
    shortened: Tensor | None = None
    resume: Resume | None = None
    is_native: bool = False

    @staticmethod
    def empty(batch: int, device: torch.device) -> "Draft":
        """Return drafts without nodes: plain decoding."""
        none = torch.zeros(batch, 0, dtype=torch.int64, device=device)
        return Draft(none, torch.zeros(batch, dtype=torch.int64, device=device))

    @property
    def width(self) -> int:
        """N, the nodes of every row with padding; ``num_nodes`` counts the real ones."""
        return self.tokens.shape[1]

    @cached_property
    def tree(self) -> Tree:
        """The nodes as they are scored, the pending token first; from here on everything counts these.

        It is made when it is first asked for: a source that goes on writing into ``tokens`` must not ask before.
        """
        return self.after(0)

    @property
    def is_chain(self) -> bool:
        """Whether every row is known to be a chain, and no node a scout."""
        return self.is_scout is None and is_chain(self.parents)

    def after(self, pending: int | IntArray) -> Tree:
        """Return the nodes to score, on the draft's device, with the pending tokens ``[B]`` as their roots."""
        parents, counts = None if self.parents is None else parents_with_root(self.parents), self.num_nodes
        # Not by torch: a pass of a large model drives torch's code out of the CPU's caches, and then its sum takes 40
        # microseconds.
        scored = torch.from_numpy(counts.numpy() + 1) if counts.is_cpu else counts + 1
        return Tree(with_root(self.tokens, pending), parents, scored)

    @property
    def is_verified(self) -> Tensor:
        """``[B, N]`` bool: neither padding nor a scout."""
        is_real = self.tree.is_real[:, 1:]
        return is_real if self.is_scout is None else is_real & ~self.is_scout

    def _move(self, move: Callable[[Any, int], Any]) -> "Draft":
        """Return the draft with each value that has rows moved: ``move(value, what stands for none)``."""
        given = {name: getattr(self, name) for name in _WITH_ROWS}
        return replace(self, **{n: move(value, _NONE.get(n, 0)) for n, value in given.items() if value is not None})

    def to(self, device: torch.device) -> "Draft":
        """Return the draft on a device."""

        def move(value: Any, _: int) -> Any:
            return on_device(value, device) if isinstance(value, Tensor) else value.to(device)

        return self._move(move) if self.tokens.device != device else self

    def numbers(self) -> Iterator[Tensor]:
        """Yield the tensors that ``to`` moves, ``[B]``, ``[B, N]`` or ``[B, S]`` each.

        Those as wide as the vocabulary or as a layer are not among them.
        """
        given = [getattr(self, name) for name in _WITH_ROWS]
        yield from (value for value in given if isinstance(value, Tensor))
        if self.laws is not None:
            yield from (self.laws.index, self.laws.point)

    def scatter_rows(self, places: IntArray, batch: int) -> "Draft":
        """Return a draft for ``batch`` rows that is this one at ``places``, and empty elsewhere.

        Args:
            places: ``[R]`` indices into those rows, distinct and ascending, one for each row of this draft.
            batch: how many rows there are.

        Cost: a copy of all but the table of laws; none if the places are all rows.
        """

        def move(value: Any, none: int) -> Any:
            return (
                scatter_rows(value, places, batch, none)
                if isinstance(value, Tensor)
                else value.scatter_rows(places, batch)
            )

        if len(places) == batch:
            return self
        # What pads the other rows would make trees of chains.
        return replace(self, parents=None if is_chain(self.parents) else self.parents)._move(move)

    @staticmethod
    def of_nodes(parts: Sequence["Draft"], nodes: Tensor, parents: Tensor | None, num_nodes: Tensor) -> "Draft":
        """Return a draft of nodes taken from several drafts of the same rows.

        Args:
            parts: one or more; only the values of their nodes are taken.
            nodes: ``[B, W]`` places of the nodes in the parts side by side; any for padding, which is cleared.
            parents: ``[B, W]`` of the new draft; None for chains.
            num_nodes: ``[B]`` of the new draft.

        Returns:
            A draft. It has confidences if all parts have some; a node lacks whatever else its part lacks. Its laws are
            None if all are point masses.

        Cost: O(B W), and a copy of the parts' tables of laws; no synchronisation.
        """
        is_padding = torch.arange(nodes.shape[1], device=nodes.device) >= num_nodes.unsqueeze(1)
        values: dict[str, Any] = {}
        for name in _OF_NODES:
            given = [getattr(part, name) for part in parts]
            if sum(value is not None for value in given) < (len(parts) if name == "confidence" else 1):
                continue
            none = [torch.zeros_like(part.tokens, dtype=torch.bool) for part in parts]
            side = torch.cat([n if value is None else value for value, n in zip(given, none, strict=True)], dim=1)
            values[name] = side.gather(1, nodes).masked_fill(is_padding, 0)
        laws = Laws.concat([part.node_laws for part in parts], 1).gather(nodes).with_points(is_padding)
        return Draft(**values, num_nodes=num_nodes, parents=parents, laws=None if laws.all_points else laws)

    @property
    def node_laws(self) -> Laws:
        """The laws of shape ``[B, N]``: those declared, or point masses on the tokens."""
        return Laws.points(self.tokens) if self.laws is None else self.laws


def first_undefined(peaks: Sequence[Tensor]) -> Tensor:
    """Return ``Draft.undefined`` ``[B, 1]`` of a source with one model.

    Args:
        peaks: one or more of ``[B, D]``, of successive depths: the logits that ids were made of, finite where nothing
            was read.
    """
    peak = peaks[0] if len(peaks) == 1 else torch.cat(list(peaks), dim=1)
    if peak.is_cpu and np.max(on_host(peak), initial=-np.inf) < np.inf:  # a NaN is the maximum
        return torch.from_numpy(np.full((len(peak), 1), NEVER))
    depth = torch.arange(peak.shape[1], device=peak.device).expand(peak.shape)
    return depth.masked_fill(peak < torch.inf, NEVER).amin(1, keepdim=True)


# Fields with an entry for each row; those with one for each node, but for laws and parents; the values for none, if not
# 0.
_WITH_ROWS = tuple(f.name for f in fields(Draft) if f.name not in ("source_names", "stages", "is_native"))
_OF_NODES = ("tokens", "without_replacement", "confidence", "is_scout", "source", "decided")
_NONE = {"parents": -1, "undefined": NEVER}


@dataclass(frozen=True)
class Budget:
    """How much a row may draft.

    Attributes:
        max_depth: ``[B]`` tokens along a path, scouts included (tokens and context left).
        max_nodes: ``[B]`` nodes of the whole tree.
    """

    max_depth: IntArray
    max_nodes: IntArray


# The tensors of a draft with one entry for each node (``num_nodes``: for each row), and their types, if a type is asked
# for.
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
