"""The verdict of a step: in one call where ids are compared, else judged, drawn and checked one by one.

Ids are compared in greedy rows, and in coupled ones once the target's ids are drawn, if the draft's were chosen.
"""

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from specdec.contracts import NEVER, Draft, DraftSource, Ending, IntArray, Scores, VerificationRule
from specdec.engine.checks import check_budget, check_decision
from specdec.engine.comparing import depths
from specdec.engine.outcome import Block, Decision, Made, Walk
from specdec.engine.state import Frame
from specdec.engine.verification import decide, is_compared, points
from specdec.native import Drafted, Limits, compiled_walks
from specdec.requests import first_eos
from specdec.tree import rooted

Nodes = tuple[Tensor, Tensor | None, Tensor]


def verdict(
    source: DraftSource,
    rule: VerificationRule,
    draft: Draft,
    nodes: Nodes,
    scores: Scores,
    frame: Frame,
    eos_ids: Sequence[int],
    return_logprobs: bool,
) -> Made:
    """Return what becomes of the drafts of a step, but for the stops of requests.

    Args:
        source, rule: the decoder's.
        draft: of the rows.
        nodes: what was scored, from ``draft.after``.
        scores: of the nodes.
        frame: the step's.
        eos_ids: end the rows that do not ignore them.
        return_logprobs: whether they are asked for.

    Raises:
        ValueError, FloatingPointError: see ``check_decision`` and ``check_budget``.
    """
    made = None
    if not return_logprobs and draft.laws is None and is_compared(rule, draft, frame.warping, frame.randomness):
        made = _walked(source, draft, nodes, scores, frame, eos_ids)
    return made or _judged(source, rule, draft, scores, frame, eos_ids, return_logprobs)


def _walked(
    source: DraftSource, draft: Draft, nodes: Nodes, scores: Scores, frame: Frame, eos_ids: Sequence[int]
) -> Made | None:
    """Return what any rule that follows points makes of drafts; None if compiled code cannot tell, or finds a fault.

    The general way tells then what the fault is.
    """
    native = compiled_walks()
    if native is None:
        return None
    tokens, parents, sizes = nodes
    names, budget = draft.source_names or (source.name,), frame.budget
    drafted = Drafted(tokens, parents, sizes, draft.is_scout, draft.source, len(names), draft.undefined, NEVER)
    ignores, eos = frame.seated.ignores_eos, np.array(eos_ids, dtype=np.int64).tobytes()
    limits = Limits(budget.max_depth.tobytes(), budget.max_nodes.tobytes(), ignores, eos, int(Ending.EOS))
    depth = None if parents is None or frame.warping.is_argmax() else depths(parents.numpy())
    walked = native(drafted, *points(draft, scores, frame.warping, frame.randomness, depth), limits)
    if walked is None:
        return None
    decision = Decision(
        tokens=tokens.numpy()[:, 1:],
        num_nodes=walked.num_nodes,
        stop=walked.stops,
        next_ids=walked.next_ids,
        is_scout=None if draft.is_scout is None else rooted(draft.is_scout).numpy(),
        source=None if draft.source is None else rooted(draft.source).numpy(),
        walk=None if parents is None or walked.trees is None else Walk(parents.numpy(), *walked.trees),
    )
    return Made(decision, Block(walked.block, walked.accepted), walked.counts, walked.endings)


def _judged(
    source: DraftSource,
    rule: VerificationRule,
    draft: Draft,
    scores: Scores,
    frame: Frame,
    eos_ids: Sequence[int],
    return_logprobs: bool,
) -> Made:
    """Return what the rule makes of the drafts, checked."""
    decision, evidence = decide(rule, draft, scores, frame.warping, frame.randomness, return_logprobs)
    check_decision(source, rule, draft, decision, evidence, frame)
    check_budget(source, decision, frame.budget)
    block = Block.of(decision)
    return Made(decision, block, *_ends(block, eos_ids, frame))


def _ends(block: Block, eos_ids: Sequence[int], frame: Frame) -> tuple[IntArray, IntArray]:
    """Return how many tokens of each whole block stand ``[B]``, and which ``Ending`` each row has met."""
    counts = block.num_accepted + 1
    eos = first_eos(block.tokens, counts, eos_ids, frame.seated.ignore_eos)
    endings = np.zeros(len(counts), dtype=np.int64)  # Ending.NONE
    if eos is not None:
        endings[eos < counts] = Ending.EOS
        counts = np.minimum(counts, eos + 1)
    return counts, endings
