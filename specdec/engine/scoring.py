"""The pass of a step, and what goes to the device with it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from specdec.contracts import Cache, Draft, DraftSource, Oracle, Scores, Tree, ids_device, numbers_of
from specdec.engine.outcome import StepOutcome
from specdec.engine.state import Frame
from specdec.engine.verdict import Verifier
from specdec.transfers import stage


class Scorer:
    """Score the nodes of steps.

    Args:
        oracle, source, verifier: the decoder's.
    """

    def __init__(self, oracle: Oracle, source: DraftSource, verifier: Verifier) -> None:
        self._oracle, self._needs, self._verifier = oracle, source.needs, verifier
        self._device, self._ids_device = oracle.device, ids_device(oracle)
        self._is_here = self._device.type == "cpu"

    def __call__(self, draft: Draft, nodes: Tree, frame: Frame, cache: Cache, return_logprobs: bool) -> Scores:
        """Return the scores of a draft's nodes, with the likeliest ids if the source reads logits of a device.

        What the verdict reads beside the logits goes to the device with the pass; nothing does if ids are compared.
        """
        if not self._is_here:
            nodes = self._upload(draft, nodes, frame, return_logprobs)
        call = nodes.tokens, nodes.parents, nodes.num_nodes, cache, frame.rows, "all", self._needs.hidden
        # A source that ran the lower layers of the pass says how it goes on.
        score: Callable[..., Scores] = self._oracle.score
        scores = score(*call) if draft.resume is None else score(*call, **draft.resume.options)
        if scores.logits is not None and scores.logits.requires_grad:
            scores = scores.detach()
        if self._needs.logits and scores.logits is not None and not scores.logits.is_cpu:
            return replace(scores, likeliest=scores.best)
        return scores

    def told(self, scores: Scores, outcome: StepOutcome) -> Scores:
        """Return the scores of a step as its source hears of them: the path with them, and what was brought along."""
        if outcome.likeliest is not None:
            scores = replace(scores, likeliest=outcome.likeliest)
        if not self._needs.hidden:
            return scores
        shape = outcome.block.shape
        path = np.tile(np.arange(shape[1]), (shape[0], 1)) if outcome.path is None else outcome.path.numpy()
        return replace(scores, path=path)

    def _upload(self, draft: Draft, nodes: Tree, frame: Frame, return_logprobs: bool) -> Tree:
        """Return the nodes where the oracle takes them; what the verdict reads goes to its device with them."""
        if return_logprobs or not self._verifier.compares_ids(draft, frame.warping):
            unsent = frame.warping.params.unsent(self._device)
            frame.uploads.append(stage((*draft.numbers(), *numbers_of(frame.randomness), *unsent), self._device))
        return nodes.to(self._ids_device if nodes.tokens.is_cpu else self._device)
