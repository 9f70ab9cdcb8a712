"""A budget that the rows of a batch share: which of their drafted nodes are verified."""

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import (
    BoolArray,
    Budget,
    Context,
    Draft,
    DraftSession,
    DraftSource,
    IntArray,
    Offers,
    Oracle,
    Randomness,
    WatchedSession,
    WatchedSource,
    check_tensors,
    is_chain,
)
from specdec.theory import Calibration, check_count, check_share
from specdec.transfers import on_device, on_host


class NodeBudget(Protocol):
    """What chooses, across all rows of a step, the drafted nodes that are verified; the others are dropped unseen."""

    @property
    def lossless(self) -> bool:
        """Whether the joint law of all rows stays the oracle's; ``output_law(..., rows=2)`` tells."""

    def take(self, draft: Draft) -> BoolArray:
        """Return ``[B, N]``, on the host, the nodes to verify: with each node its whole path, and no padding.

        To be lossless it must take positions in one order over all rows. Whether a position is taken may depend on what
        was revealed before: laws, confidences and tokens of positions already taken, in any row. It may not depend on
        the node's own token, nor on that of a position not yet taken, unless the token is a point mass.
        """


@dataclass(frozen=True)
class SharedBudget:
    """Verify at most ``max_nodes`` nodes a step in all rows together, the likeliest to stand first.

    The score of a node is the product of the beliefs in the nodes above it, times what is believed of its own position
    before its token is drawn. The belief in a node is the source's confidence if it tells one, else the probability of
    a drawn token under its own law q. For a drawn node this probability is not known before the draw, so its position
    has the mean: the sum of q(x)^2 over all x. A score is at most that of the node above it. Nodes are taken from the
    largest score down; among equals the lower row goes first, then the smaller depth, then the earlier node.

    Args:
        max_nodes: the most nodes of a step, in all rows together; 0 is plain decoding.
        belief: the belief, from 0 to 1, in a point mass of a source that tells no confidence.

    Raises:
        ValueError: a number out of its range.

    Guarantee: lossless with every lossless rule, the joint law of all rows included, if a confidence is a function of
        the node and of what lies above it. At temperature 0 and in coupled mode the tokens are those without a budget.
        Otherwise the tokens of a seed depend on the batch: ``Result.reproducible`` is False.
    Cost: O(B N log(B N)) on the host, and the sum of squares of each drawn law, O(V); waits for the device if the draft
        lies there.
    Source: the order of DSpark (DeepSpec, 2026, arXiv 2607.05147), whose appendix shows how looking first biases the
        output.
    Deviations: the number of nodes is fixed beforehand, and no confidence of a drawn token decides about that token.
    """

    max_nodes: int
    belief: float = 0.8
    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("max_nodes", self.max_nodes, least=0)
        check_share("belief", self.belief)

    def take(self, draft: Draft) -> BoolArray:
        """Return ``[B, N]`` the nodes that are verified."""
        return take_best(draft, self.max_nodes, self.belief)


@dataclass(frozen=True)
class CostBudget:
    """Verify as many nodes a step as pay off at its batch size, the likeliest of all rows to stand first.

    With B rows in flight a step verifies at most B k nodes, k being ``Calibration.best_length(B, num_draft_tokens)``.
    Decisions come in this order: the rows of the step; the number B k; then, one after the other, the positions that
    are taken, as ``SharedBudget`` takes them. The number does not depend on the step's drafts.

    Args:
        calibration: what drafted tokens are worth and cost, from ``specdec.calibrate`` at some batch size.
        num_draft_tokens: the most tokens that the source drafts; for a tree, its nodes.
        belief: see ``SharedBudget``.

    Raises:
        ValueError: no calibration, or a number out of its range.

    Guarantee: see ``SharedBudget``.
    Cost: that of ``SharedBudget``, and O(num_draft_tokens) a step. Drafting costs what it costs without a budget.
    Source: vLLM's adaptive verification (its documentation, 2026), which sizes the budget of a step by step costs.
    Deviations: there the number also depends on earlier confidences of the requests; here it is the same for all
        batches of one size.
    """

    calibration: Calibration
    num_draft_tokens: int
    belief: float = 0.8
    lossless: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.calibration, Calibration):
            raise ValueError(
                f"calibration={self.calibration!r} is no Calibration: give what specdec.calibrate returns, or "
                "Calibration.independent(...)"
            )
        check_count("num_draft_tokens", self.num_draft_tokens, least=0)
        check_share("belief", self.belief)

    def take(self, draft: Draft) -> BoolArray:
        """Return ``[B, N]`` the nodes that are verified."""
        num_rows = len(draft.num_nodes)
        most = num_rows * self.calibration.best_length(num_rows, self.num_draft_tokens)
        return take_best(draft, most, self.belief)


def take_best(draft: Draft, max_nodes: int, belief: float) -> BoolArray:
    """Return ``[B, N]`` at most ``max_nodes`` nodes, the likeliest to stand; arguments as in ``SharedBudget``."""
    nodes = np.arange(draft.width)
    score, depth = _scores(draft, belief)
    is_real = nodes < on_host(draft.num_nodes)[:, None]
    rows, places = np.nonzero(is_real)
    order = np.lexsort((places, depth[is_real], rows, -score[is_real]))[:max_nodes]
    taken = np.zeros_like(is_real)
    taken[rows[order], places[order]] = True
    return taken


def _scores(draft: Draft, belief: float) -> tuple[NDArray[np.float64], IntArray]:
    """Return ``[B, N]`` the score of each node, which does not read the token of a drawn one, and its depth."""
    stands, beforehand = _beliefs(draft, belief)
    parents = _parents_of(draft)
    shape, rows = (len(parents), draft.width + 1), np.arange(len(parents))
    # Column 0 is the pending token.
    survival, score, depth = np.ones(shape), np.ones(shape), np.zeros(shape, dtype=np.int64)
    for node in range(draft.width):
        above = parents[:, node] + 1
        survival[:, node + 1] = survival[rows, above] * stands[:, node]
        score[:, node + 1] = np.minimum(score[rows, above], survival[rows, above] * beforehand[:, node])
        depth[:, node + 1] = depth[rows, above] + 1
    return score[:, 1:], depth[:, 1:]


def _beliefs(draft: Draft, belief: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return ``[B, N]`` the belief that each node stands, and what is believed of it before its token is drawn."""
    laws = draft.laws
    known = None if draft.confidence is None else np.clip(np.nan_to_num(on_host(draft.confidence.double())), 0.0, 1.0)
    stands = np.full(tuple(draft.tokens.shape), belief) if known is None else known
    if laws is None or laws.all_points:
        return stands, stands
    is_drawn = on_host(laws.index) >= 0
    if known is None:
        stands = np.where(is_drawn, on_host(laws.probs_of(draft.tokens)), belief)
    means = on_host(laws.table.double().square().sum(-1))
    return stands, np.where(is_drawn, means[on_host(laws.index)], stands)


def _parents_of(draft: Draft) -> IntArray:
    """Return ``[B, N]`` the parent of each draft node, -1 for the pending token."""
    if draft.parents is None:
        return np.broadcast_to(np.arange(-1, draft.width - 1), tuple(draft.tokens.shape))
    return on_host(draft.parents)


def share(source: DraftSource, budget: NodeBudget | None, coupled: bool) -> DraftSource:
    """Return a source whose rows share a budget: it drafts as before, and hands over what the budget takes.

    Args:
        source: that drafts.
        budget: of each step; None: the source as it is.
        coupled: the rule's: tokens are drawn by position alone, so that no choice of nodes can change them.

    Raises:
        ValueError: the budget is not a ``NodeBudget``, or the source drafts nothing, or its drafts cannot be cut.
    """
    if budget is None:
        return source
    is_one = callable(getattr(budget, "take", None)) and isinstance(getattr(budget, "lossless", None), bool)
    if isinstance(budget, type) or not is_one:
        raise ValueError(f"budget={budget!r} is no object with take and lossless: give specdec.SharedBudget(max_nodes)")
    if source.offers.max_depth == 0:
        raise ValueError(f"budget chooses among drafted tokens, and draft {source.name!r} drafts none: give a source")
    if source.needs.cache_of is not None:
        raise ValueError(
            f"draft {source.name!r} runs a part of the pass itself, on the oracle's cache, before a budget can choose: "
            "use a source with a cache of its own"
        )
    if source.offers.trees and (source.needs.logits or source.needs.hidden):
        raise ValueError(
            f"draft {source.name!r} branches and reads the scores of the nodes that it drafted, of which a budget "
            "drops some: use chains"
        )

    def watch(session: DraftSession, oracle: Oracle, num_rows: int) -> DraftSession:
        return _Session(session, source, budget, coupled)

    return _BudgetedSource(source, watch)


@dataclass(frozen=True)
class _BudgetedSource(WatchedSource):
    """A source whose rows share a budget."""

    @property
    def offers(self) -> Offers:
        """What it declares."""
        return replace(self.inner.offers, reproducible=False)


@dataclass
class _Session(WatchedSession):
    """A session that drops the nodes that a budget does not take."""

    source: DraftSource
    budget: NodeBudget
    coupled: bool

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        draft = self.inner.propose(rows, context, budget, randomness)
        check_tensors(self.source, draft, len(rows))
        # A draft with nothing to choose from goes on as it is. So does a broken one: the engine says what is wrong.
        if not draft.width or not _is_sound(draft):
            return draft
        if not self.coupled:
            _check_order(self.source, draft)
        taken = self.budget.take(draft)
        _check_taken(self.budget, draft, taken)
        return cut(draft, taken)


def _is_sound(draft: Draft) -> bool:
    """Tell whether counts and parents make a tree of each row, and ids and indices lie within the table of its laws."""
    counts, parents, laws = on_host(draft.num_nodes), _parents_of(draft), draft.laws
    is_tree = (parents >= -1) & (parents < np.arange(draft.width))
    if laws is not None and not laws.all_points:
        if laws.table.dim() != 2:
            return False
        rows, size = laws.table.shape
        if on_host((draft.tokens < 0) | (draft.tokens >= size) | (laws.index >= rows)).any():
            return False
    return bool(is_tree.all() and ((counts >= 0) & (counts <= draft.width)).all())


def _check_order(source: DraftSource, draft: Draft) -> None:
    """Raise ValueError if positions of a draft cannot be taken in an order that reveals one token after the other."""
    if draft.is_scout is not None:
        raise ValueError(f"draft {source.name!r} has scouts, which a shared budget cannot drop: use another source")
    if not draft.is_chain and draft.laws is not None and not draft.laws.all_points:
        raise ValueError(
            f"draft {source.name!r} branches and its tokens are drawn: where such a tree branches may depend on tokens "
            "that a shared budget then drops, which biases; use chains, temperature 0, or rule='coupled'"
        )


def _check_taken(budget: NodeBudget, draft: Draft, taken: BoolArray) -> None:
    """Raise ValueError if the nodes that a budget took are not a tree of real nodes in each row."""
    name, shape = type(budget).__name__, tuple(draft.tokens.shape)
    if not isinstance(taken, np.ndarray):
        raise ValueError(f"budget {name}: take returned a {type(taken).__name__}; give an array of numpy, bool {shape}")
    if taken.shape != shape or taken.dtype != np.bool_:
        raise ValueError(f"budget {name}: take returned {taken.dtype} {taken.shape}, not bool {shape}")
    if (taken & (np.arange(draft.width) >= on_host(draft.num_nodes)[:, None])).any():
        raise ValueError(f"budget {name} took padding: take nodes below num_nodes alone")
    if (taken & ~np.take_along_axis(_with_root(taken), _parents_of(draft) + 1, 1)).any():
        raise ValueError(f"budget {name} took a node without the node above it: take whole paths")


def _with_root(taken: BoolArray) -> BoolArray:
    """Return ``[B, N+1]``: the pending token, always taken, and then the nodes."""
    return np.pad(taken, ((0, 0), (1, 0)), constant_values=True)


def cut(draft: Draft, taken: BoolArray) -> Draft:
    """Return a draft of the nodes that were taken, in their order.

    Args:
        draft: of ``[B, N]`` nodes.
        taken: ``[B, N]``, on the host: with each node its whole path, and no padding.
    """
    counts = taken.sum(1)
    shortened = counts < on_host(draft.num_nodes)
    if not shortened.any():
        return draft
    nodes = np.argsort(~taken, axis=1, kind="stable")[:, : counts.max()]
    parents = None
    if not is_chain(draft.parents):
        place = _with_root(taken).cumsum(1) - 2  # of each node in the new draft, the pending token first
        above = np.take_along_axis(place, np.take_along_axis(_parents_of(draft), nodes, 1) + 1, 1)
        parents = np.where(np.arange(nodes.shape[1]) < counts[:, None], above, -1)
    there = draft.tokens.device
    at, num_nodes, is_cut = (on_device(part, there) for part in (nodes, counts, shortened))
    made = Draft.of_nodes([draft], at, None if parents is None else on_device(parents, there), num_nodes)
    told = {name: getattr(draft, name) for name in ("source_names", "stages", "undefined", "is_native")}
    return replace(made, **told, shortened=is_cut)
