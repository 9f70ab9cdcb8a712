"""The verdict of a step: by the compiled judge that the rule declares, in one call, else by the rule itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.contracts import (
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
from specdec.engine.checks import check_decision, check_nodes, draft_error
from specdec.engine.outcome import Block, Decision, StepOutcome, Walk
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, decide, device_of, path_logprobs
from specdec.kernels import Kernels
from specdec.kernels.compiled import DraftBuffers, Fault, Limits, NativeVerdict, OpenVerdict, VerifyInputs, Way
from specdec.laws import argmax
from specdec.requests import first_eos
from specdec.sampling import BatchWarping
from specdec.transfers import on_host, together_on_host
from specdec.verify import confirm_judge, draft_buffers, law_buffers

_EOS = int(Ending.EOS)


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
            ValueError, FloatingPointError: see ``draft_error`` and ``check_decision``.
        """
        given = scores.likeliest
        # What the source reads of a device comes to the host with the rest.
        likeliest = None if given is None or given[0].is_cpu or not self._source.needs.logits else given
        # Log-probabilities are read off the logits: where these lie on a device, all of the verdict does.
        elsewhere = return_logprobs and device_of(scores).type != "cpu"
        made = None if elsewhere else self._natively(draft, nodes, scores, frame, likeliest)
        if made is None:
            check_nodes(self._source, draft, nodes, frame)
            return self._by_the_rule(draft, scores, frame, return_logprobs, likeliest)
        return made._replace(logprobs=path_logprobs(draft, made, scores, frame.warping)) if return_logprobs else made

    def _natively(
        self, draft: Draft, nodes: Tree, scores: Scores, frame: Frame, likeliest: Likeliest | None
    ) -> StepOutcome | None:
        """Return what becomes of drafts in one call; None if no compiled judge does for them."""
        native = self._kernels.walks
        if self.judge is None or native is None or not nodes.tokens.is_cpu:
            return None
        if not (draft.is_chain or self.rule.trees):
            return None
        compares = self.compares_ids(draft, frame.warping)
        if not compares and frame.warping.params.is_adjusted:  # penalties read the paths of the nodes
            check_nodes(self._source, draft, nodes, frame)
        by = None if compares else _inputs(self.judge, draft, scores, frame)
        if by is None and not compares:
            return None
        ids, peaks, likeliest = _target(by, scores, likeliest)
        budget, drafts = frame.budget, draft_buffers(draft, nodes)
        eos_ids = np.array(self._oracle.eos_ids, dtype=np.int64)
        limits = Limits(budget.max_depth, budget.max_nodes, frame.seated.ignore_eos, eos_ids, _EOS)
        try:
            if by is not None:
                verdict = OpenVerdict(self.rule.name, native, drafts, ids, peaks, limits, by)
                numbers = frame.randomness.verdict_numbers(len(frame.requests), verdict)
                if numbers is None:
                    return None
                by = by._replace(numbers=numbers)
            found = native(drafts, ids, peaks, limits, by)
        except Fault as fault:
            raise draft_error(fault, self._source, draft, frame, self._oracle.vocab_size) from None
        if found is None:
            return None
        path = None if found.trees is None else found.trees[1]
        block, judge = Block(found.block, found.accepted), f"native: {self.rule.name}"
        decision = _decision(found, draft, drafts)
        return StepOutcome(block, found.counts, found.endings, decision, judge, path, None, likeliest)

    def _by_the_rule(
        self, draft: Draft, scores: Scores, frame: Frame, return_logprobs: bool, likeliest: Likeliest | None
    ) -> StepOutcome:
        """Return what the rule makes of the drafts, checked."""
        source, rule = self._source, self.rule
        decision, evidence = decide(rule, draft, scores, frame.warping, frame.randomness, return_logprobs, likeliest)
        check_decision(source, rule, draft, decision, evidence, frame)
        block = Block.of(decision)
        path = None if decision.walk is None else decision.walk.path
        ends = _ends(block, self._oracle.eos_ids, frame)
        return StepOutcome(block, *ends, decision, rule.name, path, decision.logprobs, evidence.likeliest)


def _target(
    by: VerifyInputs | None, scores: Scores, likeliest: Likeliest | None
) -> tuple[IntArray, NDArray[Any], Likeliest | None]:
    """Return what drafts are compared with, or judged beside: the likeliest ids ``[B, N+1]`` and their logits.

    They are those of the logits that laws are made of. ``likeliest`` is brought along from a device.
    """
    best = scores.best if by is None or by.logits is None or by.logits is scores.logits else argmax(by.logits)
    ids, peaks, *brought = best if best[0].is_cpu else together_on_host(*best, *(likeliest or ()))
    peaks = peaks.detach() if peaks.requires_grad else peaks
    return on_host(ids), on_host(peaks), (brought[0], brought[1]) if brought else None


def _decision(found: NativeVerdict, draft: Draft, drafts: DraftBuffers) -> Decision:
    """Return what a compiled judge decided."""
    scouts, sources = (None if part is None else on_host(with_root(part)) for part in (draft.is_scout, draft.source))
    walk = None if drafts.parents is None or found.trees is None else Walk(drafts.parents, *found.trees)
    return Decision(drafts.tokens[:, 1:], found.num_nodes, found.stops, found.next_ids, scouts, sources, walk)


def _inputs(judge: NativeJudge, draft: Draft, scores: Scores, frame: Frame) -> VerifyInputs | None:
    """Return what drafts are verified by, without numbers; None if logits lie elsewhere."""
    if scores.logits is None or not scores.logits.is_cpu:
        return None
    way = Way.RACED if frame.randomness.coupled else Way(judge)
    logits, filters = frame.warping.adjusted(scores.logits, draft), frame.warping.params.filters
    return VerifyInputs(way, logits, filters, law_buffers(draft.laws), draft.without_replacement, SUM_TOLERANCE)


def _ends(block: Block, eos_ids: Sequence[int], frame: Frame) -> tuple[IntArray, IntArray]:
    """Return how many tokens of each whole block stand ``[B]``, and which ``Ending`` each row has met."""
    counts = block.num_accepted + 1
    eos = first_eos(block.tokens, counts, eos_ids, frame.seated.ignore_eos)
    endings = np.zeros(len(counts), dtype=np.int64)  # Ending.NONE
    if eos is not None:
        endings[eos < counts] = Ending.EOS
        counts = np.minimum(counts, eos + 1)
    return counts, endings
