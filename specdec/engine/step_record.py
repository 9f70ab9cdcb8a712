"""The record of a step: what is at hand is kept, and the rest is worked out when it is read, or of many steps at once.

Host side, no model, no loop over rows.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import BoolArray, Ending, IntArray, StageInfo, StepInfo
from specdec.engine.outcome import Block, Decision, Made
from specdec.stats import stacked


class StepRecord(StepInfo):
    """A ``StepInfo`` some of whose fields are worked out when they are first read, from what the step made."""

    def __getattr__(self, name: str) -> Any:
        # Reached only for what is not there, or not yet.
        if name.startswith("_") or vars(self).get("made") is None:
            raise AttributeError(f"a step's record has no {name!r}")
        work_out([self])
        return getattr(self, name)


def record(
    made: Made,
    *,
    requests: IntArray,
    num_committed: IntArray,
    shortened: BoolArray,
    seconds: dict[str, float],
    source_names: tuple[str, ...] = ("",),
    stages: tuple[StageInfo, ...] = (),
) -> StepInfo:
    """Return the record of a step.

    Args:
        made: by the step.
        requests, num_committed, shortened, seconds, source_names, stages: see ``StepInfo``.

    Cost: O(1); what is left for later O(B N) for chains, O(B N^2) for trees.
    """
    info, block = StepRecord.__new__(StepRecord), made.block
    vars(info).update(
        made=made, requests=requests, num_committed=num_committed, shortened=shortened, seconds=seconds,
        source_names=source_names, stages=stages, num_accepted=block.num_accepted, num_emitted=made.counts,
        logprobs=made.logprobs, num_nodes=block.tokens.shape[1],
    )  # fmt: skip
    return info


def work_out(infos: Iterable[StepInfo]) -> None:
    """Work out now what records have left for later, the chains of all steps together.

    Cost: see ``record``; of chains a few operations for all steps together, and of every step a copy of its own part.
    """
    left = [info for info in infos if "made" in vars(info)]
    chains = [info for info in left if vars(info)["made"].path is None]
    alone = chains if len(chains) == 1 else []
    for info in [*alone, *(info for info in left if vars(info)["made"].path is not None)]:
        vars(info).update(_worked_out(vars(info)["made"]))
        del vars(info)["made"]
    if len(chains) > 1:
        _share_out(_worked_out(_joined([vars(info)["made"] for info in chains])), chains)


def _joined(parts: Sequence[Made]) -> Made:
    """Return what several steps on chains made as if one had: their rows one after the other, padded."""
    decisions = [part.decision for part in parts]
    tokens = stacked([part.block.tokens for part in parts], -1, np.int64)
    accepted = np.concatenate([part.block.num_accepted for part in parts])
    decision = Decision(
        tokens=tokens[:, 1:],  # of which only the width is read
        num_nodes=np.concatenate([decision.num_nodes for decision in decisions]),
        stop=accepted,
        next_ids=accepted,
        is_scout=_stacked_or_none([decision.is_scout for decision in decisions], decisions, np.bool_),
        source=_stacked_or_none([decision.source for decision in decisions], decisions, np.int64),
    )
    counts, endings = (np.concatenate([getattr(part, name) for part in parts]) for name in ("counts", "endings"))
    return Made(Block(tokens, accepted), counts, endings, decision)


def _stacked_or_none(parts: Sequence[NDArray[Any] | None], like: Sequence[Decision], kind: type) -> NDArray[Any] | None:
    """Return ``[B, N+1]`` parts stacked, zeros for those that are None; None if all are."""
    if all(part is None for part in parts):
        return None
    given = [
        np.zeros((len(decision.stop), decision.tokens.shape[1] + 1), dtype=kind) if part is None else part
        for part, decision in zip(parts, like, strict=True)
    ]
    return stacked(given, 0, kind)


def _share_out(whole: dict[str, NDArray[Any]], infos: Sequence[StepInfo]) -> None:
    """Give each of several steps its rows of what was worked out for all of them."""
    first = 0
    for info in infos:
        own = vars(info)
        last, width = first + len(own["requests"]), own["num_nodes"] - 1
        for name, values in whole.items():
            # A view would keep all steps in memory, each as wide as the widest.
            own[name] = values[first:last] if values.ndim == 1 else values[first:last, :width].copy()
        own["tokens"] = whole["tokens"][first:last, : width + 1].copy()
        del own["made"]
        first = last


def _worked_out(made: Made) -> dict[str, NDArray[Any]]:
    """Return the fields of ``StepInfo`` that follow from what a step made."""
    decision, accepted, counts, endings = made.decision, made.block.num_accepted, made.counts, made.endings
    is_verified = decision.is_verified
    walked = (_on_chains if decision.walk is None else _on_trees)(decision, is_verified, accepted)
    return walked | {
        "num_accepted": accepted.copy(),  # they may be views, which keep all that the step made in memory
        "num_emitted": counts.copy(),
        "num_drafted": decision.num_verified,
        "num_scouts": decision.num_nodes - decision.num_verified,
        "truncated_by": np.where(counts <= accepted, endings, int(Ending.NONE)),
        "stopped_at_leaf": walked["num_children_at_stop"] == 0,
        "node_sources": _sources(decision, is_verified),
        "tokens": made.block.cut(counts, endings),
    }


def _sources(decision: Decision, chosen: BoolArray) -> IntArray:
    """Return ``[B, N]`` the sources of the chosen nodes, -1 elsewhere."""
    if decision.source is None:
        return np.subtract(chosen, 1, dtype=np.int64)  # 0 for True
    return np.where(chosen, decision.source[:, 1:], -1)


def _on_chains(decision: Decision, is_verified: BoolArray, accepted: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks along chains did; scouts end a chain, since no verified node hangs on one."""
    nodes = np.arange(is_verified.shape[1])
    num_verified = decision.num_verified
    on_path = nodes < accepted[:, None]
    return {
        "draft_depth": num_verified,
        "ranks": np.subtract(on_path, 1, dtype=np.int64),
        "num_children_at_stop": (accepted != num_verified).astype(np.int64),
        "path_sources": _sources(decision, on_path),
        "tried_sources": _sources(decision, is_verified & (nodes <= accepted[:, None])),
    }


def _on_trees(decision: Decision, is_verified: BoolArray, accepted: IntArray) -> dict[str, NDArray[Any]]:
    """Return what walks through trees did."""
    walk = decision.walk
    assert walk is not None
    nodes, above = np.arange(1, walk.parents.shape[1]), walk.parents[:, 1:]
    on_path = nodes <= accepted[:, None]
    is_elder = (above[:, :, None] == above[:, None, :]) & is_verified[:, None, :] & (nodes < nodes[:, None])
    rank = np.pad(is_elder.sum(2), ((0, 0), (1, 0)))
    last = np.take_along_axis(_last_tried(walk.path, accepted), above, 1)

    def along(values: IntArray) -> IntArray:
        return np.where(on_path, np.take_along_axis(values, walk.path[:, 1:], 1), -1)

    return {
        "draft_depth": np.where(is_verified, walk.depth[:, 1:], 0).max(1, initial=0),
        "ranks": along(rank),
        "num_children_at_stop": (is_verified & (above == decision.stop[:, None])).sum(1),
        "path_sources": along(np.zeros_like(walk.depth) if decision.source is None else decision.source),
        "tried_sources": _sources(decision, is_verified & (nodes <= last)),
    }


def _last_tried(path: IntArray, accepted: IntArray) -> IntArray:
    """Return ``[B, N+1]`` the last node that could be tried as a child of each node, -1 off the path."""
    batch, size = path.shape
    last = np.full((batch, size), -1, dtype=np.int64)
    rows, at = np.nonzero(np.arange(size) < accepted[:, None])
    last[rows, path[rows, at]] = path[rows, at + 1]
    last[np.arange(batch), path[np.arange(batch), accepted]] = size
    return last
