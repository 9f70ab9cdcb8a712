"""From scores to drawn decisions: warp, judge, draw, and the step's one host synchronisation."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import BoolArray, Draft, IntArray, Randomness, Scores, VerificationRule
from specdec.laws import Laws
from specdec.outcome import Decision
from specdec.tree import Tree
from specdec.warping import BatchWarping


@dataclass(frozen=True)
class Decided:
    """A step's draws on the host.

    Attributes:
        decision: where each row stops and what follows.
        bad_nodes: ``[B, N+1]`` bool: logits with NaN or +inf, or without any finite value.
        bad_laws: ``[B, N]`` bool: draft nodes whose declared law is none, or not that of their token; None where no
            laws are declared.
        logprobs: ``[B, N+1]`` along the accepted path, the next token last; None where they were not asked for.
    """

    decision: Decision
    bad_nodes: BoolArray
    bad_laws: BoolArray | None
    logprobs: NDArray[np.float64] | None


def decide(
    rule: VerificationRule,
    draft: Draft,
    tree: Tree,
    scores: Scores,
    warping: BatchWarping,
    randomness: Randomness,
    return_logprobs: bool,
) -> Decided:
    """Judge a draft and draw the stop and the next token of every row.

    Cost: O(B N V) for the laws, then one copy of O(B N) integers to the host.
    """
    assert scores.logits is not None
    adjusted = warping.adjusted(scores.logits, draft.tokens, tree_parents(tree))
    warped = warping.drawn(adjusted)
    # The largest logit is NaN or infinite exactly where a law is undefined; argmax finds NaN too.
    peak = adjusted.gather(-1, warped.point.unsqueeze(-1)).squeeze(-1) if warped.all_points else adjusted.amax(-1)
    bad = ~peak.isfinite() & tree.is_real
    target = warped
    if rule.coupled:
        order = np.arange(tree.size)
        target = Laws.points(randomness.choose(warped, order, tree.depth, "target"))
    verdict = rule(draft, target)
    stop = randomness.choose(verdict.stops, 0, 0, "stop")
    next_ids = randomness.choose(verdict.next_law(stop), 0, tree.depth_of(stop), "next")
    logprobs = _path_logprobs(tree, stop, next_ids, warped, scores.logits) if return_logprobs else None
    return _to_host(draft, tree, stop, next_ids, bad, logprobs)


# A float32 softmax over 10^5 ids sums to 1 within 1e-5; what is not normalised is off by far more.
_SUM_TOLERANCE = 1e-4


def _bad_laws(draft: Draft) -> Tensor | None:
    """Return ``[B, N]`` bool, the nodes that cannot have been drawn from their declared law. Cost: reads the tables.

    A rule would take NaN for certain acceptance, and bias the output without a word.
    """
    laws = draft.laws
    if laws is None:
        return None
    bad = ~(laws.probs_of(draft.tokens) > 0)
    if not laws.all_points:
        off = ~((laws.table.sum(-1) - 1).abs() <= _SUM_TOLERANCE)
        bad |= (laws.index >= 0) & off[laws.index.clamp(min=0)]
    return bad & (torch.arange(draft.width, device=bad.device) < draft.num_nodes.unsqueeze(1))


def tree_parents(tree: Tree) -> Tensor | None:
    """Return the draft's parents ``[B, N]`` (-1 = root) of a scoring tree; None for chains."""
    return None if tree.parents is None else tree.parents[:, 1:] - 1


def _path_logprobs(tree: Tree, stop: Tensor, next_ids: Tensor, warped: Laws, logits: Tensor) -> Tensor:
    """Return ``[B, N+1]`` the log-probability of each token of the block; arbitrary beyond it. Cost: O(B N V)."""
    path = tree.path(stop)
    following = torch.cat([path[:, 1:], path[:, :1]], dim=1)
    ids = tree.tokens.gather(1, following)
    ids = ids.scatter(1, tree.depth_of(stop).unsqueeze(1), next_ids.unsqueeze(1))
    laws = Laws(warped.table, warped.index.gather(1, path), warped.point.gather(1, path))
    at_path = logits.gather(1, path.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    unwarped = at_path.double().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return torch.where(laws.index < 0, unwarped, laws.probs_of(ids).log())


def _to_host(draft: Draft, tree: Tree, stop: Tensor, next_ids: Tensor, bad: Tensor, logprobs: Tensor | None) -> Decided:
    """Copy everything that the host needs in one transfer."""
    parents = tree_parents(tree)
    columns = {
        "head": torch.stack([stop, next_ids, draft.num_nodes], dim=1),
        "tokens": draft.tokens,
        "parents": parents,
        "is_scout": draft.is_scout,
        "source": draft.source,
        "bad": bad,
        "bad_laws": _bad_laws(draft),
        "logprobs": None if logprobs is None else logprobs.view(torch.int64),
    }
    given = {name: column for name, column in columns.items() if column is not None}
    packed: IntArray = torch.cat([column.long() for column in given.values()], dim=1).cpu().numpy()
    host, at = {}, 0
    for name, column in given.items():
        host[name] = packed[:, at : at + column.shape[1]]
        at += column.shape[1]
    nothing = np.zeros(host["tokens"].shape, dtype=np.int64)
    decision = Decision(
        tokens=host["tokens"],
        parents=host.get("parents"),
        num_nodes=host["head"][:, 2],
        is_scout=host.get("is_scout", nothing).astype(np.bool_),
        source=host.get("source", nothing),
        stop=host["head"][:, 0],
        next_ids=host["head"][:, 1],
    )
    values = None if logprobs is None else np.ascontiguousarray(host["logprobs"]).view(np.float64)
    bad_laws = host["bad_laws"].astype(np.bool_) if "bad_laws" in host else None
    return Decided(decision, host["bad"].astype(np.bool_), bad_laws, values)
