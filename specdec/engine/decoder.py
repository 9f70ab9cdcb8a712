"""The engine: propose, score, verify, commit, on rows of different lengths that join and leave at any step."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import sub

import numpy as np
import torch

from specdec.cache import prefill
from specdec.contracts import (
    PHASES,
    Budget,
    Context,
    DraftSource,
    Ending,
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
from specdec.engine.result import Result, StreamEvent, provenance_of, result_of
from specdec.engine.seating import PrefixSharing, Seating, check_sharing
from specdec.engine.shared_budget import NodeBudget, share
from specdec.engine.state import Frame, State
from specdec.engine.verdict import Verifier
from specdec.kernels import Kernels, resolve_kernels
from specdec.requests import (
    Prompt,
    Request,
    Stops,
    TextHolder,
    check_draft_tokens,
    check_rows,
    first_stop,
    make_requests,
    seed_of_one,
)
from specdec.sampling import (
    BatchWarping,
    Coupled,
    Keyed,
    RandomnessFactory,
    SamplingParams,
    Seed,
)
from specdec.transfers import stage
from specdec.verify import resolve_rule


class SpeculativeDecoder:
    """Decode an oracle's text with the help of a draft source; the output follows the oracle's own law.

    Args:
        oracle: the target model (see ``specdec.contracts.Oracle``).
        draft: proposes tokens; None: autoregressive decoding through the same step.
        rule: how drafts are judged, by name or as an object; "coupled" makes sampled output equal that of plain
            decoding with ``rule="coupled"``.
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
        check_sharing(max_cache_bytes, prefix_sharing)
        self._max_cache_bytes = max_cache_bytes
        self._sharing = PrefixSharing(oracle, max_cache_bytes) if prefix_sharing else None
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
        max_length: int | None = None,
    ) -> State:
        """Return the state from which ``step`` goes on; other arguments and errors as in ``generate``.

        Args:
            max_length: ids, prompt and output together, of the longest request to be added to the state, which then has
                ``batch_size`` rows, however few prompts it starts with. None: the longest of these requests.
        """
        max_rows, length = check_rows(batch_size, max_length)
        check_logprobs(self.oracle, return_logprobs)
        requests = make_requests(self.oracle, prompts, max_new_tokens, sampling, seed, stop)
        num_rows = max_rows if length else min(max_rows or len(requests), len(requests))
        length, slack = max([length, *(r.max_length for r in requests)]), int(self.offers.max_nodes) + 1
        if self._sharing is None:
            seating = Seating(self.oracle.new_cache(num_rows, length + slack, self._max_cache_bytes))
        else:
            seating = self._sharing.open(num_rows, length + slack, slack, self.draft)
        session = self.draft.open(self.oracle, num_rows, length + slack)
        return State(requests, num_rows, length, slack, seating, session, meter_of(self.oracle), return_logprobs)

    def request(
        self,
        prompt: Prompt,
        max_new_tokens: int = 128,
        sampling: SamplingParams | None = None,
        seed: Seed | Sequence[Seed] = 0,
        stop: Stops = None,
        max_draft_tokens: int | None = None,
    ) -> Request:
        """Return a checked request, for ``State.add``; other arguments and errors as in ``stream``.

        Args:
            seed: requests of equal seeds draw by the same numbers: give each its own.
            max_draft_tokens: most tokens along a path of its drafts; 0: nothing is drafted for it.
        """
        (made,) = make_requests(self.oracle, [prompt], max_new_tokens, sampling, seed_of_one(seed), stop)
        return replace(made, max_draft_tokens=check_draft_tokens(max_draft_tokens))

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
            frame, times = self._frame(state), [state.now()]

            # 1. Propose.
            rows, streams = frame.seated.rows, frame.randomness.extend("draft")
            own = Budget(frame.budget.max_depth.copy(), frame.budget.max_nodes.copy())  # a source may write to copies
            draft = state.session.propose(rows.copy(), frame.context, own, streams)
            check_form(self.draft, self.offers, draft, len(rows), self.oracle)
            nodes = draft.after(frame.pending)
            packed = self._verify.pack(draft, nodes, frame)  # before the pass drives all of it out of the CPU's caches
            times.append(state.now())

            # 2. Score.
            scores = self._verify.score(draft, nodes, frame, state.seating.cache)
            times.append(state.now())

            # 3. Verify.
            outcome = self._verify(draft, nodes, scores, frame, packed)
            times.append(state.now())

            # 4. Commit.
            outcome = self._commit(state, frame, outcome)
            times.append(state.now())
            self._tell(state, frame, outcome, scores)  # whose time is the source's, as that of 1
            times.append(state.now())

            facts = frame.seated.requests, frame.num_committed, frame.shortened
            seconds = dict(zip(PHASES, map(sub, times[1:5], times), strict=True))
            seconds["propose"] += times[5] - times[4]
            info = record(outcome, draft, *facts, seconds, self.draft.name)
            state.end_step(info, outcome.judge, self.draft.name, draft.is_native)
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
        return result_of(state, self.oracle, self.draft, self.offers, self.rule, self.budget, self.kernels)

    def _admit(self, state: State) -> None:
        """Seat waiting requests (rows, prefill, begin), then those that waited for these to read a common beginning."""
        while (seated := state.slots.admit(state.seating.seat)).size:
            began = time.perf_counter()
            prompts = [state.slots.requests[i].prompt for i in state.slots.occupants[seated]]
            scores, calls = prefill(self.oracle, state.seating.cache, seated, prompts, self.draft.needs)
            state.seating.note_prompts(seated, prompts)
            state.session.begin(seated.copy(), [prompt.copy() for prompt in prompts], scores)
            state.recorder.add_prefill(time.perf_counter() - began, state.slots.occupants[seated], calls)

    def _frame(self, state: State) -> Frame:
        """Seat waiting requests, and return the step's view of the rows in flight."""
        if len(state.slots.requests) > state.slots.num_queued:
            state.slots.queue()
        if state.slots.waiting:
            self._admit(state)
        if not state.slots.rows.size:
            raise state.idle_error()
        seated, slots = state.seated, state.slots
        rows, num_committed = seated.rows, slots.num_committed[seated.rows]
        ids, pending = slots.ids[:, : num_committed.max()].take(rows, axis=0), slots.ids[rows, num_committed - 1]
        eos_ids, kernels = self.oracle.eos_ids, self.kernels
        past = ids.copy() if seated.params.is_adjusted else ids  # which a source may write to
        warping = BatchWarping(seated.params, past, num_committed, seated.prompt_lengths, eos_ids, kernels)
        room = seated.max_lengths - num_committed - 1
        depth = np.minimum(room, seated.max_drafts)
        shortened = room < np.minimum(seated.max_drafts, self.offers.max_depth)
        nodes = constant(len(depth), int(self.offers.max_nodes))
        budget = Budget(depth, nodes if min(depth.tolist()) > 0 else np.where(depth > 0, nodes, 0))
        randomness = self.randomness(seated.keys, num_committed)
        cache = None if self.draft.needs.cache_of is None else state.seating.cache
        context = Context(ids, num_committed.copy(), warping, cache)
        uploads = [] if self._is_here else [stage((pending,), self.oracle.device)]
        told = context, warping, budget, randomness, state.return_logprobs, uploads
        return Frame(seated, num_committed, pending, shortened, *told)

    def _commit(self, state: State, frame: Frame, outcome: StepOutcome) -> StepOutcome:
        """Keep the paths, append the blocks up to their ends, and return the outcome as it was kept."""
        rows, slots = frame.seated.rows, state.slots
        path = None if outcome.walk is None else torch.from_numpy(outcome.walk.path)
        state.seating.cache.commit(rows, path, outcome.num_accepted + 1)
        if frame.seated.with_stops.size:
            outcome = self._cut_at_stops(state, frame, outcome)
        slots.append(rows, outcome.emitted, outcome.counts)
        return outcome

    def _tell(self, state: State, frame: Frame, outcome: StepOutcome, scores: Scores) -> None:
        """Tell the source what was emitted, and release finished rows."""
        rows, endings = frame.seated.rows, outcome.endings
        told = rows.copy(), frame.num_committed.copy(), outcome.emitted.copy()  # a source may write to copies
        state.session.sync(*told, self._verify.source_scores(scores, outcome))
        left = frame.seated.max_lengths - state.slots.num_committed[rows]
        if any(endings.tolist()) or 0 in left.tolist():
            finished = (endings != int(Ending.NONE)) | (left == 0)
            state.retire(rows[finished], endings[finished])

    def _cut_at_stops(self, state: State, frame: Frame, outcome: StepOutcome) -> StepOutcome:
        """Return a step's outcome, cut at a request's own stop if that comes first."""
        counts, endings = outcome.counts.copy(), outcome.endings.copy()
        for b in frame.seated.with_stops:
            request = state.slots.requests[frame.seated.requests[b]]
            output = state.slots.output(frame.seated.rows[b]) + outcome.block[b, : counts[b]].tolist()
            at = first_stop(request, self.oracle.tokenizer, output, int(counts[b]))
            if at + 1 < counts[b] or (at < counts[b] and endings[b] == Ending.NONE):
                counts[b], endings[b] = at + 1, Ending.STOP
        return replace(outcome, counts=counts, endings=endings)

    def _events(self, state: State) -> Iterator[StreamEvent]:
        holder, output = TextHolder(self.oracle.tokenizer, state.slots.requests[0].stop_strings), list[int]()
        while state.has_work:
            state, info = self.step(state)
            tokens: list[int] = info.tokens[0, : info.num_emitted[0]].tolist()
            output += tokens
            reason = state.finish_reasons[0]
            text = holder.push(output[:-1] if reason == "eos" else output, final=reason is not None)
            if reason is not None:  # a caller that has the last event need not ask for another
                state.end_run()
            yield StreamEvent(tokens, text, provenance_of(info), reason)
        state.end_run()  # for a stream of nothing; any other run has ended, and may be ended again
