"""What rules for trees that read laws share: ids compared at temperature 0, and laws without earlier siblings."""

import torch
from torch import Tensor

from specdec.contracts import Draft
from specdec.laws import Laws, excluding


def match_ids(draft: Draft, target: Laws) -> Tensor:
    """Return ``[B]`` where the walk stops if it goes into the first child that carries the target's id.

    Args:
        draft: trees ``[B, N]``.
        target: ``[B, N+1]``, points.

    Cost: O(B N log N).
    """
    above = draft.tree.above
    hit = draft.is_verified & (target.point.gather(1, above) == draft.tokens)
    nodes = torch.arange(draft.width + 1, device=hit.device).expand(len(hit), -1)
    # Each node leads to its first child that fits, or to itself.
    first = torch.full_like(nodes, draft.width + 1)
    first = first.scatter_reduce_(1, above, torch.where(hit, nodes[:, 1:], draft.width + 1), "amin")
    onward = torch.where(first > draft.width, nodes, first)
    for _ in range(draft.width.bit_length()):
        onward = onward.gather(1, onward)
    return onward[:, 0]


def conditional_laws(draft: Draft, vocab_size: int) -> Tensor:
    """Return ``[B, N, V]`` the law of each node given its earlier siblings.

    Cost: O(B N V), and O(B N^2) more for draws without replacement.
    """
    declared = draft.node_laws.dense(vocab_size)
    if draft.without_replacement is None:
        return declared
    above = draft.tree.above
    # [B, N, N]: entry (i, j) tells whether node j is an earlier sibling that was removed from node i's law.
    removed = ((above.unsqueeze(2) == above.unsqueeze(1)) & draft.without_replacement.unsqueeze(2)).tril(-1)
    if draft.source is not None:
        removed &= draft.source.unsqueeze(2) == draft.source.unsqueeze(1)
    tokens = draft.tokens.unsqueeze(1).expand(removed.shape)
    narrowed = excluding(draft.node_laws, tokens, removed).dense(vocab_size)
    return torch.where(removed.any(-1, keepdim=True), narrowed, declared)
