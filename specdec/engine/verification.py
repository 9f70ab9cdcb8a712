"""From scores to drawn decisions: warp, judge, draw, and the step's one host synchronisation."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import (
    BoolArray,
    Draft,
    IntArray,
    Likeliest,
    Scores,
    Tree,
    VerificationRule,
    with_root,
)
from specdec.engine.outcome import StepOutcome, Walk, emissions
from specdec.engine.state import Frame
from specdec.laws import Laws
from specdec.sampling import BatchWarping
from specdec.transfers import all_on_host, on_host
from specdec.verify import verify


@dataclass(frozen=True)
class Evidence:
    """The figures by which ``check_decision`` tells whether a step's decisions mean anything, on the host.

    Attributes:
        drawn_stop: ``[B]`` where the walk stopped, as it was drawn: it may be no node.
        bad_nodes: ``[B, N+1]`` bool: logits with NaN or +inf, or without any finite value; padding included.
        bad_laws: ``[B, N]`` bool: draft nodes whose declared law does not sum to 1 or cannot give their token; None if
            no laws are declared.
        undefined: see ``Draft``.
        stop_probs: ``[B, N+1]`` as the rule gave them; 1 at the root for a row that has a point; None: all are points.
        next_mass: ``[B, 1]`` sum of the law of the next token, 1 for a point; None: all are points.
    """

    drawn_stop: IntArray
    bad_nodes: BoolArray
    bad_laws: BoolArray | None
    undefined: IntArray | None
    stop_probs: NDArray[np.float64] | None
    next_mass: NDArray[np.float64] | None


def decide(
    rule: VerificationRule,
    draft: Draft,
    scores: Scores,
    frame: Frame,
    eos_ids: Sequence[int],
    likeliest: Likeliest | None,
) -> tuple[StepOutcome, Evidence]:
    """Judge a draft and draw the stop and the next token of every row; ``check_decision`` has yet to see the numbers.

    Args:
        rule: judges.
        draft: what was scored.
        scores: of all its nodes.
        frame: the step's.
        eos_ids: the oracle's.
        likeliest: what comes to the host with the rest; None: nothing does.

    Cost: O(B N V) for the laws, then one copy of O(B N) integers to the host.
    """
    there = draft.to(device_of(scores))
    tree, is_chain = there.tree, draft.tree.parents is None
    warped, peaks = _target_laws(scores, there, frame.warping)
    made = verify(rule, there, warped, frame.randomness)
    columns = _columns_of(draft) | {
        "drawn_stop": made.drawn_stop,
        "next_ids": made.next_ids,
        "depth": None if is_chain else tree.depth,
        "path": None if is_chain else tree.path(made.stop),
        "peaks": peaks,
        "best_ids": None if likeliest is None else likeliest[0],
        "best": None if likeliest is None else likeliest[1],
        "logprobs": _logprobs(tree, made.stop, made.next_ids, warped, scores) if frame.return_logprobs else None,
    }
    if not made.stops.all_points:
        columns |= {"stop_table": made.stops.table, "stop_index": made.stops.index}
    if not made.next_law.all_points:
        columns |= {"next_masses": made.next_law.table.sum(-1, keepdim=True), "next_index": made.next_law.index}
    return _read(all_on_host(columns), rule, eos_ids, frame.seated.ignore_eos)


def _columns_of(draft: Draft) -> dict[str, Tensor | None]:
    """Return what the host must know of a draft, root first but for ``tokens``."""
    return {
        "tokens": draft.tokens,
        "num_nodes": draft.num_nodes,
        "is_scout": None if draft.is_scout is None else with_root(draft.is_scout),
        "source": None if draft.source is None else with_root(draft.source),
        "parents": None if draft.parents is None else draft.tree.parents,
        "undefined": draft.undefined,
        "bad_laws": _bad_laws(draft),
    }


def device_of(scores: Scores) -> torch.device:
    """Return where the logits of a pass lie, or the ids that stand for them."""
    return (scores.best[0] if scores.logits is None else scores.logits).device


def _target_laws(scores: Scores, draft: Draft, warping: BatchWarping) -> tuple[Laws, Tensor]:
    """Return the target's laws ``[B, N+1]``, and the peaks of their logits: NaN or infinite if a law is undefined."""
    if warping.is_argmax():
        ids, peaks = scores.best
        return Laws.points(ids), peaks
    assert scores.logits is not None
    adjusted = warping.adjust(scores.logits, draft)
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


def path_logprobs(draft: Draft, outcome: StepOutcome, scores: Scores, warping: BatchWarping) -> NDArray[np.float64]:
    """Return the log-probability of each token of blocks that a compiled judge gave, on the host.

    Args:
        draft: ``[B, N]`` that was judged.
        outcome: the judge's.
        scores: of all its nodes, with logits ``[B, N+1, V]``.
        warping: of those rows.

    Returns:
        ``[B, N+1]`` float64, of the accepted tokens and the one after them; arbitrary beyond.

    Cost: the laws of all nodes, O(B N V).
    """
    stop, next_ids = torch.from_numpy(outcome.stop.copy()), torch.from_numpy(outcome.next_ids.copy())
    warped, _ = _target_laws(scores, draft, warping)
    return on_host(_logprobs(draft.tree, stop, next_ids, warped, scores))


def _logprobs(tree: Tree, stop: Tensor, next_ids: Tensor, warped: Laws, scores: Scores) -> Tensor:
    """Return ``[B, N+1]`` the log-probability of each token of the block; arbitrary beyond it. Cost: O(B N V)."""
    logits = scores.logits
    assert logits is not None
    path = tree.path(stop)
    following = torch.cat([path[:, 1:], path[:, :1]], dim=1)
    ids = tree.tokens.gather(1, following)
    ids = ids.scatter(1, tree.depth_of(stop).unsqueeze(1), next_ids.unsqueeze(1))
    return log_probs_at(warped.gather(path), logits, path, ids)


def log_probs_at(laws: Laws, logits: Tensor, at: Tensor, ids: Tensor) -> Tensor:
    """Return ``[B, K]`` the log-probabilities of ids after the scored nodes ``at``, whose laws are given.

    Under a point mass they are those of the unwarped logits ``[B, N+1, V]``. Cost: O(B K V).
    """
    rows = logits.gather(1, at.unsqueeze(-1).expand(-1, -1, logits.shape[-1])).double()
    unwarped = rows.log_softmax(-1).gather(-1, ids.unsqueeze(-1)).squeeze(-1)
    return torch.where(laws.index < 0, unwarped, laws.probs_of(ids).log())


def _read(
    host: dict[str, Any], rule: VerificationRule, eos_ids: Sequence[int], ignore_eos: BoolArray
) -> tuple[StepOutcome, Evidence]:
    """Return the columns that ``decide`` brought to the host, named and typed, and what follows from them."""
    tokens, next_ids = host["tokens"], host["next_ids"]
    stop = np.clip(host["drawn_stop"], 0, tokens.shape[1])
    walk = Walk(host["parents"], host["depth"], host["path"]) if "parents" in host else None
    outcome = StepOutcome(
        tokens=tokens,
        num_nodes=host["num_nodes"],
        stop=stop,
        next_ids=next_ids,
        is_scout=host.get("is_scout"),
        source=host.get("source"),
        walk=walk,
        **emissions(tokens, stop, next_ids, walk, eos_ids, ignore_eos),
        judge=rule.name,
        logprobs=host.get("logprobs"),
        likeliest=(torch.from_numpy(host["best_ids"]), torch.from_numpy(host["best"])) if "best" in host else None,
    )
    evidence = Evidence(
        drawn_stop=host["drawn_stop"],
        bad_nodes=~np.isfinite(host["peaks"]),
        bad_laws=host.get("bad_laws"),
        undefined=host.get("undefined"),
        stop_probs=_of_tables(host, "stop_table", "stop_index"),
        next_mass=_of_tables(host, "next_masses", "next_index"),
    )
    return outcome, evidence


def _of_tables(host: dict[str, Any], table: str, index: str) -> NDArray[np.float64] | None:
    """Return the row of a table ``[R, W]`` for each of the laws ``[B]``; 1 and zeros for a point; None: points only."""
    if index not in host:
        return None
    rows: NDArray[np.float64] = host[table][host[index]].astype(np.float64, copy=False)
    is_point = host[index] < 0
    if np.count_nonzero(is_point):
        rows[is_point] = np.arange(rows.shape[1]) == 0
    return rows
