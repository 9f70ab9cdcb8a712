"""Replays: what other lengths, shapes and rules would have made of recorded drafts, without a model."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from specdec.contracts import FloatArray, IntArray, VerificationRule
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.shapes import TreeShape
from specdec.traces.cutting import check_length, cut
from specdec.traces.dense import DenseRecords, Path_
from specdec.traces.expecting import expectations_by_length, expectations_by_shape
from specdec.traces.growing import Growing, nodes_at
from specdec.traces.recording import NodeRecords
from specdec.traces.rule_replays import expected_acceptance

Steps = dict[str, list[int]]
_GIVEN = "given the outputs, which are draws"


@dataclass(frozen=True)
class Replay:
    """The steps of a replay as columns of equal length.

    Attributes:
        columns: name -> ``[S]`` in the order of requests and steps: ``request``, ``step`` (of the request),
            ``num_committed`` when it began, ``num_drafted`` (verified nodes), ``num_accepted`` and ``num_emitted``.
            Of expected steps a row is a position of an output, and ``step`` is absent; ``probability`` is that of a
            step to begin there, and the others are what such a step would do. ``num_drafted`` is absent if the output
            does not tell it; of trees ``num_planned`` is what their shape plans within the budget: a law with fewer ids
            than it has children leaves some nodes absent.
        claim: what the numbers are.
        num_steps_error: standard error of ``num_steps``, if the record has estimates of what drawn siblings did (three
            or more below a node, without replacement, and a law of many ids); 0: none. That of ``block_efficiency`` is
            in the same proportion to it.
    """

    columns: dict[str, IntArray | FloatArray]
    claim: str
    num_steps_error: float = 0.0

    @property
    def num_steps(self) -> float:
        """How many steps there are, or are expected."""
        return float(self._weights.sum())

    @property
    def block_efficiency(self) -> float | None:
        """Emitted tokens per step; None without a step."""
        return float((self._weights * self.columns["num_emitted"]).sum() / self.num_steps) if self.num_steps else None

    @property
    def _weights(self) -> FloatArray:
        """``[S]`` how often each row counts."""
        return np.asarray(self.columns.get("probability", np.ones(len(self.columns["request"]))))


def replay(
    records: DenseRecords | NodeRecords,
    *,
    length: LengthPolicy | None = None,
    shape: TreeShape | None = None,
    rule: str | VerificationRule | None = None,
) -> Replay:
    """Return the steps that a run with another length policy, tree shape or rule takes over recorded drafts.

    Args:
        records: dense ones for ``length`` and ``shape``, node records for ``rule``.
        length: cuts the chains of dense records. Its own session is asked, as a source would ask it.
        shape: a part of the recorded shape; other nodes are pruned. A shape that is decided as it grows is
            asked as a source would ask it; it needs recorded tokens that were chosen, and their confidences.
        rule: judges the recorded drafts by p and q. Give one of the three.

    Raises:
        ValueError: the records do not suffice; with what is missing.

    Guarantee: for dense records every step has the ``num_drafted``, ``num_accepted`` and ``num_emitted`` of a run with
        that policy or shape (if that run's claim is "exact up to numerics", up to numerics), and there are as many. One
        thing is not recorded: what the target says after an end (EOS, or a stop). So the accepted tokens of a request's
        last step are counted up to its end, while a run counts them before it truncates. A rule's numbers are the
        expectations over its verdict of each recorded step, given the draft and the context, before truncation:
        ``num_accepted`` and ``num_emitted`` are exact for steps that begin where the recorded ones did, at temperature
        0 as well; that a run by this rule would begin its steps elsewhere is left out.
        A sampled run that is not coupled writes other outputs, from the same law. Its dense record tells what a run
        does *given that it writes the recorded outputs*. If the drafts were chosen, the replay is exact. If they were
        drawn, it gives the law of the steps: their expected number, and what each is expected to do. The average over
        recorded outputs is that of a run, because neither law nor length of outputs depends on drafts.
    Cost: O(steps x depth) for lengths, each step over all requests at once; a loop over nodes for shapes.
    """
    given = [name for name, value in (("length", length), ("shape", shape), ("rule", rule)) if value is not None]
    if len(given) != 1:
        raise ValueError(f"give one of length, shape and rule, not {' and '.join(given) or 'none'}")
    if rule is not None:
        return _replay_rule(records, rule)
    if not isinstance(records, DenseRecords):
        raise ValueError(
            f"{given[0]}: another length or shape begins steps where the recorded run did not: it needs dense records "
            "(record_chains, record_trees), which have a draft at every position"
        )
    if records.p is not None:
        return _replay_expectations(records, length, shape)
    steps = _by_length(records, length) if length is not None else _by_shape(records, shape)
    order = np.lexsort((steps["num_committed"], steps["request"]))
    columns: dict[str, IntArray | FloatArray] = {
        name: np.asarray(v, dtype=np.int64)[order] for name, v in steps.items()
    }
    requests = columns["request"]
    columns["step"] = np.arange(len(requests)) - np.searchsorted(requests, requests)
    return Replay(columns, records.exactness if records.repeats else f"{records.exactness}, {_GIVEN}")


def _replay_rule(records: DenseRecords | NodeRecords, rule: str | VerificationRule) -> Replay:
    """Return the expectations of a rule."""
    if not isinstance(records, NodeRecords):
        raise ValueError("rule: dense records have no p and q: it needs node records (record_nodes)")
    return Replay(expected_acceptance(records, rule), "expectations at the starts of the recorded steps")


def _replay_expectations(records: DenseRecords, length: LengthPolicy | None, shape: TreeShape | None) -> Replay:
    """Return the expectations of drafts that were drawn."""
    if length is not None:
        check_length(records, length)
        found = expectations_by_length(records, length)
    else:
        assert shape is not None
        found = expectations_by_shape(records, _drawable(records, shape))
    return Replay(found.columns, f"expectations, {_GIVEN}", found.error)


def _drawable(records: DenseRecords, shape: TreeShape) -> tuple[Path_, ...]:
    """Return the nodes of a shape of drawn trees, in which recorded ones are; ValueError if they hang on draws."""
    if shape.paths is None:
        raise ValueError(
            f"shape: {shape} is decided as it grows, by the confidences of all nodes of a level: of drawn tokens most "
            "are not in the output, and left to chance: give a shape whose nodes are known, such as Kary or Paths, or "
            "draft greedily"
        )
    _check_paths(records, shape.paths)
    return shape.paths


def _new_steps() -> Steps:
    return {name: [] for name in ("request", "num_committed", "num_drafted", "num_accepted", "num_emitted")}


def _by_length(records: DenseRecords, length: LengthPolicy) -> Steps:
    """Walk all outputs at once, with drafts that a policy cuts."""
    check_length(records, length)
    steps, position = _new_steps(), np.zeros(len(records.outputs), dtype=np.int64)
    sizes = np.diff(records.starts)
    outputs = np.concatenate([np.zeros(0, dtype=np.int64), *map(np.asarray, records.outputs)]).astype(np.int64)
    session = length.open(len(sizes))
    session.begin(np.arange(len(sizes)))
    while (rows := np.flatnonzero(position < sizes)).size:
        at, left = records.starts[rows] + position[rows], (sizes - position)[rows]
        committed = records.prompt_lengths[rows] + position[rows]
        told = (None if values is None else values[at] for values in (records.confidence, records.entropy))
        drafted = cut(session, rows, committed, records.counts[at], *told)
        accepted = _agreement_length(records.tokens[at], drafted, outputs, at, left)
        emitted = np.minimum(accepted + 1, left)
        for name, values in zip(steps, (rows, committed, drafted, accepted, emitted), strict=True):
            steps[name] += values.tolist()
        position[rows] += emitted
    return steps


def _agreement_length(tokens: IntArray, counts: IntArray, outputs: IntArray, at: IntArray, left: IntArray) -> IntArray:
    """Return ``[B]`` how many of the first ``counts`` tokens ``[B, N]`` are those of the output from ``at`` on."""
    order = np.arange(tokens.shape[1])
    said = outputs[np.minimum(at[:, None] + order, len(outputs) - 1)]
    agrees = (tokens == said) & (order < np.minimum(counts, left)[:, None])
    agreed: IntArray = np.logical_and.accumulate(agrees, axis=1).sum(1)
    return agreed


def _by_shape(records: DenseRecords, shape: TreeShape | None) -> Steps:
    """Walk each output, through the parts of the recorded trees that a shape has."""
    assert shape is not None
    nodes_of = _of_paths(records, shape.paths) if shape.paths is not None else Growing(records, shape).nodes
    steps = _new_steps()
    for request, output in enumerate(records.outputs):
        position = 0
        while position < len(output):
            at = int(records.starts[request]) + position
            nodes = nodes_of(at)
            accepted = _walk(records, at, output[position:], nodes)
            emitted = min(accepted + 1, len(output) - position)
            committed = int(records.prompt_lengths[request]) + position
            for name, value in zip(steps, (request, committed, len(nodes), accepted, emitted), strict=True):
                steps[name].append(value)
            position += emitted
    return steps


def _check_paths(records: DenseRecords, paths: tuple[Path_, ...]) -> None:
    """Raise ValueError if the recorded trees do not have some nodes."""
    if beyond := sorted(set(paths) - set(records.paths)):
        raise ValueError(f"shape: the recorded trees lack {len(beyond)} of its nodes, {beyond[0]} for one: record them")


def _of_paths(records: DenseRecords, paths: tuple[Path_, ...]) -> Callable[[int], list[int]]:
    """Return what gives the nodes of some paths at a position; ValueError if the recorded trees do not have them."""
    _check_paths(records, paths)
    kept = frozenset(paths)
    return lambda at: [node for node, path in nodes_at(records, at) if path in kept]


def _walk(records: DenseRecords, at: int, said: list[int], nodes: Sequence[int]) -> int:
    """Return with how many tokens of the output some nodes of the draft at a position agree."""
    children: dict[int, list[int]] = {}
    stop, depth = -1, 0
    for node in nodes:
        children.setdefault(int(records.parents[at, node]), []).append(node)
    while depth < len(said):
        onward = [node for node in children.get(stop, []) if records.tokens[at, node] == said[depth]]
        if not onward:
            break
        stop, depth = onward[0], depth + 1
    return depth
