"""A draft source's promises as one line of a test: the form of its drafts, the honesty of its laws, its memory."""

import random  # whose state is looked at, never drawn from
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch

from specdec.cache import prefill
from specdec.contracts import (
    Budget,
    Cache,
    Context,
    Draft,
    DraftSession,
    DraftSource,
    IntArray,
    Oracle,
    Randomness,
    Scores,
    WatchedSession,
    WatchedSource,
    check_source,
    frozen,
    pad_rows,
)
from specdec.engine import SpeculativeDecoder
from specdec.exactness.findings import (
    Draw,
    DrawRecorder,
    draft_difference,
    form_findings,
    honesty_findings,
    name_findings,
)
from specdec.requests import Prompt, list_prompts
from specdec.sampling import SamplingParams

_DETOUR = 3
_RUNS = ("in a second run", "alone in its batch", "after ids were taken back")
_WARPED = SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3)
_COMPILED = "when compiled code draws it"


@dataclass
class _Log:
    """The faults that were seen, every draft by request and committed length, and which of them compiled code drew."""

    vocab_size: int
    compiles: bool
    detours: bool
    faults: dict[str, tuple[str, str]] = field(default_factory=dict)
    drafts: dict[tuple[int, int], tuple[Draft, int]] = field(default_factory=dict)
    compiled: set[tuple[int, int]] = field(default_factory=set)

    def note(self, where: str, fault: str, how: str = "") -> None:
        """Keep the first place of every fault, and what was seen there."""
        self.faults.setdefault(fault, (where, how and f": {how}"))


@dataclass
class _AuditedSession(WatchedSession):
    """A session whose drafts are looked at, and that is led astray if the log says so."""

    source: DraftSource
    oracle: Oracle
    log: _Log
    requests: IntArray
    num_begun: int = 0
    last: tuple[Context, Budget, Randomness] | None = None

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests; they are counted in the order in which they come."""
        self.requests[rows] = self.num_begun + np.arange(len(rows))
        self.num_begun += len(rows)
        self.inner.begin(rows, prompts, scores)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Draft and look at the draft; every seventh call of a request allows nothing, every fifth a single token."""
        phase = self.requests[rows] + context.num_committed
        cap = np.where(phase % 7 == 0, 0, np.where(phase % 5 == 0, 1, np.iinfo(np.int64).max))
        budget = Budget(np.minimum(budget.max_depth, cap), np.minimum(budget.max_nodes, cap))
        draws: list[list[Draw]] = [[] for _ in rows]
        compiled: set[int] = set()
        recorder = DrawRecorder(
            randomness, np.arange(len(rows)), draws, compiled=compiled if self.log.compiles else None
        )
        draft = self.inner.propose(rows, context, budget, recorder)
        where = [f"request {r}, {n} committed" for r, n in zip(self.requests[rows], context.num_committed, strict=True)]
        findings = form_findings(draft, budget, self.source.offers, self.log.vocab_size)
        malformed = [f"  {where[b]}: {fault}" for b, fault in findings]
        if malformed:
            raise AssertionError("\n".join([f"draft {self.source.name!r} is malformed:", *malformed]))
        honesty = honesty_findings(draft, draws, self.source.offers, self.log.vocab_size)
        for b, fault in (*honesty, *name_findings(draws)):
            if b not in compiled:  # what compiled code drew is compared with what ``choose`` draws
                self.log.note(where[b], fault)
        for b, (request, length) in enumerate(zip(self.requests[rows], context.num_committed, strict=True)):
            self.log.drafts[int(request), int(length)] = (draft, b)
            if b in compiled:
                self.log.compiled.add((int(request), int(length)))
        self.last = context, budget, randomness
        return draft

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Learn what stands; with detours, drafts go on from ids that do not stand, and these are taken back."""
        if self.log.detours and self.last is not None:
            keep, new_ids, scores = *self._detour(rows, keep, new_ids), None
        self.inner.sync(rows, keep, new_ids, scores)

    def _detour(self, rows: IntArray, keep: IntArray, new_ids: IntArray) -> tuple[IntArray, IntArray]:
        """Lead the source astray and return how to call it back: how many ids stand still, and what follows them."""
        assert self.last is not None
        context, budget, randomness = self.last
        shorter = np.maximum(keep - _DETOUR, 1)
        known = [ids[start:stop] for ids, start, stop in zip(context.ids, shorter, keep, strict=True)]
        right = [np.concatenate([ids, new[new >= 0]]) for ids, new in zip(known, new_ids, strict=True)]
        wrong = (np.stack([ids[:1] for ids in right]) + 1) % self.log.vocab_size
        self.inner.sync(rows, shorter, wrong, None)
        astray = context.ids.copy() if context.ids.shape[1] > shorter.max() else np.pad(context.ids, ((0, 0), (0, 1)))
        astray[np.arange(len(rows)), shorter] = wrong[:, 0]
        cache = None if context.cache is None else self._cache_of(rows, astray, shorter + 1)
        detour = Context(astray, shorter + 1, context.warping, cache)
        self.inner.propose(rows, detour, budget, randomness.extend("detour"))
        return shorter, pad_rows(right, -1)

    def _cache_of(self, rows: IntArray, ids: IntArray, num_committed: IntArray) -> Cache:
        """Return a cache of the oracle's in which these ids stand, the last of each row pending."""
        cache: Cache = self.oracle.new_cache(int(rows.max()) + 1, ids.shape[1] + self.source.offers.max_nodes + 1)
        prefill(self.oracle, cache, rows, [row[:n] for row, n in zip(ids, num_committed, strict=True)])
        return cache


def check_draft(
    source: DraftSource,
    oracle: Oracle,
    prompts: Sequence[Prompt] | None = None,
    *,
    max_new_tokens: int = 24,
    sampling: SamplingParams | None = None,
    seed: int = 0,
    kernels: str | None = None,
) -> None:
    """Check that a draft source conforms to its contract, by running it in the real engine.

    It checks the form of every draft (shapes, ids, tree, scouts, budgets, what it offers); that every node with a
    real law was drawn from that law, distinct siblings together, and that nothing drawn was dropped (tokens of an
    inner verdict are left to ``check_lossless``); that no two draws of a step have the same name, and so the same
    number; that compiled code, wherever it draws by keys in an ordinary run, gives the drafts that were checked so: the
    same ids, tree and laws; that no global random state is used; that a request gets the same drafts when it is alone
    in its batch (unless ``offers.reproducible`` is False); and that it gets them again after ids were given to the
    source and taken back. The last is not checked if the source needs scores or declares ``offers.adaptive``: then ids
    that were taken back may change its drafts.

    Args:
        source: the source.
        oracle: any oracle with its vocabulary, a tabular one for instance.
        prompts: one or more; None: eight short ones.
        max_new_tokens: per prompt, 2 or more: the last token is never drafted.
        sampling: None: temperature 1, then greedy decoding, then one run with a temperature, top_p and a penalty.
        seed: of the runs.
        kernels: of the runs, see ``SpeculativeDecoder``.

    Raises:
        AssertionError: with a table of the faults and where each was seen first.
        ValueError: ``source`` is not a draft source, or nothing could be drafted.

    Guarantee: laws are compared as numbers, not statistically: to 1e-12 in the first run, in which all is drawn
        by ``choose``; in the others, where compiled code draws as in any run, up to a total variation of 1e-5 from that
        run's. What a source does outside ``choose``, ``chain_keys`` and ``verdict_numbers`` is seen only if it changes
        from run to run. Coupled draws are not made: no verdict on them reads a law.
    Cost: four runs per sampling; of the warped one, the first.
    """
    check_source(source, "source")
    chosen = [SamplingParams(temperature=1.0), SamplingParams(), _WARPED] if sampling is None else [sampling]
    prompts = _default_prompts(oracle.vocab_size) if prompts is None else list_prompts(prompts)
    if not prompts:
        raise ValueError("prompts are empty, and nothing is checked: give one or more, or None for eight short ones")
    if max_new_tokens < 2:
        raise ValueError(f"max_new_tokens={max_new_tokens} lets no step draft a token: give 2 or more")
    faults: dict[str, tuple[str, str]] = {}
    has_drafted = False
    for params in chosen:
        asked = {"prompts": prompts, "max_new_tokens": max_new_tokens, "sampling": params, "seed": seed}
        run_with = partial(_run, source, oracle, kernels)
        runs = [run_with(asked, compiles=False)]
        if params is not _WARPED:
            runs += _further_runs(run_with, asked, source)
        for run, other, name in zip((runs[0], *runs[1:2] * 2), runs[1:], _RUNS, strict=False):
            _compare(run, other, name)
        for run in runs:
            faults = {**run.faults, **faults}
            has_drafted |= any(int(draft.num_nodes[row]) for draft, row in run.drafts.values())
    if faults:
        lines = [f"  {where}: {fault}{how}" for fault, (where, how) in faults.items()]
        raise AssertionError("\n".join([f"draft {source.name!r} does not conform:", *lines]))
    if not has_drafted and source.offers.max_depth:
        raise ValueError(f"draft {source.name!r} drafted nothing, so that nothing is checked: give other prompts")


def _further_runs(run_with: Callable[..., _Log], asked: Mapping[str, Any], source: DraftSource) -> list[_Log]:
    """Decode as in any run, and then, if the source's drafts must not depend on it, in other batches and histories."""
    runs = [run_with(asked)]
    if source.offers.reproducible:
        runs.append(run_with({**asked, "batch_size": 1}))
        if not (source.needs.logits or source.needs.hidden or source.offers.adaptive):
            runs.append(run_with(asked, detours=True))
    return runs


def _default_prompts(vocab_size: int) -> list[list[int]]:
    """Return eight prompts of 1 to 15 ids, some of which repeat themselves."""
    return [[(i * i + (j % (i + 2)) * (i + 1)) % vocab_size for j in range(2 * i + 1)] for i in range(8)]


def _run(
    source: DraftSource,
    oracle: Oracle,
    kernels: str | None,
    asked: Mapping[str, Any],
    *,
    compiles: bool = True,
    detours: bool = False,
) -> _Log:
    """Decode once and return what was seen.

    ``asked``: the arguments of ``generate``; ``compiles``: compiled code may draw, as in any run.
    """
    log = _Log(oracle.vocab_size, compiles, detours)
    before = _global_states()

    def watch(session: DraftSession, oracle: Oracle, num_rows: int) -> DraftSession:
        return _AuditedSession(session, source, oracle, log, np.zeros(num_rows, np.int64))

    decoder = SpeculativeDecoder(oracle, WatchedSource(frozen(source), watch), "sample_and_match", kernels=kernels)
    decoder.generate(**asked)
    if any(one != other for one, other in zip(before, _global_states(), strict=False)):
        log.note("the run", "a global random state was used: draw through randomness.choose only")
    return log


def _global_states() -> list[object]:
    """Return the states of the generators of Python, numpy, torch and its devices, to see that nobody drew from them.

    They are only read. Devices that nobody has used yet have none.
    """
    is_used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    tensors = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if is_used else ())]
    name, key, *rest = np.random.get_state(legacy=True)  # noqa: NPY002
    return [random.getstate(), (name, np.asarray(key).tobytes(), *rest), *(bytes(state.numpy()) for state in tensors)]


def _compare(first: _Log, other: _Log, name: str) -> None:
    """Note in ``other`` where a request's drafts first differ from those of another run, and how."""
    for key in sorted(first.drafts.keys() | other.drafts.keys(), key=lambda key: (key[1], key[0])):
        pair = first.drafts.get(key), other.drafts.get(key)
        how = draft_difference(*pair[0], *pair[1], first.vocab_size) if pair[0] and pair[1] else "one run lacks it"
        if how is not None:
            by_code = key in other.compiled and key not in first.compiled
            fault = f"the draft differs {_COMPILED if by_code else name}"
            other.note(f"request {key[0]}, {key[1]} committed", fault, how)
            return
