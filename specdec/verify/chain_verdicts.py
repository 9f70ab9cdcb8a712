"""What rules for chains share: to refuse trees, compare ids and draw from a residual; the verdict of ``Standard``."""

from collections.abc import Callable

import torch
from torch import Tensor

from specdec.contracts import Draft, Verdict
from specdec.laws import Laws, has_residual, residual, where


def refuse_tree(name: str, draft: Draft) -> None:
    """Raise ValueError if a draft is not a chain for the rule of that name; it names the rules that judge it."""
    if not draft.is_chain:
        raise ValueError(
            f"rule {name!r} judges chains only; for drafts that branch use rule='multi_draft', 'traversal' or "
            "'sample_and_match'"
        )


def compare_ids(draft: Draft, target: Laws) -> Verdict:
    """Return the verdict on chains ``[B, N]`` if the target's laws ``[B, N+1]`` are all points."""
    agree = (draft.tokens == target.point[:, : draft.width]).cumprod(1).sum(1)
    # Padding counts as agreeing only after a draft that agrees wholly.
    return Verdict(Laws.points(torch.minimum(agree, draft.num_nodes)), draft.width + 1, target.gather)


def next_law_of(draft: Draft, target: Laws, weights: Tensor | None = None) -> Callable[[Tensor], Laws]:
    """Return what computes the law of the token after the stop: max(w p - q, 0) / sum, and p after the whole chain.

    Args:
        draft: chains ``[B, N]``; q is the law that the token after the stop was drawn from.
        target: ``[B, N+1]``; p is the one at the stop.
        weights: ``[B, N+1]`` float64, w at each node; None: 1.

    Cost: O(B V) when it is called.
    """
    drawn_from, width = draft.node_laws, draft.width

    def next_law(stop: Tensor) -> Laws:
        at_stop, at_leaf = target.gather(stop), stop == draft.num_nodes
        # Only the host can tell without waiting that no row was rejected, or every one.
        on_host = stop.device.type == "cpu"
        if width == 0 or target.all_points or (on_host and bool(at_leaf.all())):
            return at_stop
        weight = None if weights is None else weights.gather(1, stop.unsqueeze(1)).squeeze(1)
        left = residual(at_stop, drawn_from.gather(stop.clamp(max=width - 1)), weight)
        return left if on_host and not bool(at_leaf.any()) else where(at_leaf, at_stop, left)

    return next_law


def standard(draft: Draft, target: Laws) -> Verdict:
    """Return the verdict of ``Standard`` on chains ``[B, N]``, from the target's laws ``[B, N+1]``.

    Cost: that of ``Standard``. Rules that change what is accepted, or how many tokens, build on it.
    """
    width = draft.width
    if target.all_points and draft.laws is None:
        return compare_ids(draft, target)
    accept = torch.where(draft.is_verified, _acceptance(draft, target[:, :width]), 0.0)
    reached = torch.constant_pad_nd(accept.cumprod(1), (1, 0), 1.0)
    stop_probs = reached * (1 - torch.constant_pad_nd(accept, (0, 1)))
    return Verdict(Laws.from_probs(stop_probs), width + 1, next_law_of(draft, target))


def _acceptance(draft: Draft, target: Laws) -> Tensor:
    """Return ``[B, N]`` float64, the probability that each token stands once it is reached."""
    p, drawn_from = target.probs_of(draft.tokens), draft.laws
    if drawn_from is None:  # q is 1, and nothing is left beside a token of probability 1
        return p.clamp(max=1)
    q = drawn_from.probs_of(draft.tokens)
    ratio = (p / q.clamp(min=torch.finfo(q.dtype).tiny)).clamp(max=1)
    if target.all_points:
        return ratio
    return torch.where(has_residual(target, drawn_from) | p.isnan() | (target.index < 0), ratio, 1.0)
