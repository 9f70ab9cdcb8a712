"""The contracts of heads, small models that read an oracle's hidden states: token by token, or a block at once."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.contracts.chaining import ChainWatch, Draws, WholeDrafts
from specdec.contracts.draft import Draft
from specdec.contracts.drawing import Adjustments
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
        columns: ``[B, M]`` which of the W columns holds the states of position ``starts[b] + i``; any column from
            ``counts[b]`` on. None: they are in order, and M is W.
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
    def drafter(self) -> str:
        """The name of the source that it is made for."""

    @property
    def oracle(self) -> Oracle:
        """The oracle that it was loaded with, or one of equal layers."""

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers whose *outputs* it reads, numbered from 0, as ``Oracle.score(hidden=...)`` returns them."""

    @property
    def vocab_size(self) -> int:
        """How many ids it has: those of the oracle, including ids that it never drafts."""

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> Any:
        """Return an empty ``Cache`` for the features of ``capacity`` positions a row, and what the head makes of them.

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
    """An oracle that lends a head the parts that the head lacks."""

    @property
    def hidden_size(self) -> int:
        """D, the width of the residual stream."""

    @property
    def hidden_layers(self) -> int:
        """How many layers there are whose outputs ``score(hidden=...)`` returns."""

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding table: ``vocab_size``, or more if rows pad it."""

    def embed(self, ids: Tensor) -> Tensor:
        """Return ``[..., D]`` rows of the embedding table, in the oracle's dtype and on its device.

        Whatever is added or multiplied before the first layer (learned positions, scales) is left out.
        """

    def read_out_after(self, norm: Any) -> Callable[[Tensor], Tensor]:
        """Return what reads logits ``[R, V]`` from streams ``[R, D]`` through a last norm in place of the oracle's own.

        Args:
            norm: a module that has ``weight``, ``bias`` (or None) and ``eps``, of the oracle's width.
        """


class BlockLaws(Protocol):
    """The laws of the tokens after some rows' pending ones, depth by depth, for S nodes of a row at a time.

    The nodes of a depth share what the head made of the row; they differ only by the ids before them, if at all.
    """

    def logits(self, depth: int, previous: Tensor, above: Tensor | None = None) -> Tensor:
        """Return logits ``[R, S, V]`` of the token at a depth, below each of S nodes; depths are asked for from 0 on.

        Args:
            depth: the call's number, below the depth that was opened.
            previous: ``[R, S]`` int64 the ids of the nodes: drafted ones, at depth 0 the pending token.
            above: ``[R, S]`` int64 each node's parent among the nodes of the previous call; None: the first of these.
        """

    def confidence(self, depth: int, previous: Tensor) -> Tensor:
        """Return ``[R, S]`` float64: the chance that the token at a depth stands if all before it do.

        It is told before the token is drawn, from the ids before it. Only if the head ``has_confidence``.
        """


class BlockHead(Head, Protocol):
    """A head that makes the laws of a block of tokens in one pass, given the features of all positions before it."""

    @property
    def num_laws(self) -> int:
        """The most tokens of a block."""

    @property
    def max_context(self) -> int:
        """Positions that it can serve, those of drafted tokens among them."""

    @property
    def has_confidence(self) -> bool:
        """Whether its blocks tell confidences."""

    @property
    def chains(self) -> bool:
        """Whether it is a ``ChainingBlockHead``."""

    def open_block(self, cache: Any, rows: IntArray, pending: Tensor, depth: int) -> BlockLaws:
        """Return the laws after the pending tokens of some rows; the cache is as it was.

        Args:
            cache: one that ``new_cache`` returned. It has the features of all positions of these rows before the
                pending token's, one or more.
            rows: ``[R]`` distinct.
            pending: ``[R]`` int64, on the head's device.
            depth: how many laws are wanted, 1 .. ``num_laws``.
        """


class ChainingBlockHead(BlockHead, Protocol):
    """A block head that draws along its blocks by itself: see ``BlockHead.chains``.

    Attributes:
        adjusts: whether it takes ``adjustments``; a head that does not say so is never given any.
    """

    adjusts: bool

    def follow_blocks(
        self,
        cache: Any,
        rows: IntArray,
        pending: IntArray,
        limits: IntArray,
        watch: ChainWatch | None,
        draws: Draws | None,
        adjustments: Adjustments | None,
    ) -> WholeDrafts:
        """Open the blocks of the rows whose limit is not 0, and follow their likeliest ids, or drawn ones, in one call.

        Args:
            cache, rows: see ``open_block``; a row whose limit is 0 may have no features.
            pending: ``[B]``.
            limits: ``[B]`` how many ids each row wants, ``num_laws`` at most, 1 or more in one of them.
            watch: is told of the laws' own probabilities, never of the head's confidences; None: nobody is.
            draws: how ids are drawn; None: the likeliest.
            adjustments: what changes logits before that; see ``adjusts``.

        Returns:
            What ``ChainingOracle.follow_ids`` does.

        Guarantee: bit for bit what ``open_block``, ``Warping.laws`` and ``Randomness.choose`` give.
        """


class DeviceBlockHead(BlockHead, Protocol):
    """A block head whose device follows the likeliest ids of its blocks: it says ``chains_on_device = True``."""

    def device_blocks(self, cache: Any, rows: IntArray, pending: IntArray, limits: IntArray) -> Draft:
        """Open the blocks of some rows, and follow their likeliest ids without the host.

        Args:
            cache, rows: see ``open_block``.
            pending: ``[R]``, on the host.
            limits: ``[R]`` how many ids each row wants, 1 .. ``num_laws``.

        Returns:
            What ``DeviceChainingOracle.device_chains`` does; the cache is as it was.

        Guarantee: the ids are those that ``open_block`` gives, if the laws are.
        Cost: a copy to the device; nothing waits for it.
        """
