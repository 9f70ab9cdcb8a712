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


class ChainWatch(Protocol):
    """Who decides, between the tokens of chains, how far they go.

    Attributes:
        limits: ``[B]`` tokens of each row. What is told below may lower them, never below what is drawn already.
        reads_entropy, reads_confidence: what is told.
    """

    limits: IntArray
    reads_entropy: bool
    reads_confidence: bool

    def before(self, depth: int, entropy: Tensor) -> None:
        """Learn of the laws that the tokens at a depth would be drawn from.

        Args:
            depth: from 0 on, once each.
            entropy: ``[B]`` float64 in nats, of the model's own law where ids are chosen greedily; 0 in rows that are
                at their limit.
        """

    def after(self, depth: int, confidence: Tensor) -> None:
        """Learn of the tokens at a depth.

        Args:
            depth: from 0 on, once each.
            confidence: ``[B, depth + 1]`` float64 the probabilities of all tokens so far, under the model's own law
                where ids are chosen greedily; 0 beyond a row's limit.
        """


class ChainingOracle(Oracle, Protocol):
    """An oracle that follows its ids, greedy or drawn, without being asked for each: see ``Oracle.chains``."""

    def greedy_chains(
        self,
        tokens: Tensor,
        num_nodes: Tensor,
        cache: Any,
        rows: IntArray,
        limits: IntArray,
        watch: ChainWatch | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Score chains, then follow the likeliest ids: the lowest of equals, the first NaN where there is one.

        Args:
            tokens, num_nodes, cache, rows: see ``Oracle.score``.
            limits: ``[B]`` how many ids to follow in each row, 1 or more in one of them; those of a watch at first.
            watch: is told what it reads, on the host, and may lower the limits. What it raises is raised here, and the
                cache keeps nothing.

        Returns:
            ``[B, N]`` ids, N the largest limit at the end, and their logits; 0 beyond a row's limit. Where a watch
            ended all chains before a draw, the largest logits of that step are a further column: ``[B, N + 1]``. The
            cache keeps the keys of the tokens and of all ids but the last of a row; of the last too if it was ended
            before a draw.

        Guarantee: bit for bit what single passes give, and what ``specdec.certainty`` says of them.
        """

    def sampled_chains(
        self,
        tokens: Tensor,
        num_nodes: Tensor,
        cache: Any,
        rows: IntArray,
        limits: IntArray,
        draws: ChainDraws,
        watch: ChainWatch | None = None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Score chains, then draw ids, each from the law of the logits after those before it.

        Args:
            tokens, num_nodes, cache, rows, limits, watch: see ``greedy_chains``.
            draws: how laws are made of logits, and by which numbers ids are drawn.

        Returns:
            Ids and the largest logits as of ``greedy_chains``, NaN where there is one, and ``[B, N, V]`` float32 the
            laws drawn from, uniform where the logits allow none; all 0 beyond a row's limit. The cache keeps what
            ``greedy_chains`` does.

        Guarantee: bit for bit what single passes, ``Warping.laws`` and ``Randomness.choose`` give.
        Cost: O(N V) memory a row for the laws.
        """
