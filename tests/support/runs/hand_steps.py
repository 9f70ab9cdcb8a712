"""Steps written by hand, whose figures can be read off."""

from dataclasses import replace
from typing import Any

import numpy as np

from specdec.contracts import StepInfo
from specdec.stats import Stats, StatsRecorder

NAMES = ("lookup", "ngram")


def array(values: Any, kind: type = np.int64) -> Any:
    return np.asarray(values, dtype=kind)


def chain_step(requests: list[int], committed: list[int], drafted: list[int], accepted: list[int]) -> StepInfo:
    """Return a step of chains, three nodes wide; nothing is truncated."""
    order, stop = np.arange(3), array(accepted)[:, None]
    leaf = array(accepted) == array(drafted)
    return StepInfo(
        requests=array(requests),
        num_committed=array(committed),
        num_drafted=array(drafted),
        num_scouts=array([0] * len(requests)),
        draft_depth=array(drafted),
        num_accepted=array(accepted),
        num_emitted=array(accepted) + 1,
        truncated_by=array([0] * len(requests)),
        stopped_at_leaf=leaf,
        shortened=array(drafted) < 3,
        ranks=np.where(order < stop, 0, -1),
        num_children_at_stop=1 - leaf.astype(np.int64),
        path_sources=np.where(order < stop, order % 2, -1),
        node_sources=np.where(order < array(drafted)[:, None], order % 2, -1),
        tried_sources=np.where(order < np.minimum(array(accepted) + 1, array(drafted))[:, None], order % 2, -1),
        source_names=NAMES,
        tokens=np.where(np.arange(4) <= stop, 7, -1),
        logprobs=None,
        seconds={"propose": 1.0, "score": 4.0, "verify": 0.5, "commit": 0.5},
        num_nodes=4,
    )


def three_steps() -> list[StepInfo]:
    """Return steps of two requests; the second ends at an EOS inside its accepted block."""
    last = chain_step([0, 1], [14, 21], [2, 3], [1, 3])
    tokens = last.tokens.copy()
    tokens[1, 2:] = -1
    cut = replace(last, num_emitted=array([2, 2]), truncated_by=array([0, 1]), tokens=tokens)
    return [chain_step([0, 1], [10, 20], [3, 3], [3, 0]), cut, chain_step([0], [16], [0], [0])]


def recorded(infos: list[StepInfo], num_requests: int = 2, total_seconds: float = 24.0) -> Stats:
    recorder = StatsRecorder(num_requests)
    recorder.add_prefill(2.0, np.arange(num_requests), calls=3)
    for elapsed, info in enumerate(infos, start=1):
        recorder.infos.append(info)
        recorder.elapsed.append(10.0 * elapsed)
    return recorder.finish(total_seconds, cache_bytes=100, weight_bytes=200)


def tree_step() -> StepInfo:
    """Return one row that accepts a third sibling, then a first one, then rejects both children of that."""
    return replace(
        chain_step([0], [9], [3], [2]),
        num_drafted=array([7]),
        num_nodes=8,
        node_sources=array([[0, 0, 1, 1, 1, 0, 1]]),
        tried_sources=array([[0, 0, 1, 1, -1, 0, 1]]),
        ranks=array([[2, 0, -1]]),
        num_children_at_stop=array([2]),
        stopped_at_leaf=array([False], np.bool_),
    )
