"""Warping, which makes the laws that tokens are drawn from, and randomness, which draws."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts.arrays import BoolArray, FloatArray, IntArray
from specdec.contracts.draft import Draft
from specdec.laws import Laws


@dataclass(frozen=True)
class Adjustments:
    """What changes the logits of B rows before laws are made of them: biases, then penalties, then a ban of EOS.

    Args:
        ids: ``[B, L]`` that stand; columns from ``num_committed[b]`` on are ignored.
        num_committed, prompt_lengths: ``[B]``.
        penalties: ``[3, B]`` for repetition, presence and frequency of ids that stand or lie on a node's path.
        bias_ends: ``[B]`` where the biases of each row end in the two lists that follow.
        bias_ids, biases: ``[K]`` ids, each once a row, and what is added to their logits.
        min_new_tokens: ``[B]`` if fewer tokens of output stand before the next one, EOS has no probability.
        eos_ids: ``[E]``.
    """

    ids: IntArray
    num_committed: IntArray
    prompt_lengths: IntArray
    penalties: FloatArray
    bias_ends: IntArray
    bias_ids: IntArray
    biases: FloatArray
    min_new_tokens: FloatArray
    eos_ids: IntArray

    @cached_property
    def rows_with_penalties(self) -> IntArray:
        """``[R]`` the rows with penalties."""
        return penalised_rows(self.penalties)


def penalised_rows(penalties: FloatArray) -> IntArray:
    """Return ``[R]`` the rows in which penalties ``[3, B]`` may change logits: repetition, presence and frequency."""
    repetition, presence, frequency = penalties
    return np.flatnonzero((repetition != 1) | (presence != 0) | (frequency != 0))


class DraftKernels(Protocol):
    """What a source may ask of the decoder's kernels; ``specdec.kernels.Kernels`` has more."""

    @property
    def are_compiled(self) -> bool:
        """Whether compiled code computes laws and draws."""

    @property
    def walks(self) -> Any:
        """What verifies drafts in one call, a ``specdec.kernels.compiled.NativeWalks``; None: nothing does."""

    def softmax(self, logits: Tensor) -> Tensor:
        """Return the float64 laws at temperature 1 of logits ``[..., V]``."""

    def entropies(self, probs: Tensor) -> Tensor:
        """Return the entropies in nats, float64, of probabilities ``[..., V]``."""


class Warping(Protocol):
    """Turn logits into the laws that tokens are drawn from, as each row's request asks."""

    @property
    def kernels(self) -> DraftKernels:
        """The decoder's kernels, which compute laws."""

    def laws(
        self,
        logits: Tensor,
        draft: Draft,
        nodes: Tensor | None = None,
        temperature: float | None = None,
    ) -> Laws:
        """Return the warped laws of some nodes of a draft, finished or not.

        Args:
            logits: ``[B, M, V]``.
            draft: of ``[B, N]`` tokens; penalties and counts at a node see its path in them.
            nodes: ``[M]`` the scored nodes (0 = pending token) that the logits are of; None: all N + 1.
            temperature: replaces every row's own (0: greedy); None: the request's.
        """

    def is_argmax(self) -> bool:
        """Tell whether every row's law is the point mass of its largest logit, whatever the draft; see ``laws``."""

    def is_greedy(self, temperature: float | None = None) -> bool:
        """Tell whether every row's law is the point mass of its largest logit after ``adjustments``."""

    @property
    def adjustments(self) -> Adjustments | None:
        """What changes logits before anything is made of them, in some of the rows; None: nothing does."""

    @property
    def has_grammars(self) -> bool:
        """Whether a grammar masks some of the rows: each of their nodes has a mask, which no ``adjustments`` hold."""

    def allowed_ids(self, row: int, path: IntArray) -> BoolArray | None:
        """Return ``[V]`` bool, which ids the grammar of a row allows after the ids that stand and drafted ones.

        Args:
            row: an index into the batch.
            path: ``[D]`` drafted ids, in order.

        Returns:
            The mask; it allows no id if the vocabulary cannot go on. None: the row has no grammar, or no text takes
            this path (an id of it is not allowed, or ends the grammar's text).
        """

    def filters(self, temperature: float | None = None) -> FloatArray | None:
        """Return what compiled code needs to make laws of logits after ``adjustments`` by itself; see ``laws``.

        Returns:
            ``[F, B]`` what FILTERS name, temperatures above 0, if these make every row's law of such logits,
            whatever the draft, and the laws of float32 logits on the host are those of ``specdec/kernels/cpp/laws.h``;
            else None.
        """

    def select(self, rows: IntArray) -> "Warping":
        """Return the warping of some rows ``[R]`` (indices into this batch)."""

    def with_ids(self, ids: IntArray, num_committed: IntArray) -> "Warping":
        """Return the warping of the same rows once they hold other ids ``[B, L]``, as many as ``num_committed``."""


class ChainKeys(NamedTuple):
    """The numbers that the tokens of chains and trees are drawn by: ``specdec/kernels/cpp/draws.h`` draws by them.

    Attributes:
        is_race: whether a draw is a race of all ids, or else goes along the running sum of the law.
        bases: ``[B]``, of 64 bits.
        firsts: ``[B]``. What ``choose`` draws with ``node=i, depth=d`` is drawn in row b by the key ``bases[b]``,
            extended by ``firsts[b] + i``, or by ``firsts[b] + d`` in a race.
    """

    is_race: bool
    bases: IntArray
    firsts: IntArray

    def select(self, rows: IntArray) -> "ChainKeys":
        """Return the keys of some rows ``[R]`` (indices into this batch)."""
        return ChainKeys(self.is_race, self.bases[rows], self.firsts[rows])


class OpenVerdict(Protocol):
    """A verdict of a compiled judge on B drafts that awaits two numbers a row: for the stop, and for the next token."""

    @property
    def rule(self) -> str:
        """Name of the rule whose law it is."""

    def law(self) -> tuple[FloatArray, NDArray[Any]]:
        """Return the law that the verdict is drawn from, by the code that decides it.

        Returns:
            ``[B, N+1]`` the probability of stopping at each node, and ``[B, N+1, V]``, in the type of the logits, what
            each id has after a stop there; it need not sum to 1.
        """

    def verify(self, rows: IntArray, uniforms: FloatArray) -> tuple[IntArray, IntArray]:
        """Return the stops ``[M]`` and the next ids ``[M]`` that numbers ``[M, 2]`` on [0, 1) make of rows ``[M]``.

        The draw of an id goes along the running sum of its law: see ``specdec.sampling``.
        """


class Randomness(Protocol):
    """The one way to draw. See ``specdec.sampling.randomness``.

    ``chain_keys`` and ``verdict_numbers`` let compiled code make the draws of ``choose`` without being called for each;
    ``check_draft`` compares its drafts with those that ``choose`` draws.
    """

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone; then a verdict compares ids that were drawn so."""

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays ``[B]`` of the host that draws on a device read; they go there with the pass."""
        yield from ()

    def select(self, rows: IntArray) -> "Randomness":
        """Return the streams of some of the rows ``[R]`` (indices into this batch)."""

    def extend(self, part: str | int) -> "Randomness":
        """Return streams of their own for a stage, a member or an inner step."""

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, or ``k`` distinct ids in drawing order (``[..., k]``).

        Args:
            laws: shape ``[B]`` or ``[B, M]``.
            node: int or array broadcastable to that shape; with the purpose it names the draw in this stream.
            depth: draft tokens between the pending token and the token drawn (0: it follows the pending token).
            purpose: what the draw is for.
            k: draws without replacement. If a law has fewer than ``k`` ids, the rest are -1.
        """

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys by which ``choose`` would draw the tokens of chains and trees with this purpose.

        Drafting models ask for "draft".

        None, which is the default: draws are made by ``choose`` alone, because it does more than draw by numbers (it
        records, or overrules).
        """
        return None

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> IntArray | FloatArray | None:
        """Return the numbers by which a compiled judge draws a verdict, as ``choose`` would.

        Args:
            num_rows: B, the rows of the batch.
            verdict: to be drawn; draws by keys do not read it.
            purposes: of the draws of the stop and of the next token, both at node 0.

        Returns:
            Integers: the path of one stream for each row (see ``specdec.kernels.draws.Streams``), then the
            codes of the purposes that extend it; in coupled mode a key a row, then a position for each.
            Or ``[B, 2]`` numbers on [0, 1), for the stop and for the next token. None, which is the default: the rule
            judges and ``choose`` draws, because the streams are of another kind, or ``choose`` does more than draw by
            numbers.
        """
        return None
