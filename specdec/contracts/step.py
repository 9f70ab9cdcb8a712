"""What one step tells a diagnostic."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts.arrays import BoolArray, IntArray

# The phases of a step, which are the keys of ``StepInfo.seconds``. What the source does after the commit, when it takes
# in what was emitted, is drafting: it counts as the first.
PHASES = ("propose", "score", "verify", "commit")


@dataclass(frozen=True)
class StageInfo:
    """The work of a drafting model that is itself decoded speculatively, summed over the rows of a call.

    Attributes:
        name: of the stage.
        passes: scoring calls of its model that judged a draft; a batch shares one.
        steps: rows that took part in them.
        drafted: tokens that its inner source proposed.
        accepted: those that its model kept.
        emitted: tokens that the stage handed on: accepted + steps.
        seconds: wall time of its model and of its verdicts.
        inner_seconds: wall time of its inner source, stages below included.
    """

    name: str
    passes: int = 0
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    emitted: int = 0
    seconds: float = 0.0
    inner_seconds: float = 0.0


_COUNTS = tuple(f.name for f in fields(StageInfo) if f.name != "name")


def sum_of_stages(stages: Iterable[StageInfo]) -> tuple[StageInfo, ...]:
    """Return one entry per name, in the order in which they come first, with everything added up."""
    named: dict[str, list[StageInfo]] = {}
    for stage in stages:
        named.setdefault(stage.name, []).append(stage)
    return tuple(
        StageInfo(name, **{count: sum(getattr(stage, count) for stage in same) for count in _COUNTS})
        for name, same in named.items()
    )


class Ending(IntEnum):
    """What ends a row within the block that a step made."""

    NONE = 0
    EOS = 1
    STOP = 2

    @property
    def word(self) -> str:
        """Its name in records and statistics."""
        return self.name.lower()


# How the trace of a run stores a field of StepInfo: as a column with one number a row; as a list a row, of as many
# entries as another field says (optional: None if nobody asked for it); or as a list of sources, -1 if there is none.
# MEANING is what the column of the records holds.
KIND, MEANING = "kind", "meaning"


def _number(meaning: str) -> dict[str, Any]:
    return {KIND: "number", MEANING: meaning}


def _list(meaning: str, length: str, optional: bool = False) -> dict[str, Any]:
    return {KIND: "list", MEANING: meaning, "length": length} | ({"optional": True} if optional else {})


def _sources(meaning: str) -> dict[str, Any]:
    return {KIND: "sources", MEANING: meaning}


@dataclass(frozen=True)
class StepInfo:
    """What a diagnostic may want of one step; every array has one entry per row of the step.

    Some arrays are those that the run works on, and all are kept for its statistics: read them, do not write them.

    These fields are the columns of a run's trace, and so of its records; each has its meaning beside it.
    ``engine.outcome`` fills them in; ``Stats`` says which are summed up.

    Attributes:
        requests: ``[B]`` index of the request in the run.
        num_committed, num_drafted, num_scouts, draft_depth, num_accepted, num_emitted, num_children_at_stop: ``[B]``.
        truncated_by: ``[B]`` codes of ``Ending``.
        stopped_at_leaf, shortened: ``[B]`` bool.
        ranks: ``[B, D]``, -1 beyond num_accepted.
        path_sources: ``[B, D]`` index into ``source_names`` of each accepted node, -1 beyond num_accepted.
        node_sources: ``[B, N]`` likewise of each verified node, -1 for scouts and padding.
        tried_sources: ``[B, N]`` likewise of each node that a verdict was given on, -1 elsewhere.
        source_names: provenance names.
        tokens: ``[B, D + 1]`` emitted ids, -1 beyond num_emitted.
        logprobs: ``[B, D + 1]`` of the emitted ids, if they were asked for.
        seconds: wall time of the step by phase, see ``PHASES``; "propose" is all that the source does, also after the
            commit, with the release of finished rows. On CUDA it is the host's until a later step, then the device's: a
            phase is over when the device has done all that it was asked to do by then.
        num_nodes: width of the scoring call: its nodes per row, padding and root included. (A ``Draft`` counts real
            nodes.)
        stages: the work of the stages inside the draft source.
    """

    requests: IntArray
    num_committed: IntArray = field(metadata=_number("ids that stood when the step began, the prompt's among them"))
    num_drafted: IntArray = field(metadata=_number("verified draft nodes (scouts not counted)"))
    num_scouts: IntArray = field(metadata=_number("nodes that were scored and never verified"))
    draft_depth: IntArray = field(metadata=_number("longest verified path; 0: an empty draft"))
    num_accepted: IntArray = field(metadata=_number("draft tokens kept by the verdict, before truncation"))
    num_emitted: IntArray = field(metadata=_number("tokens that the step added to the output, after truncation"))
    truncated_by: IntArray = field(metadata=_number("what ended the request within the block: eos, stop, or none"))
    stopped_at_leaf: BoolArray = field(
        metadata=_number("whether the token after the accepted ones is a bonus token (else: recovered)")
    )
    shortened: BoolArray = field(
        metadata=_number(
            "whether a budget, not a length policy, left less than the source may draft, or dropped drafted nodes"
        )
    )
    ranks: IntArray = field(
        metadata=_list("place of each accepted node among its verified siblings; 0: the first", "num_accepted")
    )
    num_children_at_stop: IntArray = field(metadata=_number("verified children of the node where the walk stopped"))
    path_sources: IntArray = field(metadata=_sources("source of each accepted node"))
    node_sources: IntArray = field(metadata=_sources("source of each verified node"))
    tried_sources: IntArray = field(metadata=_sources("source of each node that a verdict was given on"))
    source_names: tuple[str, ...]
    tokens: IntArray = field(metadata=_list("ids that the step added to the output", "num_emitted"))
    logprobs: NDArray[np.float64] | None = field(
        metadata=_list(
            "their log-probabilities under the warped target law, if they were asked for", "num_emitted", optional=True
        )
    )
    seconds: dict[str, float]
    num_nodes: int
    stages: tuple[StageInfo, ...] = ()
