"""The types that pass between the parts, and the protocols that the parts fulfil.

Shapes: B rows of a batch, N draft nodes, V vocabulary. A draft's parent -1 is the *pending* token: it is committed, but
its keys are not yet in the cache. In a scoring call the pending token is node 0 and draft node i is node i + 1.
Host-side bookkeeping (rows, lengths) is numpy int64; what follows from the model stays on the model's device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

import torch
from torch import Tensor

from specdec.calibration import Calibration
from specdec.laws import Laws
from specdec.step_info import BoolArray as BoolArray
from specdec.step_info import IntArray as IntArray
from specdec.step_info import StepInfo as StepInfo

Want = Literal["all", "last", "none"]


@dataclass(frozen=True)
class Scores:
    """What a scoring pass returns.

    Attributes:
        logits: ``[B, N+1, V]`` for ``want="all"``, ``[B, 1, V]`` for ``"last"``, None for ``"none"``. Never below
            float32. -inf is legal (a banned id).
        hidden: one ``[B, N+1, D]`` tensor per layer asked for.
    """

    logits: Tensor | None
    hidden: tuple[Tensor, ...] = ()


class Cache(Protocol):
    """Keys and values (or whatever a model remembers) of ``num_rows`` sequences, preallocated.

    ``lengths[r]`` counts the tokens of row r whose keys are cached; the pending token is not among them, so
    ``num_committed = lengths + 1`` between steps. Rollback is "the length did not advance".
    """

    @property
    def num_rows(self) -> int: ...
    @property
    def capacity(self) -> int:
        """Slots per row; a scoring call of M nodes on row r needs ``lengths[r] + M <= capacity``."""

    @property
    def lengths(self) -> IntArray:
        """``[num_rows]`` on the host. Read-only for callers."""

    @property
    def bytes(self) -> int:
        """Memory of the payload."""

    def commit(self, rows: IntArray, path: Tensor | None, num_kept: IntArray) -> None:
        """Keep the first ``num_kept[b]`` nodes of ``path[b]`` of the last scoring call, root first.

        ``path`` ``[B, M]`` holds node indices of the scoring call, increasing along a row; None means a chain
        (node i is the i-th): then only lengths change and no memory moves.
        """

    def truncate(self, rows: IntArray, lengths: IntArray) -> None:
        """Roll ``rows`` back to ``lengths`` (never longer than they are)."""

    def reset(self, rows: IntArray) -> None:
        """Empty ``rows`` for new occupants; nothing a predecessor left, NaN included, can reach them."""


class Oracle(Protocol):
    """A model that scores trees of tokens on its own cache (target or draft model alike)."""

    @property
    def vocab_size(self) -> int:
        """True vocabulary: padded logits are cut to it before they are returned."""

    @property
    def eos_ids(self) -> tuple[int, ...]: ...
    @property
    def max_context(self) -> int: ...
    @property
    def tokenizer(self) -> Any | None:
        """A ``tokenizers.Tokenizer`` or None (prompts must then be ids)."""

    @property
    def device(self) -> torch.device: ...
    @property
    def dtype(self) -> torch.dtype: ...
    @property
    def bitwise(self) -> bool:
        """Whether scores were checked to be bitwise independent of width, tree, batch and chunking."""

    @property
    def weight_bytes(self) -> int: ...

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> Any:
        """Return an empty cache. Raises ValueError where it would exceed ``max_cache_bytes``."""

    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: Any,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
    ) -> Scores:
        """Score trees of nodes in one pass.

        Node i of row b stands at position ``cache.lengths[rows[b]] + depth[i]`` and sees the committed prefix, its
        ancestors and itself. The nodes' keys are left in the cache behind the prefix; ``cache.commit`` keeps some.

        Args:
            tokens: ``[B, M]`` int64; node 0 is the pending token. Padding nodes may hold any valid id.
            parents: ``[B, M]`` int64, -1 for node 0, below the node's own index elsewhere; None for chains.
            num_nodes: ``[B]`` int64, how many nodes of each row are real (1..M).
            cache: what ``new_cache`` returned.
            rows: ``[B]`` the cache rows, distinct.
            want: logits of all nodes, of the last real node of each row, or none.
            hidden: layers whose outputs are returned beside the logits.
        """


@dataclass(frozen=True)
class Draft:
    """Proposed trees, one per row, and the laws that their nodes were drawn from.

    Args:
        tokens: ``[B, N]`` int64.
        num_nodes: ``[B]`` int64, 0..N; nodes beyond are padding (any valid id).
        parents: ``[B, N]`` int64, -1 = the pending token, else a smaller index; None for chains.
        laws: the law each node was *actually drawn from*, shape ``[B, N]``; None: every token was chosen
            deterministically (a point mass on itself). Never a soft probability of a greedily chosen token.
        without_replacement: ``[B, N]`` bool: the node's earlier siblings were removed from its law. None: no node.
        confidence: ``[B, N]`` the source's belief that the node stands; beside the law, never in place of it.
        is_scout: ``[B, N]`` bool: scored and handed back, never verified, without verified descendants.
        source: ``[B, N]`` int64, index into ``source_names``: who proposed the node.

    Siblings stand in the order in which they were drawn.
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

    @staticmethod
    def empty(batch: int, device: torch.device) -> "Draft":
        """Return drafts without nodes: plain decoding."""
        none = torch.zeros(batch, 0, dtype=torch.int64, device=device)
        return Draft(none, torch.zeros(batch, dtype=torch.int64, device=device))

    @property
    def width(self) -> int:
        """N, padding included."""
        return self.tokens.shape[1]

    @property
    def node_laws(self) -> Laws:
        """The laws of shape ``[B, N]``: those declared, or point masses on the tokens."""
        return Laws.points(self.tokens) if self.laws is None else self.laws


@dataclass(frozen=True)
class Budget:
    """How much a row may draft.

    Attributes:
        max_depth: ``[B]`` tokens along a path, scouts included (tokens and context left).
        max_nodes: ``[B]`` nodes of the whole tree.
    """

    max_depth: IntArray
    max_nodes: IntArray


class Warping(Protocol):
    """Turn logits into the laws that tokens are drawn from, as each row's request asks."""

    def laws(
        self,
        logits: Tensor,
        tokens: Tensor,
        parents: Tensor | None = None,
        nodes: Tensor | None = None,
        temperature: float | None = None,
    ) -> Laws:
        """Return the warped laws of some nodes of a tree.

        Args:
            logits: ``[B, M, V]``.
            tokens: ``[B, N]`` draft tokens (without root); penalties and counts at a node see its path in them.
            parents: ``[B, N]`` as in ``Draft``; None for chains.
            nodes: ``[M]`` scoring indices (0 = pending token) at which the logits stand; None: all N + 1.
            temperature: replaces every row's own (0: greedy); None: the request's.
        """


@dataclass(frozen=True)
class Context:
    """What a source may read of the rows of one call.

    Attributes:
        ids: ``[B, L]`` prompt and output of each row; columns from ``num_committed[b]`` on are undefined.
        num_committed: ``[B]`` ids that stand, the pending token (the last of them) included.
        warping: the requests' warping, restricted to these rows.
    """

    ids: IntArray
    num_committed: IntArray
    warping: Warping


class Randomness(Protocol):
    """The one way to draw. See ``specdec.randomness``."""

    def select(self, rows: IntArray) -> "Randomness":
        """Return the streams of some of the rows (indices into this batch)."""

    def extend(self, part: str | int) -> "Randomness":
        """Return streams of their own for a stage, a member or an inner step."""

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, or ``k`` distinct ids in drawing order (``[..., k]``).

        Args:
            laws: shape ``[B]`` or ``[B, M]``.
            node: int or array broadcastable to that shape; with the purpose it names the draw in this stream.
            depth: draft tokens between the pending token and the token drawn (0: it follows the pending token).
            purpose: what the draw is for.
            k: draws without replacement. Where a law has fewer than ``k`` ids, the rest are -1.
        """


@dataclass(frozen=True)
class Needs:
    """What a source asks of the engine: target logits, or hidden layers, handed to ``begin`` and ``sync``."""

    logits: bool = False
    hidden: tuple[int, ...] = ()


@dataclass(frozen=True)
class Offers:
    """What a source declares.

    Attributes:
        trees: drafts may branch.
        laws: nodes are drawn from real laws (else: point masses).
        confidence: drafts carry confidences.
        reproducible: a request's output does not depend on its batch-mates, its slot or scheduling.
        adaptive: drafts depend on how the request's earlier drafts fared, not on its ids alone.
        calibration: measured figures that draft lengths depend on; stored in the result.
        max_depth: longest path ever drafted; a step whose budget is below it counts as shortened.
        max_nodes: upper bound of a draft's nodes (a chain's is its depth), for the cache's slack.
    """

    trees: bool = False
    laws: bool = False
    confidence: bool = False
    reproducible: bool = True
    adaptive: bool = False
    calibration: Calibration | None = None
    max_depth: int = 0
    max_nodes: int = 0


class DraftSession(Protocol):
    """A source at work on one run: it holds the state of every row between calls."""

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests, after their prefill; what the rows held before is forgotten."""

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft a tree per row, within the budget."""

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Learn what stands: the first ``keep[b]`` ids of the row, then ``new_ids[b]`` (``[B, M]``, -1 = padding).

        ``keep`` may be shorter than what the session has seen, by any amount.
        """

    def end(self, rows: IntArray) -> None:
        """Forget finished requests."""


@runtime_checkable
class DraftSource(Protocol):
    """A way of drafting; ``open`` starts a run."""

    @property
    def name(self) -> str: ...
    @property
    def needs(self) -> Needs: ...
    @property
    def offers(self) -> Offers: ...
    @property
    def vocab_size(self) -> int | None:
        """The vocabulary drafted from; None: whatever ids the prompts hold. Another one is refused."""

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run of ``num_rows`` slots of at most ``capacity`` ids each."""


@dataclass(frozen=True)
class Verdict:
    """The law of a decision: where the walk through the draft stops, and what follows there.

    Attributes:
        stops: laws of shape ``[B]`` over scoring nodes 0..N (root first); scouts and padding have probability 0,
            and so has every stop whose next law would be undefined.
    """

    stops: Laws
    width: int
    _next: Any = field(repr=False)

    @property
    def stop_probs(self) -> Tensor:
        """``[B, N+1]`` float64, rows sum to 1."""
        return self.stops.dense(self.width).double()

    def next_law(self, stop: Tensor) -> Laws:
        """Return the law of the token after node ``stop[b]``, shape ``[B]``. Evaluated at the drawn stop only."""
        laws: Laws = self._next(stop)
        return laws


class VerificationRule(Protocol):
    """A pure function from a draft and the target's laws to the law of the decision."""

    @property
    def name(self) -> str: ...
    @property
    def lossless(self) -> bool:
        """Whether the output law is exactly the target's."""

    @property
    def trees(self) -> bool:
        """Whether the rule has a meaning on drafts that branch."""

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone, and target laws become the points so drawn."""

    def __call__(self, draft: Draft, target_laws: Laws | Tensor) -> Verdict:
        """Judge a draft.

        Args:
            draft: as proposed.
            target_laws: shape ``[B, N+1]``, the target's law at every node, or its probabilities ``[B, N+1, V]``.

        Raises:
            ValueError: the rule has no meaning on this draft; the message names one that has.
        """
