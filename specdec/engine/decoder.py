"""The engine: propose, score, verify, commit, on rows of different lengths that join and leave at any step."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch

from specdec.cache import prefill
from specdec.contracts import (
    Budget,
    Context,
    DraftSource,
    Ending,
    IntArray,
    Oracle,
    Scores,
    StepInfo,
    VerificationRule,
    constant,
)
from specdec.engine.checks import check_form, check_logprobs, check_pair
from specdec.engine.metering import meter_of
from specdec.engine.no_draft import NoDraft
from specdec.engine.outcome import StepOutcome, record
from specdec.engine.result import Result, StreamEvent, exactness_claim, is_reproducible, logprobs_of, provenance_of
from specdec.engine.seating import rows_of
from specdec.engine.shared_budget import NodeBudget, share
from specdec.engine.slots import Slots
from specdec.engine.state import Frame, State
from specdec.engine.verdict import Verifier
from specdec.kernels import Kernels, resolve_kernels
from specdec.requests import (
    Prompt,
    Stops,
    TextHolder,
    check_batch_size,
    cut_text,
    first_stop,
    make_requests,
    seed_of_one,
)
from specdec.sampling import (
    BatchWarping,
    Coupled,
    Keyed,
    ParameterTable,
    RandomnessFactory,
    SamplingParams,
    Seed,
    seed_keys,
)
from specdec.stats import Records, StatsRecorder
from specdec.transfers import stage
from specdec.verify import resolve_rule


class SpeculativeDecoder:
    """Decode an oracle's text with the help of a draft source; the output follows the oracle's own law.

    Args:
        oracle: the target model (see ``specdec.contracts.Oracle``).
        draft: proposes tokens; None: autoregressive decoding through the same step.
        rule: how drafts are judged, by name or as an object; "coupled" makes sampled output equal plain decoding's.
        budget: chooses which drafted tokens of all rows are verified, as ``SharedBudget`` does; None: all of them.
        max_cache_bytes: bound on the cache's memory; None: half of what is free.
        prefix_sharing: what is still known of a prompt's beginning, from earlier requests and runs, is not read again;
            a thread that steps while another one does gets an error.
        kernels: what computes laws, draws and verdicts: "native" (compiled code on the CPU), "reference" (the torch
            operations and rules that define it), None: native if it is available.

    Raises:
        ValueError: no oracle, unknown rule or kernels; or source, rule and oracle cannot work together, and why.

    Guarantee: for rules with ``lossless``, the joint law of the output is that of plain decoding, whatever the source,
        the batch and the order of requests; greedy and coupled output is equal token for token if
        ``result.exactness`` says "exact". If ``result.reproducible``, output does not depend on batch-mates.
    Cost: a step takes one oracle pass for all rows and one host synchronisation; a row takes O(N) bookkeeping and a
        copy of its ids, and with stop strings two decodings of a window for each token.
    """

    def __init__(
        self,
        oracle: Oracle,
        draft: DraftSource | None = None,
        rule: str | VerificationRule = "standard",
        *,
        budget: NodeBudget | None = None,
        max_cache_bytes: int | None = None,
        prefix_sharing: bool = False,
        kernels: str | None = None,
    ) -> None:
        self.oracle, self.budget, chosen = oracle, budget, resolve_rule(rule)
        self.draft: DraftSource = NoDraft() if draft is None else draft
        check_pair(oracle, self.draft, chosen)
        self.draft = share(self.draft, budget, chosen.coupled)
        self._rows = rows_of(oracle, max_cache_bytes, prefix_sharing)
        self.kernels: Kernels = resolve_kernels(kernels, oracle.device)
        self.randomness: RandomnessFactory = partial(Coupled if chosen.coupled else Keyed.at, kernels=self.kernels)
        self.offers, self._is_here = self.draft.offers, oracle.device.type == "cpu"
        self._verify = Verifier(oracle, self.draft, chosen, self.kernels)

    def __repr__(self) -> str:
        return f"SpeculativeDecoder({self.oracle!r}, draft={self.draft.name}, rule={self.rule.name})"

    @property
    def rule(self) -> VerificationRule:
        """How drafts are judged."""
        return self._verify.rule

    def generate(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 128,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        seed: int | Sequence[Seed] = 0,
        stop: Stops = None,
        batch_size: int | None = None,
        return_logprobs: bool = False,
    ) -> Result:
        """Decode every prompt to its end.

        Args:
            prompts: strings, lists of ids, 1-D tensors or conversations (lists of messages ``{"role": ..., "content":
                ...}``, under the oracle's chat template); any number. A bare list of messages is one conversation.
            max_new_tokens: per request; the context limit ends a request too.
            sampling: one for all, or one per prompt; None: greedy.
            seed: an int s gives request i the seed (s, i); a list is used as it is.
            stop: strings or id lists; a request ends with the token that completes one. A list of such lists (or None)
                has one entry per prompt.
            batch_size: rows in flight; None: all. A finished row is replaced at once.
            return_logprobs: also return the log-probability of every emitted token.

        Raises:
            ValueError: an argument is unusable (named, with the fix), before anything is computed; or, in a step, a
                draft or a verdict breaks its contract (names source or rule, and the request), or a grammar leaves no
                id or ends too early (names request and position).
            ImportError: a request has a grammar, and the library for it is missing.
            FloatingPointError: logits of the oracle or of a draft model hold NaN or +inf, or the oracle's logits allow
                no token; names request and position.
            RuntimeError: with ``prefix_sharing``, another thread is in a step of this decoder.
        """
        state = self.start(prompts, max_new_tokens, sampling, seed, stop, batch_size, return_logprobs)
        while state.has_work:
            state, _ = self.step(state)
        return self.finish(state)

    def stream(
        self,
        prompt: Prompt,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: Seed | Sequence[Seed] = 0,
        stop: Stops = None,
    ) -> Iterator[StreamEvent]:
        """Decode one prompt and yield what each step adds (nothing at all for ``max_new_tokens=0``).

        Arguments as in ``generate``; a tuple as ``seed``, such as ``Result.seeds`` holds, is the request's own. (An int
        s stands for (s, 0) here too; if ``generate`` was given an int in a list, give it in a list again.)
        """
        return self._events(self.start([prompt], max_new_tokens, sampling, seed_of_one(seed), stop))

    def start(
        self,
        prompts: Sequence[Prompt],
        max_new_tokens: int = 128,
        sampling: SamplingParams | Sequence[SamplingParams] | None = None,
        seed: int | Sequence[Seed] = 0,
        stop: Stops = None,
        batch_size: int | None = None,
        return_logprobs: bool = False,
    ) -> State:
        """Return the state from which ``step`` goes on; arguments and errors as in ``generate``."""
        max_rows = check_batch_size(batch_size)
        check_logprobs(self.oracle, return_logprobs)
        requests = make_requests(self.oracle, prompts, max_new_tokens, sampling, seed, stop)
        num_rows = min(max_rows or len(requests), len(requests))
        capacity = max((r.max_length for r in requests), default=0) + int(self.offers.max_nodes) + 1
        return State(
            slots=Slots(requests, num_rows, capacity),
            seating=self._rows(requests, num_rows, capacity, self.draft),
            session=self.draft.open(self.oracle, num_rows, capacity),
            params=ParameterTable.of([r.sampling for r in requests], [r.grammar for r in requests]),
            keys=seed_keys([r.seed for r in requests]),
            recorder=StatsRecorder(len(requests)),
            return_logprobs=return_logprobs,
            outputs=[[] for _ in requests],
            finish_reasons=["length" for _ in requests],
            meter=meter_of(self.oracle),
        )

    def step(self, state: State) -> tuple[State, StepInfo]:
        """Seat waiting requests, then propose, score, verify and commit once for all rows in flight.

        Raises:
            ValueError: nothing is in flight and nothing waits, or an earlier step of this state was interrupted.
            FloatingPointError: see ``generate``.
            RuntimeError: another thread is in a step of this state, or, with ``prefix_sharing``, of this decoder.

        Guarantee: if anything (an error, Ctrl-C) cuts a step short, no further step goes on from this state.
        """
        has_begun = False
        try:
            state.begin_step()
            has_begun = True
            if state.slots.waiting:
                self._admit(state)
            frame, began = self._frame(state), state.now()

            draft = state.session.propose(frame.rows, frame.context, frame.budget, frame.randomness.extend("draft"))
            check_form(self.draft, self.offers, draft, len(frame.rows), self.oracle)
            nodes = draft.after(frame.pending)
            packed = self._verify.pack(draft, nodes, frame)  # before the pass drives all of it out of the CPU's caches
            proposed = state.now()

            scores = self._verify.score(draft, nodes, frame, state.cache, state.return_logprobs)
            scored = state.now()

            outcome = self._verify(draft, nodes, scores, frame, state.return_logprobs, packed)
            verified = state.now()

            path = None if outcome.walk is None else torch.from_numpy(outcome.walk.path)
            state.cache.commit(frame.rows, path, outcome.num_accepted + 1)
            if frame.seated.with_stops.size:
                outcome = self._cut_at_stops(state, frame, outcome)
            self._emit(state, frame, outcome, scores)
            seconds = {"propose": proposed - began, "score": scored - proposed, "verify": verified - scored}
            seconds["commit"] = state.now() - verified

            facts = frame.requests, frame.context.num_committed, frame.budget.max_depth < self.offers.max_depth
            info = record(outcome, draft, *facts, seconds, self.draft.name)
            state.judges.add(outcome.judge)
            if info.num_nodes > 1:
                state.drafters.add(f"native: {self.draft.name}" if draft.is_native else self.draft.name)
            state.end_step(info)
            return state, info
        except BaseException:
            state.leave_step(has_begun)
            raise

    def finish(self, state: State) -> Result:
        """Return the result of a run whose requests have all ended.

        Raises:
            ValueError: a request is in flight or waits, or a step was interrupted.
        """
        state.end_run()
        requests, tokenizer = state.slots.requests, self.oracle.tokenizer
        ended = zip(state.outputs, requests, state.finish_reasons, strict=True)
        texts = None if tokenizer is None else [cut_text(tokenizer, o, r.stop_strings, why) for o, r, why in ended]
        stats = state.recorder.finish(
            device=None if state.meter is None else state.meter.finish(),
            total_seconds=time.perf_counter() - state.started,
            cache_bytes=state.cache_bytes,
            weight_bytes=self.oracle.weight_bytes,
            prefixes=state.seating.figures,
        )
        return Result(
            tokens=state.outputs,
            texts=texts,
            finish_reasons=state.finish_reasons,
            stats=stats,
            records=Records(state.recorder.infos),
            logprobs=logprobs_of(state.recorder.infos, len(requests)) if state.return_logprobs else None,
            seeds=[request.seed for request in requests],
            exactness=exactness_claim(self.oracle, self.draft, self.rule, self.budget),
            reproducible=is_reproducible(self.offers, self.rule, requests),
            backend=self.oracle.backend,
            judge="; ".join(sorted(state.judges)),
            drafter="; ".join(sorted(state.drafters)),
            kernels=self.kernels.name,
            calibration=self.offers.calibration,
        )

    def _admit(self, state: State) -> None:
        """Seat waiting requests (rows, prefill, begin), then those that waited for these to read a common beginning."""
        while (seated := state.slots.admit(state.seating.seat)).size:
            began = time.perf_counter()
            prompts = [state.slots.requests[i].prompt for i in state.slots.occupants[seated]]
            scores, calls = prefill(self.oracle, state.cache, seated, prompts, self.draft.needs)
            state.seating.note_prompts(seated, prompts)
            state.session.begin(seated, prompts, scores)
            state.recorder.add_prefill(time.perf_counter() - began, state.slots.occupants[seated], calls)
        state.check_progress()

    def _frame(self, state: State) -> Frame:
        """Return the step's view of the rows in flight."""
        seated, slots = state.seated, state.slots
        rows, num_committed = seated.rows, slots.num_committed[seated.rows]
        ids, pending = slots.ids[:, : num_committed.max()].take(rows, axis=0), slots.ids[rows, num_committed - 1]
        eos_ids, kernels = self.oracle.eos_ids, self.kernels
        warping = BatchWarping(seated.params, ids, num_committed, seated.prompt_lengths, eos_ids, kernels)
        depth = seated.max_lengths - num_committed - 1
        nodes = constant(len(depth), int(self.offers.max_nodes))
        budget = Budget(depth, nodes.copy() if min(depth.tolist()) > 0 else np.where(depth > 0, nodes, 0))
        randomness = self.randomness(seated.keys, num_committed)
        context = Context(ids, num_committed, warping, None if self.draft.needs.cache_of is None else state.cache)
        uploads = [] if self._is_here else [stage((pending,), self.oracle.device)]
        return Frame(rows, seated.requests, seated, context, warping, budget, randomness, pending, uploads)

    def _emit(self, state: State, frame: Frame, outcome: StepOutcome, scores: Scores) -> None:
        """Append the blocks up to their ends, tell the source, release finished rows."""
        rows, slots, endings = frame.rows, state.slots, outcome.endings
        tokens = outcome.emitted.copy()  # a copy: a source that changes it does not change the record
        num_committed = slots.append(rows, tokens, outcome.counts)
        state.session.sync(rows, frame.context.num_committed, tokens, self._verify.source_scores(scores, outcome))
        left = frame.seated.max_lengths - num_committed
        if any(endings.tolist()) or 0 in left.tolist():
            finished = (endings != int(Ending.NONE)) | (left == 0)
            self._retire(state, rows[finished], endings[finished])

    def _cut_at_stops(self, state: State, frame: Frame, outcome: StepOutcome) -> StepOutcome:
        """Return a step's outcome, cut at a request's own stop if that comes first."""
        counts, endings = outcome.counts.copy(), outcome.endings.copy()
        for b in frame.seated.with_stops:
            request = state.slots.requests[frame.requests[b]]
            output = state.slots.output(frame.rows[b]) + outcome.block[b, : counts[b]].tolist()
            at = first_stop(request, self.oracle.tokenizer, output, int(counts[b]))
            if at + 1 < counts[b] or (at < counts[b] and endings[b] == Ending.NONE):
                counts[b], endings[b] = at + 1, Ending.STOP
        return replace(outcome, counts=counts, endings=endings)

    def _retire(self, state: State, rows: IntArray, endings: IntArray) -> None:
        """Store the outputs of finished rows and free them."""
        for row, ending in zip(rows, endings, strict=True):
            request = state.slots.occupants[row]
            state.outputs[request] = state.slots.output(row)
            if ending:
                state.finish_reasons[request] = Ending(ending).word  # type: ignore[assignment]
            state.seating.leave(int(row), state.slots.ids[row, : state.slots.num_committed[row]])
        state.session.end(rows)
        state.slots.release(rows)

    def _events(self, state: State) -> Iterator[StreamEvent]:
        holder, output = TextHolder(self.oracle.tokenizer, state.slots.requests[0].stop_strings), list[int]()
        while state.has_work:
            state, info = self.step(state)
            tokens: list[int] = info.tokens[0, : info.num_emitted[0]].tolist()
            output += tokens
            reason = None if state.has_work else state.finish_reasons[0]
            text = holder.push(output[:-1] if reason == "eos" else output, final=reason is not None)
            if reason is not None:  # a caller that has the last event need not ask for another
                state.end_run()
            yield StreamEvent(tokens, text, provenance_of(info), reason)
        state.end_run()  # for a stream of nothing; any other run has ended, and may be ended again
