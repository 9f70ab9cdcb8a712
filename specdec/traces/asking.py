"""Asking a source for drafts that are kept and not used."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np
import torch

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    Draft,
    FloatArray,
    IntArray,
    Randomness,
    Scores,
    Warping,
    WatchedSession,
)
from specdec.drafting.lengths import Fixed, LengthSession
from specdec.drafting.shapes import Paths
from specdec.laws import Laws
from specdec.traces.dense import Path_
from specdec.traces.output_laws import OutputLaws


@dataclass(frozen=True)
class Longest(Fixed):
    """Always drafts the most; its own session."""

    heard: list[FloatArray] = field(default_factory=list)
    opened: list[int] = field(default_factory=list)

    def open(self, num_rows: int) -> LengthSession:
        """Return itself, and note how many slots the run has."""
        self.opened.append(num_rows)
        return self

    def limits(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Forget what was heard, and return the most tokens; see ``LengthSession.limits``."""
        self.heard.clear()
        return super().limits(rows, num_committed)


@dataclass(frozen=True)
class LongestHearing(Longest):
    """The same, and hears the entropies that a policy would be told."""

    reads_entropy: ClassVar[bool] = True

    def draws(self, rows: IntArray, entropy: FloatArray) -> BoolArray:
        """Hear the entropies, and go on; see ``LengthSession.draws``."""
        self.heard.append(entropy.copy())  # lent by compiled code, which writes there again
        return super().draws(rows, entropy)


class WatchedPaths(Paths):
    """A shape that is known beforehand, and that notes whether anybody reads which nodes it has."""

    was_read = False

    @property
    def paths(self) -> tuple[Path_, ...]:
        """Every node, see ``Paths``; somebody has read them."""
        self.was_read = True
        return super().paths


class Confiding(WatchedPaths):
    """A shape that is known beforehand, whose trees are drafted level by level, with the confidence of every node."""

    reads_confidence: ClassVar[bool] = True

    def plan(self, max_depth: IntArray, max_nodes: IntArray) -> None:
        """Return None: drafted whole, a tree has no confidences. Arguments as in ``TreeShape.plan``."""


@dataclass
class StepDrafts:
    """The drafts of one step on the host, as ``DenseRecords`` has them; what is not known of nodes has no columns.

    Attributes:
        is_chosen: whether no token was drawn.
    """

    tokens: IntArray
    parents: IntArray
    counts: IntArray
    confidence: FloatArray
    entropy: FloatArray
    is_chosen: bool


@dataclass
class Asking(WatchedSession):
    """A session whose drafts are kept and not handed on.

    Args:
        blocks: takes the drafts.
        heard: what a length policy would be told.
        coupled: whether draws are coupled.
        laws: takes what drafts gave to the tokens of the output; None: nobody asks.
        check: refuses a source that did not ask what it was to ask.

    Raises:
        ValueError: a draft that would be another one in another run.
    """

    blocks: list[StepDrafts]
    heard: list[FloatArray]
    coupled: bool
    laws: OutputLaws | None
    check: Callable[[], None]
    _warping: Warping | None = None

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests; see ``DraftSession.begin``."""
        if self.laws is not None:
            self.laws.begin(rows)
        self.inner.begin(rows, prompts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Take what drafts gave to the tokens of the output, and forward the call; see ``DraftSession.sync``."""
        if self.laws is not None:
            self.laws.take_outputs(rows, new_ids[:, 0], self._target(scores))
        self.inner.sync(rows, keep, new_ids, scores)

    def _target(self, scores: Scores | None) -> Laws | None:
        """Return ``[B]`` the target's laws of the step, if they are needed."""
        if self._warping is None or scores is None or scores.logits is None:
            return None
        logits = scores.logits[:, :1]
        root = torch.zeros(1, dtype=torch.int64, device=logits.device)
        return self._warping.laws(logits, Draft.empty(len(logits), logits.device), root)[:, 0]

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Keep the inner session's draft, and return an empty one, ``[B, 0]``; see ``DraftSession.propose``.

        Raises:
            ValueError: a draft that would be another one in another run.
        """
        draft = self.inner.propose(rows, context, budget, randomness)
        if draft.is_scout is not None or draft.stages:
            raise ValueError(
                "no dense record: the source drafts scouts, which need a verify pass, or has stages, which hand on "
                "several tokens at once and ask a length policy after these alone"
            )
        if len(draft.source_names) > 1:
            raise ValueError(
                "no dense record: the source joins the drafts of several members, of which a length or shape cuts some"
            )
        self.check()
        is_chosen = draft.node_laws.all_points
        if self.laws is not None:
            self.laws.take_draft(draft, budget)
            self._warping = context.warping if self.laws.branches and not is_chosen else None
        elif draft.parents is not None and not (self.coupled or is_chosen):
            raise ValueError(
                "siblings that are drawn are keyed by their tree, so that requests at temperature 0 have other drafts "
                "with another shape: draft greedily (temperature=0), or use rule='coupled'"
            )
        none = np.zeros((len(rows), 0))
        self.blocks.append(
            StepDrafts(
                tokens=draft.tokens.cpu().numpy().copy(),
                parents=draft.tree.above.cpu().numpy() - 1,
                counts=draft.num_nodes.cpu().numpy().copy(),
                confidence=none if draft.confidence is None else draft.confidence.double().cpu().numpy().copy(),
                entropy=np.stack(self.heard, 1) if self.heard else none,
                is_chosen=is_chosen,
            )
        )
        return Draft.empty(len(rows), draft.tokens.device)
