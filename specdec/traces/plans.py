"""Whether drawn drafts have the nodes that were asked for, and siblings whose laws a record can stand for."""

from collections.abc import Iterator

import numpy as np
import torch

from specdec.contracts import Budget, Draft
from specdec.laws import Laws
from specdec.traces.dense import Path_, paths_of


def fault_of_nodes(draft: Draft, budget: Budget, paths: tuple[Path_, ...]) -> str | None:
    """Return in what way drafts have other nodes than a plan within the budget; None: in none.

    A node may be absent if its parent is, or if the law that it is drawn from without its elder siblings has no id
    left: that follows from the law and the draws. Other absences would be the source's choice, for unknown reasons.

    Args:
        draft: ``[B, N]``.
        budget: of the rows.
        paths: of the nodes of a whole draft, level by level.
    """
    limits = zip(budget.max_depth.tolist(), budget.max_nodes.tolist(), strict=True)
    for row, (places, (depth, size)) in enumerate(zip(_places(draft), limits, strict=True)):
        planned = [path for path in paths if len(path) <= depth][:size]
        if set(places) - set(planned):
            return "drafts other trees than were asked for"
        for path in planned:
            if path in places or (len(path) > 1 and path[:-1] not in places):
                continue
            elder = places.get((*path[:-1], path[-1] - 1))
            if path[-1] == 0 or (elder is not None and not _is_exhausted(draft, row, elder, path[-1])):
                return "ends drafts by itself"
    return None


def _places(draft: Draft) -> Iterator[dict[Path_, int]]:
    """Yield the nodes of each row by the ranks on their paths."""
    parents = (draft.tree.above - 1).tolist()
    for above, count in zip(parents, draft.num_nodes.tolist(), strict=True):
        yield {path: node for node, path in enumerate(paths_of(above[:count]))}


def _is_exhausted(draft: Draft, row: int, elder: int, rank: int) -> bool:
    """Tell whether the law of a node's last sibling has no more than ``rank`` ids; that of chosen ones is unknown."""
    law = draft.node_laws[row : row + 1, elder]
    if int(law.index) < 0:
        return True
    return draft.without_replacement is not None and int(law.dense().count_nonzero()) <= rank


def fault_of_siblings(draft: Draft) -> str | None:
    """Return in what way the siblings of drafts ``[B, N]`` are more than draws from one law; None: in none."""
    if len(draft.source_names) > 1:
        return "joins the drafts of several members"
    laws, is_real = draft.node_laws, draft.tree.is_real[:, 1:]
    is_drawn = (laws.index >= 0) & is_real
    if draft.without_replacement is not None and not bool(draft.without_replacement[is_drawn].all()):
        return "draws some of its siblings with replacement, and others without"
    above = draft.tree.above
    elder = (above.unsqueeze(2) == above.unsqueeze(1)).long().argmax(2)  # [B, N] each node's first sibling
    first = laws.index.gather(1, elder)
    for row, node in np.argwhere(((first != laws.index) & is_real).cpu().numpy()).tolist():
        if not _is_same(laws, int(first[row, node]), int(laws.index[row, node])):
            return "draws the siblings of one node from several laws"
    return None


def _is_same(laws: Laws, one: int, other: int) -> bool:
    """Tell whether two rows of a table are equal; -1 is a point mass, and none of them."""
    return min(one, other) >= 0 and torch.equal(laws.table[one], laws.table[other])
