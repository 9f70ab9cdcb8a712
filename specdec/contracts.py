"""The types that pass between the parts, and the protocols that the parts fulfil.

Shapes: B rows of a batch, N draft nodes, V vocabulary. A draft's parent -1 is the *pending* token: it is committed, but
its keys are not yet in the cache. In a scoring call the pending token is node 0 and draft node i is node i + 1.
Host-side bookkeeping (rows, lengths) is numpy int64; what follows from the model stays on the model's device.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from specdec.calibration import Calibration
from specdec.laws import Laws
from specdec.oracle_contract import Cache as Cache
from specdec.oracle_contract import Oracle as Oracle
from specdec.oracle_contract import Scores as Scores
from specdec.oracle_contract import Want as Want
from specdec.step_info import BoolArray as BoolArray
from specdec.step_info import IntArray as IntArray
from specdec.step_info import StageInfo as StageInfo
from specdec.step_info import StepInfo as StepInfo


@dataclass(frozen=True)
class Resume:
    """What is left of a scoring pass whose lower layers a source has run, on the target's own cache.

    Attributes:
        layers: (first, last) as of ``specdec.layered.LayeredOracle.score``.
        stream: ``[B, N+1, D]`` before layer ``first``, of the pending token and every node; finite for padding.
    """

    layers: tuple[int, int]
    stream: Tensor


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
            (without ``source`` all siblings are by one). None: no node.
        confidence: ``[B, N]`` the source's belief that the node stands; beside the law, never in place of it.
        is_scout: ``[B, N]`` bool: scored and handed back, never verified, without verified descendants.
        source: ``[B, N]`` int64, index into ``source_names``: who proposed the node.
        source_names: see ``source``; empty: the source's own name.
        decided: ``[B, N]`` bool: the token came out of a lossless verdict on a draft inside the source, which follows
            the node's law, and not out of a single draw from it. None: no node.
        stages: what the stages inside the source did in this call.
        undefined: ``[B, S]`` int64, a column for each of ``source_names`` (one where there are none): how many drafted
            tokens stood before the first one for which that source's model gave NaN or +inf; -1: it never did. The
            engine raises where it did, whatever became of the draft. None: no row.
        resume: the lower layers of the scoring pass are done; only by sources that share the target's cache.

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
    decided: Tensor | None = None
    stages: tuple[StageInfo, ...] = ()
    undefined: Tensor | None = None
    resume: Resume | None = None

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
    def score_options(self) -> dict[str, Any]:
        """How the scoring pass goes on from what the source has done of it; nothing where it has done nothing."""
        return {} if self.resume is None else {"layers": self.resume.layers, "stream": self.resume.stream}

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

    def select(self, rows: IntArray) -> "Warping":
        """Return the warping of some rows (indices into this batch)."""

    def extended(self, ids: IntArray, num_committed: IntArray) -> "Warping":
        """Return the warping of the same rows once they hold other ids ``[B, L]``, as many as ``num_committed``."""


@dataclass(frozen=True)
class Context:
    """What a source may read of the rows of one call.

    Attributes:
        ids: ``[B, L]`` prompt and output of each row; columns from ``num_committed[b]`` on are undefined.
        num_committed: ``[B]`` ids that stand, the pending token (the last of them) included.
        warping: the requests' warping, restricted to these rows.
        cache: the target's, for sources whose ``needs.cache_of`` asks for it. They may score and commit on it, and hand
            it back with the lengths that it had.
    """

    ids: IntArray
    num_committed: IntArray
    warping: Warping
    cache: Cache | None = None

    def select(self, rows: IntArray) -> "Context":
        """Return what may be read of some rows (indices into this batch)."""
        return replace(
            self, ids=self.ids[rows], num_committed=self.num_committed[rows], warping=self.warping.select(rows)
        )


class Randomness(Protocol):
    """The one way to draw. See ``specdec.randomness``."""

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone; then a verdict compares ids that were drawn so."""

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
    """What a source asks of the engine: target logits, or hidden layers, handed to ``begin`` and ``sync``.

    Attributes:
        logits: those of every scored node.
        hidden: layers.
        prompt: ``begin`` gets those of the prompt, O(L V) memory for logits; False: it gets none.
        cache_of: the oracle on whose cache the source drafts, handed to ``propose`` in the context; the decoder's must
            be the same object. Such a source cannot serve inside another one.
    """

    logits: bool = False
    hidden: tuple[int, ...] = ()
    prompt: bool = True
    cache_of: Oracle | None = field(default=None, repr=False)


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

        ``keep`` may be shorter than what the session has seen, by any amount. ``scores`` are those of the nodes drafted
        last, root first (of the root alone where the session was not asked for a draft); None where the model that is
        drafted for did not score them since.
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
