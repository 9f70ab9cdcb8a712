"""Which keys a node sees, as the additive masks that ``transformers`` takes: one, or one for each type of layer."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oracles.transformer.attention import slots_on_paths
from specdec.contracts import Tree


@dataclass(frozen=True)
class Reach:
    """How far back a layer sees along a path.

    Attributes:
        window: positions, the node's own included; None: all.
        chunk: positions of a chunk, before whose beginning nothing is seen; None: there are no chunks.
    """

    window: int | None = None
    chunk: int | None = None

    @property
    def limit(self) -> int | None:
        """The most positions that a node sees; None: all."""
        return self.window or self.chunk

    def narrow(self, seen: Tensor, query: Tensor, key: Tensor) -> Tensor:
        """Return ``seen`` ``[B, N, T]`` within reach: nodes at ``query`` ``[B, N, 1]``, keys at ``[B, 1, T]``."""
        if self.window is not None:
            return seen & (key > query - self.window)
        if self.chunk is not None:
            return seen & (key // self.chunk == query // self.chunk)
        return seen


@dataclass(frozen=True)
class MaskPlan:
    """The masks that a model is given.

    Attributes:
        reaches: by type of layer.
        by_type: whether masks are given as a dictionary by type, or as a single one.
    """

    reaches: Mapping[str, Reach]
    by_type: bool

    @property
    def limit(self) -> int | None:
        """The most positions that a limited layer sees; None: no layer is limited."""
        return max((reach.limit for reach in self.reaches.values() if reach.limit is not None), default=None)

    def masks(self, nodes: "MaskNodes", dtype: torch.dtype) -> Tensor | dict[str, Tensor]:
        """Return masks ``[B, 1, N, T]``, 0 for a key that is seen, else ``dtype``'s least number; by type of layer."""
        made = {}
        for name, reach in self.reaches.items():
            seen = reach.narrow(nodes.seen, nodes.positions.unsqueeze(2), nodes.key_positions)
            # The least number and not -inf: libraries add to it, and -inf less -inf is NaN.
            bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
            made[name] = bias.masked_fill_(~seen, torch.finfo(dtype).min).unsqueeze(1)
        return made if self.by_type else next(iter(made.values()))


class MaskNodes:
    """The nodes that one pass scores, and the slots that they read.

    Args:
        tree: ``[B, M]``.
        lengths: ``[B]`` int64, cached tokens of each row, on the tree's device.
        end: slots that are read, T: those of the longest row, its nodes included.
        first: number of nodes that the cache already holds; only the other N are scored.

    Attributes:
        positions: ``[B, N]`` of the nodes that are scored.
        slots: ``[B, N]`` slots of their keys.
        key_positions: ``[B or 1, 1, T]`` positions of the slots.
        seen: ``[B, N, T]`` bool: the committed prefix, ancestors and the node itself.

    Cost: O(B N T), and that of ``Tree.ancestors``.
    """

    def __init__(self, tree: Tree, lengths: Tensor, end: int, first: int) -> None:
        start = lengths.unsqueeze(1)
        self.slots = start + torch.arange(first, tree.size, device=lengths.device)
        self.positions = (start + tree.depth)[:, first:]
        above = (None, None) if tree.parents is None else (tree.ancestors[:, first:], tree.depth)
        self.seen, self.key_positions = slots_on_paths(end, start, self.positions, *above)


def mask_plans(config: Any) -> list[MaskPlan]:
    """Return the ways in which a model may expect its masks, the likeliest first.

    Args:
        config: its ``transformers`` configuration, of the text model.

    Raises:
        ValueError: a type of layer has no keys, or is not one that masks describe; the message names it.
    """
    reaches = {
        "full_attention": Reach(),
        "sliding_attention": Reach(window=getattr(config, "sliding_window", None)),
        "chunked_attention": Reach(chunk=getattr(config, "attention_chunk_size", None)),
    }
    types = tuple(dict.fromkeys(getattr(config, "layer_types", None) or ()))
    if unknown := [name for name in types if name not in reaches]:
        raise ValueError(
            f"it has layers of type {', '.join(map(repr, unknown))}: a layer must keep a key for each token, which can "
            "be rolled back, and see what a 4-D mask says"
        )
    plans = [MaskPlan({name: reaches[name] for name in types}, by_type=True)] if types else []
    if len(types) > 1:
        return plans
    default = "chunked_attention" if reaches["chunked_attention"].limit else "full_attention"
    only = types[0] if types else "sliding_attention" if reaches["sliding_attention"].limit else default
    return [*plans, MaskPlan({only: reaches[only]}, by_type=False)]
