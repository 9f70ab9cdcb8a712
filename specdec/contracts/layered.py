"""The contract of an oracle whose pass can be cut between two layers."""

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from specdec.contracts.arrays import IntArray
from specdec.contracts.oracle import Oracle, Scores, Want


class LayeredOracle(Oracle, Protocol):
    """An oracle whose pass can be cut between two of its ``num_layers``: the parts leave the bits of the whole."""

    def read_out(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``, as after the last layer."""

    def last_norm(self, stream: Tensor) -> Tensor:
        """Return a residual stream ``[R, D]``, as after the last layer, as the head reads it: normed."""

    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: Any,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
        *,
        layers: tuple[int, int] | None = None,
        stream: Tensor | None = None,
    ) -> Scores:
        """Score trees of nodes in one pass, or in a part of one.

        Args:
            tokens, parents, num_nodes, cache, rows, hidden, first: see ``Oracle.score``.
            want: "none" if the last layer is not among those run.
            layers: (lowest, last): run the layers lowest .. last - 1, which write their own keys only. The layers below
                must have scored the same nodes of the same rows, in one pass or in several. None: all.
            stream: ``[B, M, D]`` the residual stream of the nodes before layer ``lowest``, if that is above 0;
                finite for padding too.
        """


@runtime_checkable
class LayerHead(Protocol):
    """A head that was made for one place in a stack of layers, and says which."""

    @property
    def num_layers(self) -> int:
        """The layers below it: it reads the residual stream after so many."""

    def __call__(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from a residual stream ``[R, D]``."""
