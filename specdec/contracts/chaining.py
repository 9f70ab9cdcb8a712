"""The contract of an oracle that drafts chains by itself."""

from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from specdec.contracts.arrays import FloatArray, IntArray
from specdec.contracts.drawing import ChainKeys
from specdec.contracts.oracle import Oracle


@dataclass(frozen=True)
class ChainDraws:
    """What sampled chains need beside logits.

    Args:
        filters: ``[4, B]``, see ``Warping.filters``.
        keys: of B rows.
    """

    filters: FloatArray
    keys: ChainKeys

    def select(self, rows: IntArray) -> "ChainDraws":
        """Return those of some rows (indices into this batch)."""
        return ChainDraws(self.filters[:, rows], self.keys.select(rows))


class ChainingOracle(Oracle, Protocol):
    """An oracle that follows its ids, greedy or drawn, without being asked for each: see ``Oracle.chains``."""

    def greedy_chains(
        self, tokens: Tensor, num_nodes: Tensor, cache: Any, rows: IntArray, limits: IntArray
    ) -> tuple[Tensor, Tensor]:
        """Score chains, then follow the likeliest ids: the lowest of equals, the first NaN if there is one.

        Args:
            tokens, num_nodes, cache, rows: see ``Oracle.score``.
            limits: ``[B]`` how many ids to follow in each row, 1 or more in one of them.

        Returns:
            ``[B, N]`` ids, N the largest limit, and their logits; 0 beyond a row's limit. The cache keeps the keys of
            the tokens and of all ids but the last of a row.

        Guarantee: bit for bit what single passes give.
        """

    def sampled_chains(
        self, tokens: Tensor, num_nodes: Tensor, cache: Any, rows: IntArray, limits: IntArray, draws: ChainDraws
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score chains, then draw ids, each from the law of the logits after those before it.

        Args:
            tokens, num_nodes, cache, rows, limits: see ``greedy_chains``.
            draws: how laws are made of logits, and by which numbers ids are drawn.

        Returns:
            ``[B, N]`` ids and the largest logits, NaN if there is one, and ``[B, N, V]`` float32 the laws drawn
            from, uniform if the logits allow none; all 0 beyond a row's limit. The cache keeps what
            ``greedy_chains`` does.

        Guarantee: bit for bit what single passes, ``Warping.laws`` and ``Randomness.choose`` give.
        Cost: O(N V) memory a row for the laws.
        """
