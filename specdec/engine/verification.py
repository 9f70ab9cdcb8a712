"""From scores to drawn decisions: warp, judge, draw, and the step's one host synchronisation."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import BoolArray, Draft, IntArray, Likeliest, Randomness, Scores, VerificationRule
from specdec.engine.comparing import agreed, depths, walked
from specdec.engine.outcome import Decision, Walk
from specdec.laws import Laws
from specdec.rules import Judged, judge
from specdec.transfers import all_on_host, on_host
from specdec.tree import Tree, rooted
from specdec.warping import BatchWarping


@dataclass(frozen=True)
class Evidence:
    """The figures by which ``check_decision`` tells whether a step's decisions mean anything, on the host.

    Attributes:
        bad_nodes: ``[B, N+1]`` bool: logits with NaN or +inf, or without any finite value; of padding too.
        bad_laws: ``[B, N]`` bool: draft nodes whose declared law does not sum to 1 or cannot give their token; None if
            no laws are declared.
        undefined: see ``Draft``.
        stop_probs: ``[B, N+1]`` as the rule gave them; those of the root if it gave a point; None: it gave points only.
        next_mass: ``[B, 1]`` sum of the law of the next token, 1 for a point; None: points only.
        likeliest: of the scores, if it was asked for: no evidence, but it came along.
    """

    bad_nodes: BoolArray
    bad_laws: BoolArray | None
    undefined: IntArray | None
    stop_probs: NDArray[np.float64] | None
    next_mass: NDArray[np.float64] | None
    likeliest: Likeliest | None = None


def decide(
    rule: VerificationRule,
    draft: Draft,
    scores: Scores,
    warping: BatchWarping,
    randomness: Randomness,
    return_logprobs: bool,
    likeliest: Likeliest | None = None,
) -> tuple[Decision, Evidence]:
    """Judge a draft and draw the stop and the next token of every row.

    ``likeliest`` comes to the host with the rest.

    Cost: O(B N V) for the laws, then one copy of O(B N) integers to the host. On the host, if greedy rows meet
        deterministic nodes, and in coupled mode, the target's ids are found or drawn and compared: O(B N) a level.
    """
    if not return_logprobs and is_compared(rule, draft, warping, randomness):
        return _compared(draft, scores, warping, randomness, likeliest)
    there = draft.to(device_of(scores))
    tree, is_chain = there.tree, draft.tree.is_chain
    warped, peaks = _warped(scores, there, warping)
    made = judge(rule, there, warped, randomness)
    columns = _columns_of(draft) | {
        "drawn_stop": made.drawn_stop,
        "next_ids": made.next_ids,
        "depth": None if is_chain else tree.depth,
        "path": None if is_chain else tree.path(made.stop),
        "peaks": peaks,
        **_to_bring(likeliest),
        "logprobs": _path_logprobs(tree, made, warped, scores) if return_logprobs else None,
    }
    if not made.stops.all_points:
        columns |= {"stop_table": made.stops.table, "stop_index": made.stops.index}
    if not made.next_law.all_points:
        columns |= {"next_masses": made.next_law.table.sum(-1, keepdim=True), "next_index": made.next_law.index}
    return _decided(all_on_host(columns))


def _to_bring(likeliest: Likeliest | None) -> dict[str, Tensor | None]:
    return {} if likeliest is None else {"best_ids": likeliest[0], "best": likeliest[1]}


def _columns_of(draft: Draft) -> dict[str, Tensor | None]:
    """Return what the host must know of a draft, root first but for ``tokens``."""
    return {
        "tokens": draft.tokens,
        "num_nodes": draft.num_nodes,
        "is_scout": None if draft.is_scout is None else rooted(draft.is_scout),
        "source": None if draft.source is None else rooted(draft.source),
        "parents": None if draft.parents is None else draft.tree.parents,
        "undefined": draft.undefined,
        "bad_laws": _bad_laws(draft),
    }


def is_compared(rule: VerificationRule, draft: Draft, warping: BatchWarping, randomness: Randomness) -> bool:
    """Tell whether the target's laws become points on the host, and the rule does with them what ``_compared`` does."""
    if not rule.follows_points:
        return False
    is_deterministic = draft.laws is None and warping.is_argmax()
    return (draft.is_chain or rule.trees) and (is_deterministic or randomness.coupled)


def _compared(
    draft: Draft, scores: Scores, warping: BatchWarping, randomness: Randomness, likeliest: Likeliest | None
) -> tuple[Decision, Evidence]:
    """Return what any rule that follows points decides if the target's laws are points, all on the host.

    They are points in greedy rows, and in coupled mode once the target's ids are drawn.
    """
    found_ids, peaks = points(draft, scores, warping, randomness)
    is_verified = None if draft.parents is None and draft.is_scout is None else draft.is_verified
    drawn = {"ids": found_ids, "peaks": peaks, "is_verified": is_verified}
    host = all_on_host(_columns_of(draft) | drawn | _to_bring(likeliest))
    (batch, width), parents, ids = draft.tokens.shape, host.get("parents"), host["ids"]
    if is_verified is None:
        stop = agreed(host["tokens"], host["num_nodes"], ids)
    else:
        above = np.broadcast_to(np.arange(-1, width), ids.shape) if parents is None else parents
        stop, path = walked(host["tokens"], above, host["is_verified"], ids)
        host |= {} if parents is None else {"depth": depths(parents), "path": path}
    return _decided(host | {"drawn_stop": stop, "next_ids": ids[np.arange(batch), stop]})


def points(draft: Draft, scores: Scores, warping: BatchWarping, randomness: Randomness) -> tuple[Tensor, Tensor]:
    """Return the ids ``[B, N+1]`` that the target's laws are points on, or were drawn, and the peaks of its logits.

    They lie where the logits do.
    """
    if warping.is_argmax():
        return scores.best
    there = draft.to(device_of(scores))
    warped, peaks = _warped(scores, there, warping)
    order = np.arange(draft.width + 1)
    return randomness.choose(warped, order, _depths(there, order), "target"), peaks


def _depths(draft: Draft, order: IntArray) -> Tensor | IntArray:
    """Return ``[B, N+1]`` the depths of scored nodes, root first, where the draft lies."""
    if not draft.tokens.is_cpu:
        return draft.tree.depth
    parents = None if draft.parents is None else draft.tree.parents
    return np.broadcast_to(order, (len(draft.tokens), len(order))) if parents is None else depths(on_host(parents))


def device_of(scores: Scores) -> torch.device:
    """Return where the logits of a pass lie, or the ids that stand for them."""
    return (scores.best[0] if scores.logits is None else scores.logits).device


def _warped(scores: Scores, draft: Draft, warping: BatchWarping) -> tuple[Laws, Tensor]:
    """Return the target's laws ``[B, N+1]``, and the peaks of their logits: NaN or infinite if a law is undefined."""
    if warping.is_argmax():
        ids, peaks = scores.best
        return Laws.points(ids), peaks
    assert scores.logits is not None
    adjusted = warping.adjusted(scores.logits, draft)
    warped = warping.laws_of(adjusted)
    return warped, scores.best[1] if adjusted is scores.logits else adjusted.amax(-1)


# A float32 softmax over 10^5 ids sums to 1 within 1e-5; what is not normalised is off by far more.
SUM_TOLERANCE = 1e-4


def _bad_laws(draft: Draft) -> Tensor | None:
    """Return ``[B, N]`` bool, the nodes that cannot have been drawn from their declared law. Cost: reads the tables.

    A rule would take NaN for certain acceptance, and bias the output without a word.
    """
    laws = draft.laws
    if laws is None:
        return None
    bad = ~(laws.probs_of(draft.tokens) > 0)
    if not laws.all_points:
        off = ~((laws.table.sum(-1) - 1).abs() <= SUM_TOLERANCE)
        bad |= (laws.index >= 0) & off[laws.index.clamp(min=0)]
    return bad & draft.tree.is_real[:, 1:]


def _path_logprobs(tree: Tree, made: Judged, warped: Laws, scores: Scores) -> Tensor:
    """Return ``[B, N+1]`` the log-probability of each token of the block; arbitrary beyond it. Cost: O(B N V)."""
    logits = scores.logits
    assert logits is not None
    path = tree.path(made.stop)
    following = torch.cat([path[:, 1:], path[:, :1]], dim=1)
    ids = tree.tokens.gather(1, following)
    ids = ids.scatter(1, tree.depth_of(made.stop).unsqueeze(1), made.next_ids.unsqueeze(1))
    laws = warped.gather(path)
    at_path = logits.gather(1, path.unsqueeze(-1).expand(-1, -1, logits.shape[-1]))
    unwarped = at_path.double().log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return torch.where(laws.index < 0, unwarped, laws.probs_of(ids).log())


def _decided(host: dict[str, Any]) -> tuple[Decision, Evidence]:
    """Return the columns that ``decide`` brought to the host, named and typed."""
    decision = Decision(
        tokens=host["tokens"],
        num_nodes=host["num_nodes"],
        stop=host["drawn_stop"],
        next_ids=host["next_ids"],
        is_scout=host.get("is_scout"),
        source=host.get("source"),
        walk=Walk(host["parents"], host["depth"], host["path"]) if "parents" in host else None,
        logprobs=host.get("logprobs"),
    )
    evidence = Evidence(
        bad_nodes=~np.isfinite(host["peaks"]),
        bad_laws=host.get("bad_laws"),
        undefined=host.get("undefined"),
        stop_probs=_of_tables(host, "stop_table", "stop_index"),
        next_mass=_of_tables(host, "next_masses", "next_index"),
        likeliest=(torch.from_numpy(host["best_ids"]), torch.from_numpy(host["best"])) if "best" in host else None,
    )
    return decision, evidence


def _of_tables(host: dict[str, Any], table: str, index: str) -> NDArray[np.float64] | None:
    """Return the row of a table ``[R, W]`` for each of the laws ``[B]``; 1 and zeros for a point; None: points only."""
    if index not in host:
        return None
    rows: NDArray[np.float64] = host[table][host[index]].astype(np.float64, copy=False)
    is_point = host[index] < 0
    if np.count_nonzero(is_point):
        rows[is_point] = np.arange(rows.shape[1]) == 0
    return rows
