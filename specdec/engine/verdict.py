"""The verdict of a step: by the compiled judge that the rule declares, in one call, else by the rule itself."""

from collections.abc import Sequence
from typing import Any

import numpy as np

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
from specdec.engine.outcome import Decision, StepOutcome, Walk, block_of
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, decide, device_of, path_logprobs
from specdec.kernels import Kernels
from specdec.kernels.compiled import Fault, OtherKind, PackedDrafts, Way
from specdec.laws import argmax
from specdec.requests import first_eos
from specdec.sampling import BatchWarping
from specdec.transfers import together_on_host
from specdec.verify import confirm_judge

# What a call of compiled code reads of drafts, and what becomes of them, once it has written it.
Packed = tuple[PackedDrafts, StepOutcome]


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
        self._way = None if self.judge is None else Way(self.judge)
        self._reads_logits = source.needs.logits

    def compares_ids(self, draft: Draft, warping: BatchWarping) -> bool:
        """Tell whether ids stand for all laws of a step, and the compiled judge compares them."""
        return self.judge is not None and draft.laws is None and warping.is_argmax()

    def pack(self, draft: Draft, nodes: Tree, frame: Frame) -> Packed | None:
        """Return what the compiled judge reads of drafts before their pass; None: there is none for them.

        Args:
            draft: of the rows.
            nodes: what is scored, from ``draft.after``.
            frame: the step's.
        """
        is_chain = nodes.parents is None and draft.is_scout is None
        if self.judge is None or self._kernels.walks is None or not nodes.tokens.is_cpu:
            return None
        if not (is_chain or self.rule.trees):
            return None
        rows = frame.budget, frame.seated.ignore_eos, self._oracle.eos_ids
        laws: tuple[Any, ...] = ()
        if not self.compares_ids(draft, frame.warping):
            way = Way.RACED if frame.randomness.coupled else self._way
            laws = way, frame.warping.params.filters, None, SUM_TOLERANCE, self.rule.name
        try:
            packed = PackedDrafts(self._kernels.walks, draft, nodes, *rows, *laws)
        except OtherKind:
            return None
        ends = packed.block, packed.accepted, packed.counts, packed.endings
        return packed, StepOutcome(_decision(packed), *ends, f"native: {self.rule.name}")

    def __call__(
        self,
        draft: Draft,
        nodes: Tree,
        scores: Scores,
        frame: Frame,
        return_logprobs: bool,
        packed: Packed | None,
    ) -> StepOutcome:
        """Return what becomes of drafts.

        Args:
            draft, nodes, frame: as of ``pack``.
            scores: of the nodes.
            return_logprobs: whether they are asked for.
            packed: what ``pack`` returned.

        Raises:
            ValueError, FloatingPointError: see ``draft_error`` and ``check_decision``.
        """
        # What the source reads of a device comes to the host with the rest.
        given = scores.likeliest if self._reads_logits else None
        likeliest = None if given is None or given[0].is_cpu else given
        # Log-probabilities are read off the logits: where these lie on a device, all of the verdict does.
        elsewhere = return_logprobs and device_of(scores).type != "cpu"
        made = None if packed is None or elsewhere else self._natively(packed, draft, nodes, scores, frame, likeliest)
        if made is None:
            check_nodes(self._source, draft, nodes, frame)
            return self._by_the_rule(draft, scores, frame, return_logprobs, likeliest)
        if return_logprobs:
            logprobs = path_logprobs(draft, made.decision, scores, frame.warping)
            return made._replace(decision=made.decision._replace(logprobs=logprobs))
        return made

    def _natively(
        self,
        packed: Packed,
        draft: Draft,
        nodes: Tree,
        scores: Scores,
        frame: Frame,
        likeliest: Likeliest | None,
    ) -> StepOutcome | None:
        """Return what becomes of drafts in one call; None if no compiled judge does for them."""
        (drafts, made), logits, numbers = packed, None, None
        try:
            if drafts.way is not None:
                if scores.logits is None or not scores.logits.is_cpu:
                    return None
                if frame.warping.params.is_adjusted:  # penalties read the paths of the nodes
                    check_nodes(self._source, draft, nodes, frame)
                logits = frame.warping.adjusted(scores.logits, draft)
            best = scores.best if logits is None or logits is scores.logits else argmax(logits)
            first, second, *brought = best if best[0].is_cpu else together_on_host(*best, *(likeliest or ()))
            drafts.take(first.numpy(), second.numpy(), logits)
            if logits is not None:
                numbers = frame.randomness.verdict_numbers(len(frame.requests), drafts)
                if numbers is None:
                    return None
            drafts.draw(numbers)
        except OtherKind:
            return None
        except Fault as fault:
            raise draft_error(fault, self._source, draft, frame, self._oracle.vocab_size) from None
        return made._replace(likeliest=(brought[0], brought[1])) if brought else made

    def _by_the_rule(
        self, draft: Draft, scores: Scores, frame: Frame, return_logprobs: bool, likeliest: Likeliest | None
    ) -> StepOutcome:
        """Return what the rule makes of the drafts, checked."""
        source, rule = self._source, self.rule
        decision, evidence = decide(rule, draft, scores, frame.warping, frame.randomness, return_logprobs, likeliest)
        check_decision(source, rule, draft, decision, evidence, frame)
        block, accepted = block_of(decision)
        ends = _ends(block, accepted, self._oracle.eos_ids, frame)
        return StepOutcome(decision, block, accepted, *ends, rule.name, evidence.likeliest)


def _decision(packed: PackedDrafts) -> Decision:
    """Return what a compiled judge decides, once it has written it."""
    draft, nodes = packed.draft, packed.nodes
    scouts = None if draft.is_scout is None else with_root(draft.is_scout).numpy()
    sources = None if draft.source is None else with_root(draft.source).numpy()
    walk = None if nodes.parents is None else Walk(nodes.parents.numpy(), *packed.trees)
    tokens = nodes.tokens.numpy()[:, 1:]
    return Decision(tokens, packed.num_nodes, packed.stops, packed.next_ids, scouts, sources, walk)


def _ends(block: IntArray, accepted: IntArray, eos_ids: Sequence[int], frame: Frame) -> tuple[IntArray, IntArray]:
    """Return how many tokens of each whole block stand ``[B]``, and which ``Ending`` each row has met."""
    counts = accepted + 1
    eos = first_eos(block, counts, eos_ids, frame.seated.ignore_eos)
    endings = np.zeros(len(counts), dtype=np.int64)  # Ending.NONE
    if eos is not None:
        endings[eos < counts] = Ending.EOS
        counts = np.minimum(counts, eos + 1)
    return counts, endings
