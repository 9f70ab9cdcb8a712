"""The contract of heads that tell the laws of several tokens at once."""

from typing import Any, Protocol

from torch import Tensor

from specdec.contracts.arrays import Float32Array, IntArray
from specdec.contracts.chaining import ChainDraws, ChainWatch
from specdec.contracts.drawing import Adjustments
from specdec.contracts.head import Head


class Block(Protocol):
    """The laws of the tokens after some rows' pending ones, depth by depth, for S nodes of a row at a time.

    Every node of a depth shares what the head made of the row; it differs by the ids before it alone, if at all.
    """

    def logits(self, depth: int, previous: Tensor, above: Tensor | None = None) -> Tensor:
        """Return logits ``[R, S, V]`` of the token at a depth, below each of S nodes; depths are asked for from 0 on.

        Args:
            depth: the call's number, below the depth that was opened.
            previous: ``[R, S]`` int64 the ids of the nodes: drafted ones, at depth 0 the pending token.
            above: ``[R, S]`` int64 which node of the call before is each one's parent; None: its first.
        """

    def confidence(self, depth: int, previous: Tensor) -> Tensor:
        """Return ``[R, S]`` float64: the chance that the token at a depth stands if all before it do.

        It is told before the token is drawn, of the ids before it. Only if the head ``has_confidence``.
        """


class BlockHead(Head, Protocol):
    """A head that makes the laws of a block of tokens in one pass, given the features of all positions before it."""

    @property
    def drafter(self) -> str:
        """The name of the source that it is made for."""

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

    def open_block(self, cache: Any, rows: IntArray, pending: Tensor, depth: int) -> Block:
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
        adjusts: whether it takes ``adjustments``; who does not say so is never given any.
    """

    adjusts: bool

    def follow_blocks(
        self,
        cache: Any,
        rows: IntArray,
        pending: IntArray,
        limits: IntArray,
        watch: ChainWatch | None,
        draws: ChainDraws | None,
        adjustments: Adjustments | None,
    ) -> tuple[IntArray, Float32Array, Float32Array | None]:
        """Open the blocks of the rows whose limit is not 0, and follow their likeliest ids, or drawn ones, in one call.

        Args:
            cache, rows: see ``open_block``; a row whose limit is 0 may have no features.
            pending: ``[B]``.
            limits: ``[B]`` how many ids each row wants, ``num_laws`` at most, 1 or more in one of them.
            watch: is told of the laws' own probabilities, never of the head's confidences; None: nobody is.
            draws: how ids are drawn; None: the likeliest.
            adjustments: what changes logits before that; see ``adjusts``.

        Returns:
            What ``follow_ids`` does.

        Guarantee: bit for bit what ``open_block``, ``Warping.laws`` and ``Randomness.choose`` give.
        """
