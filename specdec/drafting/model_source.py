"""Sources that draft with a model: sampled ones, those with a head, and the sessions that ask it."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from torch import Tensor

from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftPrefixes,
    DraftSession,
    Head,
    IntArray,
    Needs,
    Offers,
    Oracle,
    Randomness,
    Scores,
    capability_of,
    check_vocabulary,
)
from specdec.drafting.chain_sampler import ChainSampler, Follow, FollowOnDevice
from specdec.drafting.lengths import LengthPolicy, chain_offers, depth_limits, open_length, resolve
from specdec.drafting.planned_trees import GrowWhole
from specdec.drafting.shapes import TreeShape, check_shape
from specdec.drafting.tree_sampler import Frontier, TreeSampler, check_drawable
from specdec.theory import check_finite


class SampledSource:
    """A length or a tree, the temperature of the drafts, and what follows from these for the engine.

    Args:
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.
        tree: the shape of the drafts, in place of a length.
        default: tokens to draft if no argument says.

    Attributes:
        length, temperature, tree: the same; a source with a tree has no length.

    Raises:
        ValueError: an argument out of range, something that is not a length policy or a shape, two ways of saying a
            length, a tree beside a length, a tree that is re-ranked and not greedy.
    """

    def __init__(
        self,
        num_draft_tokens: int | None,
        length: LengthPolicy | None,
        temperature: float | None,
        tree: TreeShape | None = None,
        *,
        default: int,
    ) -> None:
        if temperature is not None:
            check_finite("temperature", temperature)
        self.temperature, self.tree = temperature, tree
        if tree is None:
            self.length = resolve(num_draft_tokens, length, default)
            return
        if num_draft_tokens is not None or length is not None:
            raise ValueError("give tree or a length (num_draft_tokens, length), not both: a tree says how deep it is")
        check_shape(tree)
        check_drawable(tree, temperature)

    @property
    def offers(self) -> Offers:
        """What it declares."""
        laws, tree = self.temperature != 0, self.tree
        if tree is None:
            return chain_offers(self.length, laws)
        depth, nodes = min(tree.max_depth, tree.max_nodes), tree.max_nodes
        return Offers(tree.branches, laws, tree.reads_confidence, max_depth=depth, max_nodes=nodes, paths=tree.paths)


class RunModel(Protocol):
    """A drafting model at work on one run; it gives logits for the ids that stand and for those drafted after them.

    ``rows`` are slots of the run, ``live`` are indices into the batch of a call. Contexts are those of ``own_context``.
    The logits of rows that take no part are not read. A class that names this one as its base need not write the
    methods with a default: trees, a confidence, whole drafts and ``note`` are for models that have them.

    Attributes:
        has_confidence: whether it tells its own belief in a token.
    """

    has_confidence: bool = False

    def share(self, prefixes: DraftPrefixes) -> None:
        """See ``DraftSession.share``."""
        return

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests; arguments as in ``DraftSession.begin``."""

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Learn what stands; arguments as in ``DraftSession.sync``."""

    def end(self, rows: IntArray) -> None:
        """Forget finished requests, which sat in slots ``rows`` ``[B]``."""

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many tokens each row may draft."""
        ...

    def own_context(self, rows: IntArray, context: Context) -> Context:
        """Return the context of rows ``[B]`` as the model reads it; its warping stays that of the requests."""
        return context

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Read what stands and was not read yet.

        Args:
            rows: ``[B]``.
            context: of those rows.
            live: ``[R]`` indices into them of the rows that take part.
            depth: how many depths logits may be asked for until the next call.

        Returns:
            ``[B, 1, V]`` logits of the token after the pending one.
        """
        ...

    def advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Tensor:
        """Read the token that was drafted last.

        Args:
            rows: ``[B]``.
            tokens: ``[B, 1]`` of all those rows.
            live: ``[R]`` indices into them of the rows that draft on.

        Returns:
            ``[B, 1, V]`` logits of the token after it.
        """
        ...

    def grow(self, rows: IntArray, frontier: Frontier) -> Tensor:
        """Read the nodes of a frontier after those of earlier ones; return ``[B, frontier.size, V]`` logits.

        Raises:
            TypeError: the model drafts chains alone, which is the default.
        """
        raise TypeError(f"{type(self).__name__} drafts chains, and no trees")

    def confidence(self) -> Tensor:
        """Return ``[B, 1]``: the chance that the token after the latest logits stands if all before it do.

        Raises:
            TypeError: the model tells none (``has_confidence``), which is the default.
        """
        raise TypeError(f"{type(self).__name__} tells no confidences: read them only if has_confidence")

    def follower(self, context: Context) -> Follow | None:
        """Return what drafts whole chains in one call; see ``ChainSampler``."""
        return None

    def device_follower(self, context: Context) -> FollowOnDevice | None:
        """Return what has the model's device draft whole greedy chains; see ``ChainSampler``."""
        return None

    def grower(self, rows: IntArray, context: Context) -> GrowWhole | None:
        """Return what drafts whole trees of rows ``[B]`` in one call, see ``TreeSampler``; None: nothing does."""
        return None

    def note(self, rows: IntArray, starts: IntArray, draft: Draft) -> None:
        """Learn that a draft is made: nothing more is asked of it.

        Args:
            rows: ``[B]`` slots.
            starts: ``[B]`` ids of each row that the draft follows.
            draft: of those rows.
        """
        return


class ModelSource(SampledSource, ABC):
    """A source whose sessions ask a ``RunModel``, for a chain or for a tree; it says how that model is made.

    Its arguments are those of ``SampledSource``.
    """

    @abstractmethod
    def open_model(self, oracle: Oracle, num_rows: int, capacity: int) -> RunModel:
        """Return the model at work; arguments as in ``DraftSource.open``."""

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        model = self.open_model(oracle, num_rows, capacity)
        if self.tree is not None:
            return TreeSession(model, TreeSampler(self.tree, self.temperature, oracle.device))
        return ChainSession(model, ChainSampler(open_length(self.length, num_rows), self.temperature, oracle.device))


class _Session(DraftSession):
    def __init__(self, model: RunModel) -> None:
        self.model = model

    def share(self, prefixes: DraftPrefixes) -> None:
        self.model.share(prefixes)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.model.begin(rows, prompts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.model.sync(rows, keep, new_ids, scores)

    def end(self, rows: IntArray) -> None:
        self.model.end(rows)


class ChainSession(_Session):
    """Draft chains, sampled from a model's laws.

    Args:
        model: at work on the run.
        sampler: draws.
    """

    def __init__(self, model: RunModel, sampler: ChainSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests; see ``DraftSession.begin``."""
        self.sampler.length.begin(rows)
        super().begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft a chain per row; see ``DraftSession.propose``."""
        model, starts = self.model, context.num_committed
        limits = depth_limits(self.sampler.length, rows, starts, budget)
        limits = np.minimum(limits, model.room(rows, starts))
        own = model.own_context(rows, context)

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            if depth == 0:
                return model.catch_up(rows, own, live, int(limits.max()))
            return model.advance(rows, tokens[:, depth - 1 : depth], live)

        belief, follow = model.confidence if model.has_confidence else None, model.follower(own)
        on_device = model.device_follower(own) if follow is None else None
        draft = self.sampler(rows, own, limits, randomness, next_logits, follow, on_device, belief)
        model.note(rows, starts, draft)
        return draft


class TreeSession(_Session):
    """Draft trees, level by level; arguments as in ``ChainSession``."""

    def __init__(self, model: RunModel, sampler: TreeSampler) -> None:
        super().__init__(model)
        self.sampler = sampler

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft a tree per row; see ``DraftSession.propose``."""
        model, starts = self.model, context.num_committed
        room, own = model.room(rows, starts), model.own_context(rows, context)

        def next_logits(frontier: Frontier) -> Tensor:
            if not frontier.tokens.shape[1]:
                return model.catch_up(rows, own, frontier.live, self.sampler.shape.max_depth)
            return model.grow(rows, frontier)

        draft = self.sampler(own, budget, room, randomness, next_logits, model.grower(rows, own))
        model.note(rows, starts, draft)
        return draft


class HeadSource(ModelSource, ABC):
    """A source whose model is a head; it says its name, and how its head is put to work.

    Its arguments are those of ``SampledSource``.

    Attributes:
        head: it must belong to the decoder's oracle.
    """

    name: str
    head: Head

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(hidden=self.head.layers)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from, the oracle's."""
        return self.head.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run.

        Raises:
            ValueError: another oracle than the head was loaded with, by its vocabulary or layers.
        """
        check_vocabulary(f"draft {self.name!r}", self.head.vocab_size, self.head.oracle.tokenizer, oracle)
        _check_layers(self.name, self.head, oracle)
        return super().open(oracle, num_rows, capacity)


def check_drafter(head: object, name: str) -> None:
    """Raise ValueError if a head is not made for the source of a name."""
    if (drafter := getattr(head, "drafter", None)) != name:
        given = f"draft {name!r} was given {type(head).__name__}"
        if drafter is None:
            raise ValueError(f"{given}, which has no drafter: that of a head for this source is {name!r}")
        raise ValueError(f"{given}, which is made for the source {drafter!r}")


def check_parts(head: Head, parts: Sequence[str], fix: str) -> None:
    """Raise ValueError if a head lacks one of the parts that a source asks for; ``fix`` says what to give."""
    if lacks := [part for part in parts if not hasattr(head, part)]:
        raise ValueError(f"head is of type {type(head).__name__} and lacks {', '.join(lacks)}: {fix}")


def _check_layers(name: str, head: Head, oracle: Oracle) -> None:
    """Raise ValueError if an oracle cannot be the one that a head was loaded with; ``name`` is the source's."""
    there = capability_of(oracle, "hidden_layers")
    if not all(0 <= layer < there for layer in head.layers):
        gives = f"gives those of layers 0..{there - 1}: choose among these, or" if there else "gives none:"
        raise ValueError(
            f"draft {name!r} reads the outputs of layers {head.layers}, and the oracle ({oracle.backend}) {gives} "
            "decode with the oracle that the head was loaded with"
        )
    own, given = (_sizes(one) for one in (head.oracle, oracle))
    if own != given:
        raise ValueError(
            f"draft {name!r} has a head that was loaded with an oracle of {own[0]} layers, {own[1]} wide, and the "
            f"decoder's has {given[0]} layers, {given[1]} wide: give the same oracle to both"
        )


def _sizes(oracle: Oracle) -> tuple[int, int]:
    """Return how many layers an oracle has and how wide they are, as far as it tells."""
    return capability_of(oracle, "hidden_layers"), capability_of(oracle, "hidden_size")
