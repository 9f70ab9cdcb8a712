"""The pass of a step and its verdict: by the compiled judge that the rule declares, in one call, else by the rule."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from specdec.contracts import (
    Cache,
    Draft,
    DraftSource,
    Likeliest,
    NativeJudge,
    Oracle,
    Scores,
    Tree,
    VerificationRule,
    ids_device,
    with_root,
)
from specdec.engine.checks import check_decision, check_nodes, draft_error, scores_error
from specdec.engine.outcome import StepOutcome, Walk
from specdec.engine.state import Frame
from specdec.engine.verification import SUM_TOLERANCE, decide, device_of, path_logprobs
from specdec.kernels import Kernels
from specdec.kernels.compiled import Fault, OtherKind, PackedDrafts, Way
from specdec.laws import argmax
from specdec.sampling import BatchWarping
from specdec.transfers import stage, together_on_host
from specdec.verify import confirm_judge

# What a call of compiled code reads of drafts, and what becomes of them, once the call has written it.
PackedStep = tuple[PackedDrafts, StepOutcome]


class Verifier:
    """Score the drafts of steps, and tell what becomes of them, apart from the stops of requests.

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
        self._needs, self._device, self._ids_device = source.needs, oracle.device, ids_device(oracle)
        self._is_here, self._vocab_size = oracle.device.type == "cpu", oracle.vocab_size

    def compares_ids(self, draft: Draft, warping: BatchWarping) -> bool:
        """Tell whether ids stand for all laws of a step, and the compiled judge compares them."""
        return self.judge is not None and draft.laws is None and warping.is_argmax()

    def pack(self, draft: Draft, nodes: Tree, frame: Frame) -> PackedStep | None:
        """Return what the compiled judge reads of drafts before their pass; None: no judge reads them.

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
        seated = frame.budget, frame.seated.ignore_eos, self._oracle.eos_ids
        laws: tuple[Any, ...] = ()
        if not self.compares_ids(draft, frame.warping):
            way = Way.RACED if frame.randomness.coupled else self._way
            laws = way, frame.warping.params.filters, None, SUM_TOLERANCE, self.rule.name
        try:
            packed = PackedDrafts(self._kernels.walks, draft, nodes, *seated, *laws)
        except OtherKind:
            return None
        made = StepOutcome(
            tokens=nodes.tokens.numpy()[:, 1:],
            num_nodes=packed.num_nodes,
            stop=packed.stops,
            next_ids=packed.next_ids,
            is_scout=None if draft.is_scout is None else with_root(draft.is_scout).numpy(),
            source=None if draft.source is None else with_root(draft.source).numpy(),
            walk=None if nodes.parents is None else Walk(nodes.parents.numpy(), *packed.trees),
            block=packed.block,
            num_accepted=packed.accepted,
            counts=packed.counts,
            endings=packed.endings,
            judge=f"native: {self.rule.name}",
        )
        return packed, made

    def score(self, draft: Draft, nodes: Tree, frame: Frame, cache: Cache) -> Scores:
        """Return the scores of a draft's nodes, with the likeliest ids if the source reads logits of a device.

        What the verdict reads beside the logits goes to the device with the pass; nothing does if ids are compared.

        Raises:
            ValueError: a node's logits are not as many as the oracle's ids, or a node has none.
        """
        if not self._is_here:
            if frame.return_logprobs or not self.compares_ids(draft, frame.warping):
                unsent = frame.warping.params.unsent(self._device)
                frame.uploads.append(stage((*draft.numbers(), *frame.randomness.numbers(), *unsent), self._device))
            nodes = nodes.to(self._ids_device if nodes.tokens.is_cpu else self._device)
        call = nodes.tokens, nodes.parents, nodes.num_nodes, cache, frame.seated.rows, "all", self._needs.hidden
        # A source that ran the lower layers of the pass says how it goes on.
        score: Callable[..., Scores] = self._oracle.score
        rest = draft.resume
        scores = score(*call) if rest is None else score(*call, layers=rest.layers, stream=rest.stream)
        wanted = (*nodes.tokens.shape, self._vocab_size)
        if scores.logits is not None and scores.logits.shape != wanted:
            raise scores_error(self._oracle, scores.logits, wanted)
        if scores.logits is not None and scores.logits.requires_grad:
            scores = scores.detach()
        if self._needs.logits and scores.logits is not None and not scores.logits.is_cpu:
            return replace(scores, likeliest=scores.best)
        return scores

    def source_scores(self, scores: Scores, outcome: StepOutcome) -> Scores:
        """Return the scores of a step as its source gets them: with the path and with the ``likeliest`` on the host."""
        if outcome.likeliest is not None:
            scores = replace(scores, likeliest=outcome.likeliest)
        if not self._needs.hidden:
            return scores
        shape, walk = outcome.block.shape, outcome.walk
        return replace(scores, path=np.arange(shape[1])[None].repeat(shape[0], 0) if walk is None else walk.path)

    def __call__(
        self,
        draft: Draft,
        nodes: Tree,
        scores: Scores,
        frame: Frame,
        packed: PackedStep | None,
    ) -> StepOutcome:
        """Return what becomes of drafts.

        Args:
            draft, nodes, frame: see ``pack``.
            scores: of the nodes.
            packed: what ``pack`` returned.

        Raises:
            ValueError, FloatingPointError: see ``draft_error`` and ``check_decision``.
        """
        # What the source reads from a device comes to the host with the rest.
        given = scores.likeliest if self._needs.logits else None
        likeliest = None if given is None or given[0].is_cpu else given
        # Log-probabilities are read off the logits: if these lie on a device, the whole verdict does.
        elsewhere = frame.return_logprobs and device_of(scores).type != "cpu"
        made = None if packed is None or elsewhere else self._natively(packed, draft, nodes, scores, frame, likeliest)
        if made is None:
            check_nodes(self._source, draft, nodes, frame)
            return self._by_the_rule(draft, scores, frame, likeliest)
        if frame.return_logprobs:
            return replace(made, logprobs=path_logprobs(draft, made, scores, frame.warping))
        return made

    def _natively(
        self,
        packed: PackedStep,
        draft: Draft,
        nodes: Tree,
        scores: Scores,
        frame: Frame,
        likeliest: Likeliest | None,
    ) -> StepOutcome | None:
        """Return what becomes of drafts in one call; None if no compiled judge can."""
        (drafts, made), logits, numbers = packed, None, None
        try:
            if drafts.way is not None:
                if scores.logits is None or not scores.logits.is_cpu:
                    return None
                logits = scores.logits
                if frame.warping.params.is_adjusted:  # penalties read the paths of the nodes
                    check_nodes(self._source, draft, nodes, frame)
                    logits = frame.warping.adjust(logits, draft)
            best = scores.best if logits is None or logits is scores.logits else argmax(logits)
            first, second, *brought = best if best[0].is_cpu else together_on_host(*best, *(likeliest or ()))
            drafts.take(first.numpy(), second.numpy(), logits)
            if logits is not None:
                numbers = frame.randomness.verdict_numbers(len(frame.seated.requests), drafts)
                if numbers is None:
                    return None
            drafts.draw(numbers)
        except OtherKind:
            return None
        except Fault as fault:
            raise draft_error(fault, self._source, draft, frame, self._oracle.vocab_size) from None
        return replace(made, likeliest=(brought[0], brought[1])) if brought else made

    def _by_the_rule(self, draft: Draft, scores: Scores, frame: Frame, likeliest: Likeliest | None) -> StepOutcome:
        """Return what the rule makes of the drafts, checked."""
        outcome, evidence = decide(self.rule, draft, scores, frame, self._oracle.eos_ids, likeliest)
        check_decision(self._source, self.rule, draft, outcome, evidence, frame)
        return outcome
