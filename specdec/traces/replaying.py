"""Replays: what other lengths, shapes and rules would have made of recorded drafts, without a model."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from specdec.contracts import FloatArray, IntArray, VerificationRule
from specdec.drafting.lengths import LengthPolicy, open_length
from specdec.drafting.shapes import TreeShape
from specdec.traces.dense import DenseRecords, Path_
from specdec.traces.expecting import expectations_by_length, expectations_by_shape
from specdec.traces.parts import NodeRecords
from specdec.traces.policy_replays import Growing, check_length, cut
from specdec.traces.rule_replays import expected_acceptance

# Given rows ``[B]``, the positions where their steps begin, the tokens left in their outputs and the ids that stand, it
# returns how many nodes each step drafts, and how many tokens it accepts.
Judge = Callable[[IntArray, IntArray, IntArray, IntArray], tuple[IntArray, IntArray]]
_COLUMNS = ("request", "num_committed", "num_drafted", "num_accepted", "num_emitted")
_GIVEN = "given the outputs, which are draws"


@dataclass(frozen=True)
class Replay:
    """The steps of a replay as columns of equal length.

    Attributes:
        columns: name -> ``[S]`` in the order of requests and steps: ``request``, ``step`` (of the request),
            ``num_committed`` when it began, ``num_drafted`` (verified nodes), ``num_accepted`` and ``num_emitted``.
            For expected steps a row is a position of an output, and ``step`` is absent; ``probability`` is that of a
            step to begin there, and the others are what such a step would do. ``num_drafted`` is absent if the output
            does not tell it; for trees ``num_planned`` is what their shape plans within the budget: a law with fewer
            ids than it has children leaves some nodes absent.
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
        if not isinstance(records, NodeRecords):
            raise ValueError("rule: dense records have no p and q: it needs node records (record_nodes)")
        return Replay(expected_acceptance(records, rule), "expectations at the starts of the recorded steps")
    if not isinstance(records, DenseRecords):
        raise ValueError(
            f"{given[0]}: another length or shape begins steps where the recorded run did not: it needs dense records "
            "(record_chains, record_trees), which have a draft at every position"
        )
    if length is not None:
        check_length(records, length)
    elif shape is not None and shape.paths is not None:
        _check_paths(records, shape.paths)
    if records.p is not None:
        columns, error = _expectations(records, length, shape)
        return Replay(columns, f"expectations, {_GIVEN}", error)
    steps = _steps(records, _by_shape(records, shape) if length is None else _by_length(records, length))
    return Replay(steps, records.exactness if records.repeats else f"{records.exactness}, {_GIVEN}")


def _check_paths(records: DenseRecords, paths: tuple[Path_, ...]) -> None:
    """Raise ValueError if the recorded trees do not have some nodes."""
    if beyond := sorted(set(paths) - set(records.paths)):
        raise ValueError(f"shape: the recorded trees lack {len(beyond)} of its nodes, {beyond[0]} for one: record them")


def _expectations(
    records: DenseRecords, length: LengthPolicy | None, shape: TreeShape | None
) -> tuple[dict[str, IntArray | FloatArray], float]:
    """Return the expectations of drafts that were drawn; ValueError if the nodes of a shape depend on draws."""
    if length is not None:
        return expectations_by_length(records, length), 0.0
    assert shape is not None
    if shape.paths is None:
        raise ValueError(
            f"shape: {shape} is decided as it grows, by the confidences of all nodes of a level: of drawn tokens most "
            "are not in the output, and left to chance: give a shape whose nodes are known, such as Kary or Paths, or "
            "draft greedily"
        )
    return expectations_by_shape(records, shape.paths)


def _steps(records: DenseRecords, judge: Judge) -> dict[str, IntArray | FloatArray]:
    """Walk all outputs at once; return the steps by request."""
    sizes = np.diff(records.starts)
    position, made = np.zeros_like(sizes), [np.zeros((len(_COLUMNS), 0), dtype=np.int64)]
    while (rows := np.flatnonzero(position < sizes)).size:
        at, left = records.starts[rows] + position[rows], (sizes - position)[rows]
        committed = records.prompt_lengths[rows] + position[rows]
        drafted, accepted = judge(rows, at, left, committed)
        emitted = np.minimum(accepted + 1, left)
        made.append(np.stack([rows, committed, drafted, accepted, emitted]))
        position[rows] += emitted
    steps = np.concatenate(made, axis=1)
    steps = steps[:, np.lexsort((steps[1], steps[0]))]
    step = np.arange(steps.shape[1]) - np.searchsorted(steps[0], steps[0])
    return {**dict(zip(_COLUMNS, steps, strict=True)), "step": step}


def _by_length(records: DenseRecords, length: LengthPolicy) -> Judge:
    """Return what judges recorded chains that a policy cuts."""
    outputs, order = records.ids, np.arange(records.tokens.shape[1])
    every = np.arange(len(records.outputs))
    session = open_length(length, len(every))
    session.begin(every)

    def judge(rows: IntArray, at: IntArray, left: IntArray, committed: IntArray) -> tuple[IntArray, IntArray]:
        told = (None if values is None else values[at] for values in (records.confidence, records.entropy))
        drafted = cut(session, rows, committed, records.counts[at], *told)
        said = outputs[np.minimum(at[:, None] + order, len(outputs) - 1)]
        agrees = (records.tokens[at] == said) & (order < np.minimum(drafted, left)[:, None])
        return drafted, np.logical_and.accumulate(agrees, axis=1).sum(1)

    return judge


def _by_shape(records: DenseRecords, shape: TreeShape | None) -> Judge:
    """Return what judges the parts of recorded trees that a shape has."""
    assert shape is not None
    kept = frozenset(shape.paths or ())
    growing = Growing(records, shape) if shape.paths is None else None

    def judge(rows: IntArray, at: IntArray, left: IntArray, committed: IntArray) -> tuple[IntArray, IntArray]:
        made = []
        for row, place, count in zip(rows.tolist(), at.tolist(), left.tolist(), strict=True):
            if growing is None:
                nodes = [node for path, node in records.places(place).items() if path in kept]
            else:
                nodes = growing.nodes(place)
            made.append((len(nodes), _agreement_length(records, place, records.outputs[row][-count:], nodes)))
        drafted, accepted = np.array(made, dtype=np.int64).T
        return drafted, accepted

    return judge


def _agreement_length(records: DenseRecords, at: int, said: list[int], nodes: list[int]) -> int:
    """Return with how many tokens of the output some nodes of the draft at a position agree."""
    stop, depth = -1, 0
    for token in said:
        onward = [n for n in nodes if records.parents[at, n] == stop and records.tokens[at, n] == token]
        if not onward:
            break
        stop, depth = onward[0], depth + 1
    return depth
