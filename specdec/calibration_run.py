"""Measure a calibration: what drafted tokens are worth on some prompts, and what they cost on this machine."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSource,
    FloatArray,
    IntArray,
    Oracle,
    Randomness,
    VerificationRule,
    WatchedSession,
    WatchedSource,
    check_has_laws,
)
from specdec.drafting.lengths import Fixed, LengthPolicy
from specdec.engine import SpeculativeDecoder
from specdec.requests import Prompt, check_rows, list_prompts, make_requests
from specdec.sampling import SamplingParams
from specdec.theory import Calibration, WidthCurve

_WARM_UP_TOKENS = 4
_PREFIX, _ROUNDS = 64, 15
_Columns = dict[str, list[Any]]


@dataclass
class _Keeping(WatchedSession):
    """A session that keeps the confidences of each row's draft, in the order of the records."""

    kept: list[FloatArray]

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        draft = self.inner.propose(rows, context, budget, randomness)
        counts = draft.num_nodes.cpu().numpy()
        # An empty draft has no confidences to carry.
        values = np.zeros((len(counts), 0)) if draft.confidence is None else draft.confidence.double().cpu().numpy()
        self.kept += [row[:count].copy() for row, count in zip(values, counts, strict=True)]
        return draft


def calibrate(
    oracle: Oracle,
    make_source: Callable[[LengthPolicy], DraftSource],
    prompts: Sequence[Prompt],
    *,
    num_draft_tokens: int = 8,
    max_new_tokens: int = 64,
    sampling: SamplingParams | None = None,
    rule: str | VerificationRule = "standard",
    seed: int = 0,
    batch_size: int | None = 1,
    kernels: str | None = None,
) -> Calibration:
    """Return what drafted tokens are worth and cost, measured on drafts of fixed length beside plain decoding.

    Args:
        oracle: the target.
        make_source: makes the source with a length policy: ``lambda length: SmallTransformer(model, length=length)``.
        prompts: like those to be decoded, but not the same ones.
        num_draft_tokens: of the drafts; longer ones are judged by extrapolation to a survival of 0.
        max_new_tokens: per prompt.
        sampling: as it will be used; acceptance depends on it.
        rule: as it will be used.
        seed: of the runs.
        batch_size: rows in flight (None, or more than there are prompts: one for each prompt). Costs are those of steps
            with that many rows, and of no other batch size.
        kernels: as they will be used, see ``SpeculativeDecoder``.

    Raises:
        ValueError: the oracle is recorded text; there are no prompts, or bad ones; the source's drafts branch, carry no
            confidence, or may be longer than ``num_draft_tokens``; nothing was drafted; the oracle's context is too
            short for a pass of ``num_draft_tokens`` + 1 nodes; ``batch_size`` is no positive integer.

    Guarantee: the survivals follow from the arguments alone; the costs are readings of this machine's clock. A run
        with the calibration reads no clock, so it can be repeated from ``result.calibration``.
    Cost: two runs over the prompts, in turns, after a short warm-up; 16 passes of each width from 1 to
        ``num_draft_tokens`` + 1.
    """
    check_has_laws(oracle, "calibrate")
    prompts = list_prompts(prompts)
    if not prompts:
        raise ValueError("prompts are empty: give some that are like those to be decoded")
    size = min(check_rows(batch_size)[0] or len(prompts), len(prompts))
    make_requests(oracle, prompts, max_new_tokens, sampling, seed, None)  # bad ones are named before anything is run
    source, confidences = make_source(Fixed(num_draft_tokens, with_confidence=True)), list[FloatArray]()
    if source.offers.trees or not source.offers.confidence:
        raise ValueError(f"draft {source.name!r} must draft chains with confidences to be calibrated")
    if source.offers.max_depth > num_draft_tokens:
        raise ValueError(
            f"draft {source.name!r} may draft {source.offers.max_depth} tokens, more than num_draft_tokens="
            f"{num_draft_tokens}: make_source must give it the length that it is handed"
        )
    watched = WatchedSource(source, lambda session, *_: _Keeping(session, confidences))
    decoders = [SpeculativeDecoder(oracle, draft, rule, kernels=kernels) for draft in (None, watched)]
    passes = pass_seconds(oracle, range(1, num_draft_tokens + 2), size)
    for decoder in decoders:
        decoder.generate(prompts[:1], _WARM_UP_TOKENS, sampling, seed)
    confidences.clear()
    columns: tuple[list[_Columns], list[_Columns]] = [], []
    for start in range(0, len(prompts), size):
        # Plain and drafted runs take turns, so that a slow spell of the machine meets both.
        numbers = range(start, min(start + size, len(prompts)))
        for decoder, kept in zip(decoders, columns, strict=True):
            chunk, seeds = [prompts[i] for i in numbers], [(seed, i) for i in numbers]
            kept.append(decoder.generate(chunk, max_new_tokens, sampling, seeds).records.columns())
    accepted = [n for chunk in columns[1] for n in chunk["num_accepted"]]
    plain, drafted = (_timing(chunks, size) for chunks in columns)
    return Calibration.fit(confidences, accepted, *_costs(plain, drafted, passes, size))


def pass_seconds(oracle: Oracle, widths: Sequence[int], batch_size: int = 1) -> list[float]:
    """Return the seconds of a pass of each number of nodes a row: medians of 15 rounds, in which the widths take turns.

    Args:
        oracle: scores ids that mean nothing, after 64 of them.
        widths: numbers of nodes, the pending token's among them.
        batch_size: rows, all of that width.

    Raises:
        ValueError: the oracle is recorded text, or its context is shorter than the widest pass.

    Cost: 16 passes of each width.
    """
    check_has_laws(oracle, "pass_seconds")
    prefix, widest = min(_PREFIX, oracle.max_context - max(widths)), max(widths)
    if prefix < 0:
        raise ValueError(f"a pass of {widest} nodes does not fit a context of {oracle.max_context}: give fewer")
    cache, rows = oracle.new_cache(batch_size, prefix + widest), np.arange(batch_size)
    ids = (torch.arange(prefix + widest, device=oracle.device) % oracle.vocab_size).expand(batch_size, -1)
    counts = np.full(batch_size, prefix)
    if prefix:
        oracle.score(ids[:, :prefix], None, torch.from_numpy(counts).to(oracle.device), cache, rows, "none")
        cache.commit(rows, None, counts)
    seconds = np.zeros((_ROUNDS + 1, len(widths)))
    for taken in seconds:
        for i, width in enumerate(widths):
            nodes = torch.full((batch_size,), width, device=oracle.device)
            began = time.perf_counter()
            scores = oracle.score(ids[:, prefix : prefix + width], None, nodes, cache, rows)
            assert scores.logits is not None
            scores.logits[0, -1, 0].item()  # the device has finished
            taken[i] = time.perf_counter() - began
    medians: list[float] = np.median(seconds[1:], axis=0).tolist()
    return medians


def _timing(chunks: Sequence[_Columns], num_rows: int) -> FloatArray:
    """Return what ``_steps`` does, for several runs, one after the other."""
    return np.concatenate([np.zeros((5, 0)), *(_steps(chunk, num_rows) for chunk in chunks)], axis=1)


def _steps(columns: _Columns, num_rows: int) -> FloatArray:
    """Return ``[5, S]`` of the steps of a run that had ``num_rows`` rows in flight, from its records.

    They are seconds of drafting, of scoring and of the rest, the longest path, and the width without the root.
    """
    step = np.asarray(columns["step"], dtype=np.int64)
    made = np.zeros((5, step.max(initial=-1) + 1))
    for phase, place in (("propose", 0), ("score", 1), ("verify", 2), ("commit", 2)):
        np.add.at(made[place], step, columns[f"seconds_{phase}"])
    np.maximum.at(made[3], step, columns["draft_depth"])
    made[4, step] = np.asarray(columns["num_nodes"]) - 1
    return made[:, np.bincount(step, minlength=made.shape[1]) == num_rows]


def _costs(
    plain: FloatArray, drafted: FloatArray, passes: Sequence[float], batch_size: int
) -> tuple[float, WidthCurve]:
    """Return c' and v', in plain steps, from what ``_timing`` tells of the runs.

    All are medians, as some steps wait for other programs. v' has the shape of the passes, scaled to the run's own pass
    of one node. What a drafted step takes beyond its pass (verdict, bookkeeping), or spares (if the source ran a part
    of the pass), is spread evenly over its nodes.
    """
    drafting, scoring, rest = plain[:3]
    if not len(rest):
        raise ValueError("nothing was decoded: give prompts that leave room for new tokens, and max_new_tokens >= 1")
    step = float(np.median(drafting + scoring + rest))
    some = drafted[:, drafted[3] > 0]
    if not some.size:
        return 0.0, WidthCurve((1,), (1.0,), batch_size)
    token = float(np.median(some[0] / some[3]))
    more = (np.array(passes) / passes[0] - 1) * np.median(scoring)
    nodes, taken = some[4].astype(np.int64), some[1] + some[2]
    beyond = np.median((taken - np.median(scoring + rest) - more[nodes]) / nodes)
    whole = np.maximum(step + more + beyond * np.arange(len(more)), step)
    return token / step, WidthCurve.of_seconds([*range(1, len(more) + 1)], whole.tolist(), batch_size)
