"""Trees drafted level by level, by any model that gives logits for the nodes of a level."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, Context, Draft, FloatArray, IntArray, Randomness, first_undefined
from specdec.drafting.assembly import compact_nodes
from specdec.drafting.chain_sampler import drawable_laws
from specdec.drafting.growth import ScoredLevel, Step, growth
from specdec.drafting.levels import Candidates, LevelNodes, pending_level
from specdec.drafting.planned_trees import GrowWhole, draft_trees, tree_draws
from specdec.drafting.shapes import TreeShape
from specdec.laws import Laws
from specdec.transfers import on_device, stage


@dataclass(frozen=True)
class Frontier:
    """The nodes that are scored next, after those that were scored before.

    Attributes:
        tokens: ``[B, M]`` of all scored nodes, on the device; empty while the pending token is scored itself.
        parents: ``[B, M]`` theirs, on the host, -1 for children of the pending token and for padding.
        first: how many of them were scored before; the others are of equal depth.
        live: indices of the rows that take part; the logits of others are not read.
    """

    tokens: Tensor
    parents: IntArray
    first: int
    live: IntArray

    @property
    def size(self) -> int:
        """How many nodes are to be scored: M - first, or 1 for the pending token."""
        return max(self.tokens.shape[1] - self.first, 1)

    @property
    def draft(self) -> Draft:
        """All scored nodes as a draft."""
        batch, width = self.tokens.shape
        parents = on_device(self.parents, self.tokens.device)
        return Draft(self.tokens, torch.full((batch,), width, device=self.tokens.device), parents)


FrontierLogits = Callable[[Frontier], Tensor]


@dataclass(frozen=True)
class TreeSampler:
    """Draw trees level by level from laws warped as the requests ask, along each node's path.

    Siblings are drawn without replacement from one law; if a row drafts greedily, they are its best ids by rank.

    Args:
        shape: says which nodes get how many children.
        temperature: replaces the requests' own; 0 drafts greedily, None follows them.
        device: where drafts are put.

    Raises:
        ValueError: the shape chooses among nodes that were made, which drawn tokens do not allow.
    """

    shape: TreeShape
    temperature: float | None
    device: torch.device

    def __post_init__(self) -> None:
        check_drawable(self.shape, self.temperature)

    def __call__(
        self,
        context: Context,
        budget: Budget,
        room: IntArray,
        randomness: Randomness,
        next_logits: FrontierLogits,
        grow_whole: GrowWhole | None = None,
    ) -> Draft:
        """Return a tree per row, within the budget.

        Args:
            context: of the rows.
            budget: of the rows.
            room: ``[B]`` a further limit of the depth.
            randomness: of the rows; the children of node i of a row's plan (0: the pending token) are drawn with
                ``node=i``, the depth of that node and ``purpose="draft"``.
            next_logits: returns logits ``[B, size, V]`` of a frontier's nodes, finite or -inf.
            grow_whole: drafts trees that are known beforehand, see ``DraftModel.grow_whole``; None if the model cannot.
                It serves if all rows draft greedily or all are sampled, and the numbers of the draws are available.

        Guarantee: the declared laws are those drawn from. What is drawn is kept; a law with too few ids leaves nodes
            absent, and what would be below them is absent too. A row's tree follows from its own ids, budget and draws.
        Cost: one call of ``grow_whole`` if that serves. Else per level one call of ``next_logits``, one warping and,
            for each number of children, one draw. Waits for the device once a level if the shape reads confidences;
            absent nodes are looked for on the host only, and on a device the draft is as wide as it can be.
        """
        depth, nodes = np.maximum(np.minimum(budget.max_depth, room), 0), np.maximum(budget.max_nodes, 0)
        planned = None if grow_whole is None else self.shape.plan(depth, nodes)
        if grow_whole is not None and planned is not None and any(planned[1].tolist()):
            draws = tree_draws(context.warping, self.temperature, randomness)
            if draws is not None:
                return draft_trees(*planned, draws, grow_whole, self.shape.branches, self.device)
        return self._grow(context, depth, nodes, randomness, next_logits)

    def _grow(
        self, context: Context, depth: IntArray, nodes: IntArray, randomness: Randomness, next_logits: FrontierLogits
    ) -> Draft:
        """Return trees within a depth ``[B]`` and number of nodes ``[B]``, drafted level by level."""
        growing = _TreeGrowth(self, context, randomness, next_logits)
        steps: Iterable[Step] = growth(self.shape, depth, nodes, growing.confidence, growing.best)
        known: list[Step] = []
        if not self.shape.reads_confidence:
            steps = known = list(steps)
        # What the draws read goes to the device with the first pass, and so does all that is decided already.
        beforehand = chain(randomness.numbers(), chain.from_iterable(step.arrays for step in known))
        with stage(chain(beforehand, () if self.shape.num_kept is None else (nodes,)), self.device):
            for step in steps:
                with stage(() if known else step.arrays, self.device):
                    growing.draw(step)
            if not growing.levels:
                draft = Draft.empty(len(depth), self.device)
            else:
                draft = _assemble(growing.levels, self.shape, nodes)
        return replace(draft, undefined=first_undefined(growing.peaks)) if growing.peaks else draft


class _TreeGrowth:
    """Trees while they are drawn.

    Args:
        sampler: that draws them.
        context, randomness: of the rows.
        next_logits: see ``TreeSampler``.

    Attributes:
        levels: those drawn so far.
        peaks: of the logits that each was drawn from, ``[B, 1]``.
    """

    def __init__(
        self, sampler: TreeSampler, context: Context, randomness: Randomness, next_logits: FrontierLogits
    ) -> None:
        self._sampler, self._context, self._randomness, self._next_logits = sampler, context, randomness, next_logits
        self.levels: list[LevelNodes] = []
        self.peaks: list[Tensor] = []
        self._level = pending_level(len(context.num_committed), sampler.device)
        self._tokens = self._level.tokens[:, :0]
        self._latest: tuple[ScoredLevel, Candidates] | None = None

    def confidence(self) -> FloatArray:
        return self._level.confidence()

    def best(self, scored: ScoredLevel, k: int) -> FloatArray:
        with stage(scored.arrays, self._sampler.device):
            return self._candidates(scored).best(k)

    def draw(self, step: Step) -> None:
        """Score the nodes of a step, unless a shape has looked at them already, and draw their children."""
        candidates = self._candidates(step.scored)
        if step.children is not None:
            self._level = candidates.children(step.children, step.scored.places.depth, self._randomness)
            self.levels.append(self._level)

    def _candidates(self, scored: ScoredLevel) -> Candidates:
        """Return the laws of the children of scored nodes: those of the latest ones, if these are the same."""
        if self._latest is not None and self._latest[0] is scored:
            return self._latest[1]
        sampler, warping, nodes = self._sampler, self._context.warping, self._level.select(scored.selection)
        if scored.places.depth:
            self._tokens = torch.cat([self._tokens, nodes.tokens], dim=1)
        frontier = Frontier(self._tokens, scored.parents, scored.first, scored.live)
        logits, draft = self._next_logits(frontier), frontier.draft
        last = draft.width + 1
        at = torch.arange(last - frontier.size, last, device=sampler.device)
        laws, peaks = drawable_laws(warping.laws(logits, draft, at, sampler.temperature), logits)
        by_rank = laws.all_points or (sampler.temperature is None and _some_points(laws))

        def warm() -> Laws:
            return drawable_laws(warping.laws(logits, draft, at, 1.0), logits)[0]

        self.peaks.append(torch.where(nodes.is_real, peaks, -torch.inf).amax(1, keepdim=True))
        candidates = Candidates(nodes, laws, by_rank, sampler.shape.reads_confidence, warm)
        self._latest = scored, candidates
        return candidates


def _some_points(laws: Laws) -> bool:
    """Tell whether some of a warping's laws are point masses: on a device by their number, for a look would wait."""
    return not laws.has_no_points if laws.index.is_cpu else len(laws.table) < laws.index.numel()


def check_drawable(shape: TreeShape, temperature: float | None) -> None:
    """Raise ValueError if a shape chooses among nodes that were made, and these may be drawn tokens."""
    if shape.num_kept is not None and temperature != 0:
        raise ValueError(
            f"tree={shape} keeps the best of the nodes that were made: drawn tokens would lose the law that they were "
            "drawn from, and the output its own; draft greedily (temperature=0), or use Grown, which keeps its draws"
        )


def _assemble(levels: list[LevelNodes], shape: TreeShape, max_nodes: IntArray) -> Draft:
    """Return the levels as one draft, without the nodes that are absent or not kept."""
    is_real, above = (torch.cat([getattr(level, name) for level in levels], 1) for name in ("is_real", "parent_slot"))
    if shape.num_kept is not None:
        path_belief = torch.cat([level.path_belief for level in levels], dim=1)
        most = on_device(max_nodes, is_real.device).clamp(max=shape.num_kept)
        is_real = is_real & _best(path_belief * is_real, most)
    order, parents, num_nodes = compact_nodes(is_real, above, shape.max_nodes)
    parts = [level.draft(shape.reads_confidence) for level in levels]
    draft = Draft.of_nodes(parts, order, parents if shape.branches else None, num_nodes)
    without = None if draft.laws is None or not shape.branches else draft.laws.index >= 0
    return replace(draft, without_replacement=without)


def _best(values: Tensor, counts: Tensor) -> Tensor:
    """Return ``[B, S]`` bool: the ``counts[b]`` largest values of each row, the first ones among equals."""
    order = values.argsort(dim=1, descending=True, stable=True)
    kept = torch.arange(values.shape[1], device=values.device) < counts.unsqueeze(1)
    return torch.zeros_like(kept).scatter(1, order, kept)
