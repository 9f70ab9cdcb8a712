"""The contract of heads, small models that read an oracle's hidden states, and what they may ask of the oracle."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle import Oracle
from specdec.transfers import on_device


@dataclass(frozen=True)
class Features:
    """The hidden states of successive positions of some rows, on their way to a head.

    Attributes:
        rows: ``[B]`` distinct rows of the head's cache.
        starts: ``[B]`` the first position of each row.
        counts: ``[B]`` how many positions, 0..M.
        scored: a ``[B, W, D]`` tensor for each layer that the head reads, where the oracle put it, in its dtype.
        columns: ``[B, M]`` where among W the states of position ``starts[b] + i`` stand; from ``counts[b]`` on any of
            them. None: in order, and M is W.
    """

    rows: IntArray
    starts: IntArray
    counts: IntArray
    scored: tuple[Tensor, ...]
    columns: IntArray | None = None

    @cached_property
    def layers(self) -> tuple[Tensor, ...]:
        """``[B, M, D]`` for each layer, in order; what follows the first ``counts[b]`` of a row is arbitrary.

        Cost: a gather for each layer, unless they are in order already.
        """
        if self.columns is None or not self.scored:
            return self.scored
        at = on_device(self.columns, self.scored[0].device).unsqueeze(-1)
        return tuple(layer.gather(1, at.expand(-1, -1, layer.shape[-1])) for layer in self.scored)


class Head(Protocol):
    """A small model that drafts from what an oracle's layers gave at positions that stand.

    Positions are those of the row's ids: position i holds id i, and its hidden states are what the oracle's layers gave
    for that id. The last id of a row, the pending token, has none yet. ``specdec.drafting.HiddenStates`` brings the
    others, in order and each once, but for those that came after ids which were taken back.
    """

    @property
    def oracle(self) -> Oracle:
        """The oracle that it was loaded with, or one of equal layers."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose *outputs* it reads, numbered from 0, as ``Oracle.score(hidden=...)`` returns them."""

    @property
    def vocab_size(self) -> int:
        """Its ids, which are the oracle's; ids that it never drafts among them."""

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> Any:
        """Return an empty ``Cache`` for the features of ``capacity`` positions a row, and what it makes of them.

        Raises:
            ValueError: it would exceed ``max_cache_bytes``.
        """

    def put(self, features: Features, cache: Any) -> None:
        """Take in features; they replace what the cache had of those positions and of all later ones.

        ``truncate(rows, starts)`` was called on the cache before, for rows that were longer.
        """


class SteppingHead(Head, Oracle, Protocol):
    """A head that drafts token by token: a node is a token and the feature of the position *before* it.

    It fulfils the contract of an oracle for a row's ids without the first: its id j, in slot j of its cache, is the
    row's id j + 1, read beside the feature of position j. After each node it has a feature of its own for the node's
    children, in place of the oracle's. Keys that were made of such features are taken back when the oracle's come:
    see ``specdec.drafting.HeadModel``.

    A node whose parent is of the same pass must find the oracle's feature there: drafted chains are scored token by
    token, drafted trees level by level. A head that is a ``ChainingOracle`` too drafts whole ones in a call.
    """


class HostOracle(Oracle, Protocol):
    """An oracle that lends a head what the head has none of its own of."""

    @property
    def hidden_size(self) -> int:
        """D, the width of the residual stream."""

    @property
    def hidden_layers(self) -> int:
        """How many layers there are whose outputs ``score(hidden=...)`` returns."""

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding table: ``vocab_size``, or more where rows pad it."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, in the oracle's dtype and on its device.

        Whatever is added or multiplied before the first layer (learned positions, scales) is left out.
        """

    def read_out_after(self, norm: Any) -> Callable[[Tensor], Tensor]:
        """Return what reads logits ``[R, V]`` from streams ``[R, D]`` through another last norm than the oracle's own.

        Args:
            norm: a module that has ``weight``, ``bias`` (or None) and ``eps``, of the oracle's width.
        """
