"""The pass of a step, and what goes to the device with it."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

from specdec.contracts import (
    Cache,
    Draft,
    DraftSource,
    IntArray,
    Oracle,
    Scores,
    Tree,
    ids_device,
    numbers_of,
)
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
        self._device = oracle.device
        self._is_here = self._device.type == "cpu"
        self._ids_device = ids_device(oracle)

    def __call__(self, draft: Draft, nodes: Tree, frame: Frame, cache: Cache, return_logprobs: bool) -> Scores:
        """Return the scores of a draft's nodes, with the likeliest ids if the source reads logits of a device.

        What the verdict reads beside the logits goes to the device with the pass; nothing does if ids are compared.
        """
        if not self._is_here and (return_logprobs or not self._verifier.compares_ids(draft, frame.warping)):
            unsent = frame.warping.params.unsent(self._device)
            frame.uploads.append(stage((*draft.numbers(), *numbers_of(frame.randomness), *unsent), self._device))
        given = nodes.to(self._ids_device if nodes.tokens.is_cpu else self._device)
        call = given.tokens, given.parents, given.num_nodes, cache, frame.rows, "all", self._needs.hidden
        # A source that ran the lower layers of the pass says how it goes on.
        score: Callable[..., Scores] = self._oracle.score
        scores = score(*call) if draft.resume is None else score(*call, **draft.resume.options)
        if self._needs.logits and scores.logits is not None and not scores.logits.is_cpu:
            return replace(scores, likeliest=scores.best)
        return scores

    def keep(self, rows: IntArray, outcome: StepOutcome, cache: Cache) -> None:
        """Let the nodes stand that a step accepted, of those that were scored last."""
        path = None if outcome.path is None else torch.from_numpy(outcome.path)
        cache.commit(rows, path, outcome.block.num_accepted + 1)

    def told(self, scores: Scores, outcome: StepOutcome) -> Scores:
        """Return the scores of a step as its source hears of them: the path with them, and what was brought along."""
        if outcome.likeliest is not None:
            scores = replace(scores, likeliest=outcome.likeliest)
        if not self._needs.hidden:
            return scores
        shape = outcome.block.tokens.shape
        path = np.tile(np.arange(shape[1]), (shape[0], 1)) if outcome.path is None else outcome.path
        return replace(scores, path=path)
