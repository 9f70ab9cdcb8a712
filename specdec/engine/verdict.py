"""The verdict of a step: by the compiled judge that the rule declares, in one call, else by the rule itself."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import (
    NEVER,
    BoolArray,
    Draft,
    DraftSource,
    Ending,
    IntArray,
    Likeliest,
    NativeJudge,
    Oracle,
    Scores,
    Tree,
    VerificationRule,
    with_root,
)
from specdec.engine.checks import check_budget, check_decision, check_trees
from specdec.engine.outcome import Block, Decision, StepOutcome, Walk
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, decide, device_of, path_logprobs
from specdec.kernels import Kernels
from specdec.kernels.compiled import Drafted, Judging, Limits, OpenVerdict, Walked, Way
from specdec.laws import Laws, argmax
from specdec.requests import first_eos
from specdec.sampling import BatchWarping, part_number
from specdec.transfers import on_host, together_on_host
from specdec.verify import confirm_judge

_EOS = int(Ending.EOS)
_PURPOSES = part_number("stop"), part_number("next")  # of the draws of ``specdec.verify.judge``


class Verifier:
    """Tell what becomes of the drafts of a step, but for the stops of requests.

    Args:
        oracle, source, rule, kernels: the decoder's.

    Attributes:
        rule: the same.
        judge: the compiled judge that the rule declares, if it decides as the rule does; None: the rule judges.

    Warns:
        JudgeDiffers: see ``confirm_judge``.
    """

    def __init__(self, oracle: Oracle, source: DraftSource, rule: VerificationRule, kernels: Kernels) -> None:
        self.rule, self._oracle, self._source, self._kernels = rule, oracle, source, kernels
        self.judge: NativeJudge | None = confirm_judge(rule, kernels.walks)

    def compares_ids(self, draft: Draft, warping: BatchWarping) -> bool:
        """Tell whether ids stand for all laws of a step, and the compiled judge compares them."""
        return self.judge is not None and draft.laws is None and warping.is_argmax()

    def __call__(self, draft: Draft, nodes: Tree, scores: Scores, frame: Frame, return_logprobs: bool) -> StepOutcome:
        """Return what becomes of drafts.

        Args:
            draft: of the rows.
            nodes: what was scored, from ``draft.after``.
            scores: of the nodes.
            frame: the step's.
            return_logprobs: whether they are asked for.

        Raises:
            ValueError, FloatingPointError: see ``check_decision`` and ``check_budget``.
        """
        given = scores.likeliest
        # What the source reads of a device comes to the host with the rest.
        likeliest = None if given is None or given[0].is_cpu or not self._source.needs.logits else given
        # Log-probabilities are read off the logits: where these lie on a device, all of the verdict does.
        elsewhere = return_logprobs and device_of(scores).type != "cpu"
        made = None if elsewhere else self._natively(draft, nodes, scores, frame, likeliest)
        if made is None:
            check_trees(self._source, draft, nodes, frame)
            return self._by_the_rule(draft, scores, frame, return_logprobs, likeliest)
        return made._replace(logprobs=path_logprobs(draft, made, scores, frame.warping)) if return_logprobs else made

    def _natively(
        self, draft: Draft, nodes: Tree, scores: Scores, frame: Frame, likeliest: Likeliest | None
    ) -> StepOutcome | None:
        """Return what becomes of drafts in one call; None if compiled code cannot tell, or finds a fault.

        The rule's way tells then what the fault is.
        """
        native = self._kernels.walks
        if self.judge is None or native is None or not nodes.tokens.is_cpu:
            return None
        if not (draft.is_chain or self.rule.trees):
            return None
        compares = self.compares_ids(draft, frame.warping)
        judging = None if compares else _judging(self.judge, draft, scores, frame)
        if judging is None and not compares:
            return None
        ids, peaks, likeliest = _target(judging, scores, likeliest)
        scouts = None if draft.is_scout is None else on_host(with_root(draft.is_scout))
        sources = None if draft.source is None else on_host(with_root(draft.source))
        names, budget = draft.source_names or (self._source.name,), frame.budget
        undefined = None if draft.undefined is None else on_host(draft.undefined)
        below = None if scouts is None else scouts[:, 1:], None if sources is None else sources[:, 1:]
        drafted = Drafted(*nodes.arrays(), *below, len(names), undefined, NEVER)
        ignores, eos = frame.seated.ignores_eos, _packed(tuple(self._oracle.eos_ids))
        limits = Limits(budget.max_depth.tobytes(), budget.max_nodes.tobytes(), ignores, eos, _EOS)
        if judging is not None:
            verdict = OpenVerdict(self.rule.name, native, drafted, ids, peaks, limits, judging)
            numbers = frame.randomness.verdict_numbers(len(frame.requests), verdict)
            if numbers is None:
                return None
            judging = judging._replace(numbers=numbers)
        walked = native(drafted, ids, peaks, limits, judging)
        if walked is None:
            return None
        path = None if walked.trees is None else walked.trees[1]
        block, judge = Block(walked.block, walked.accepted), f"native: {self.rule.name}"
        decision = _decided(walked, drafted, scouts, sources)
        return StepOutcome(block, walked.counts, walked.endings, decision, judge, path, None, likeliest)

    def _by_the_rule(
        self, draft: Draft, scores: Scores, frame: Frame, return_logprobs: bool, likeliest: Likeliest | None
    ) -> StepOutcome:
        """Return what the rule makes of the drafts, checked."""
        source, rule = self._source, self.rule
        decision, evidence = decide(rule, draft, scores, frame.warping, frame.randomness, return_logprobs, likeliest)
        check_decision(source, rule, draft, decision, evidence, frame)
        check_budget(source, decision, frame.budget)
        block = Block.of(decision)
        path = None if decision.walk is None else decision.walk.path
        ends = _ends(block, self._oracle.eos_ids, frame)
        return StepOutcome(block, *ends, decision, rule.name, path, decision.logprobs, evidence.likeliest)


def _target(
    judging: Judging | None, scores: Scores, likeliest: Likeliest | None
) -> tuple[IntArray, NDArray[Any], Likeliest | None]:
    """Return what drafts are compared with, or judged beside: the likeliest ids ``[B, N+1]`` and their logits.

    They are those of the logits that laws are made of. ``likeliest`` is brought along from a device.
    """
    best = scores.best if judging is None or judging.logits is scores.logits else argmax(judging.logits)
    ids, peaks, *brought = best if best[0].is_cpu else together_on_host(*best, *(likeliest or ()))
    peaks = peaks.detach() if peaks.requires_grad else peaks
    return on_host(ids), on_host(peaks), (brought[0], brought[1]) if brought else None


def _decided(walked: Walked, drafted: Drafted, scouts: BoolArray | None, sources: IntArray | None) -> Decision:
    """Return what compiled code decided; scouts and sources are of scored nodes, root first."""
    walk = None if drafted.parents is None or walked.trees is None else Walk(drafted.parents, *walked.trees)
    return Decision(drafted.tokens[:, 1:], walked.num_nodes, walked.stops, walked.next_ids, scouts, sources, walk)


@lru_cache(maxsize=16)
def _packed(ids: tuple[int, ...]) -> bytes:
    return np.array(ids, dtype=np.int64).tobytes()


def _judging(judge: NativeJudge, draft: Draft, scores: Scores, frame: Frame) -> Judging | None:
    """Return what drafts are judged by, without numbers; None if logits lie elsewhere, or laws take more than that."""
    if scores.logits is None or not scores.logits.is_cpu:
        return None
    way = Way.RACED if frame.randomness.coupled else Way(judge)
    drawn = None if draft.laws is None else _contiguous(draft.laws)
    logits = frame.warping.adjusted(scores.logits, draft).contiguous()
    return Judging(way, logits, frame.warping.sampling, drawn, draft.without_replacement, SUM_TOLERANCE / 2, _PURPOSES)


def _contiguous(laws: Laws) -> tuple[Tensor, ...]:
    """Return what laws hold: a vocabulary without its padding is a part of a larger table."""
    return tuple(part.contiguous() for part in (laws.table, laws.index, laws.point))


def _ends(block: Block, eos_ids: Sequence[int], frame: Frame) -> tuple[IntArray, IntArray]:
    """Return how many tokens of each whole block stand ``[B]``, and which ``Ending`` each row has met."""
    counts = block.num_accepted + 1
    eos = first_eos(block.tokens, counts, eos_ids, frame.seated.ignore_eos)
    endings = np.zeros(len(counts), dtype=np.int64)  # Ending.NONE
    if eos is not None:
        endings[eos < counts] = Ending.EOS
        counts = np.minimum(counts, eos + 1)
    return counts, endings
