"""Draft with a model that is itself decoded speculatively, with the help of a cheaper source."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, count
from typing import Any

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    Budget,
    ChainKeys,
    Context,
    Draft,
    DraftPrefixes,
    DraftSession,
    DraftSource,
    FloatArray,
    IntArray,
    Needs,
    Offers,
    OpenVerdict,
    Oracle,
    Randomness,
    Scores,
    StageInfo,
    check_model,
    check_source,
    check_vocabulary,
    close_session,
    first_undefined,
    share_prefixes,
    sum_of_stages,
)
from specdec.drafting import JudgingModel, SampledSource, Trunk, check_servable, drawable_laws, proposal
from specdec.drafting.lengths import LengthPolicy, LengthSession, cut_limits, depth_limits, open_length
from specdec.laws import Laws
from specdec.theory import check_count
from specdec.transfers import on_device, stage
from specdec.verify import RULES, ChainVerifier


class Staged(SampledSource):
    """Draft from a model's laws, in fewer passes than tokens: a cheaper source drafts for the model.

    The draft grows in inner steps. The inner source proposes a chain after the draft so far; the model scores it in
    one pass over its own cache; the rule ``standard`` keeps a part of it and draws one more token, by the model's laws
    as the request warps them. What the inner step emits follows these laws exactly, and the draft declares them.

    Args:
        draft_model: any object with the oracle contract and the target's vocabulary.
        inner: drafts chains for the model; it may be a ``Staged`` itself, to any depth.
        num_draft_tokens: depth of the draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 8.
        length: a length policy; one that reads confidences is asked about every token, and ends the trunk after the
            inner step in which the token came.
        width: children of each node of the trunk: the token drafted, and ``width - 1`` siblings from the law that is
            already known, drawn without replacement (the next best ids if decoding is greedy). 1: chains.
        temperature: of the model's laws; None follows each request, 0 drafts greedily.

    Raises:
        ValueError: no model, an argument out of range, a policy that reads entropies, an inner source that branches,
            has another vocabulary or needs what the model cannot give it; in ``open``, a model of another vocabulary
            than the target's; in use, an inner draft that branches or is over its budget.

    Guarantee: tokens follow the declared laws, whatever the inner source, because the inner rule is lossless. No drawn
        token is dropped: the inner budget leaves room for the token after the inner draft. Every inner step draws from
        streams of its own. In coupled mode the inner verdict compares ids too, so that the trunk is the unstaged
        model's draft. Reproducible if the inner source is.
    Cost: at most one model pass of up to depth tokens per token drafted; the more inner tokens stand, the fewer passes.
        O(V) per token. One host synchronisation per inner step: the next inner draft needs to know what it follows. The
        inner source is called once per inner step, and told what stands after each. ``Draft.stages`` counts passes,
        tokens and time of each stage.
    Source: Spector and Re 2023 (arXiv 2308.04623), staged speculation: a draft tree, and speculation for the draft
        model.
    Deviations: siblings hang on the nodes of one sampled trunk and have no children of their own; the paper branches
        at every level, with passes that grow as the tree does.
    """

    needs = Needs()

    def __init__(
        self,
        draft_model: Oracle,
        inner: DraftSource,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        width: int = 1,
        temperature: float | None = None,
    ) -> None:
        check_model(draft_model, "draft_model")
        check_source(inner, "inner")
        check_count("width", width, 1)
        if inner.offers.trees:
            raise ValueError(
                f"inner source {inner.name!r} branches, and the draft model judges chains: give it a source of chains"
            )
        check_servable(inner, self.name_of(inner))
        if inner.vocab_size not in (None, draft_model.vocab_size):
            raise ValueError(
                f"inner source {inner.name!r} drafts from {inner.vocab_size} ids, and draft_model has "
                f"{draft_model.vocab_size}: give it one of the same tokenizer"
            )
        if inner.needs.hidden:
            raise ValueError(f"inner source {inner.name!r} needs hidden layers; a draft model hands on its logits only")
        super().__init__(num_draft_tokens, length, temperature, default=8)
        if self.length.reads_entropy:
            raise ValueError(
                "length reads entropies before a draw, but a staged draft grows by several tokens at a time: use a "
                "policy that reads confidences, such as Threshold"
            )
        self.model, self.inner, self.width = draft_model, inner, width

    @staticmethod
    def name_of(inner: DraftSource) -> str:
        """Return the name of a staged draft with that inner source."""
        return f"staged({inner.name})"

    @property
    def name(self) -> str:
        """Its name in records and messages."""
        return self.name_of(self.inner)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from."""
        return self.model.vocab_size

    @property
    def offers(self) -> Offers:
        """What it declares."""
        chain = super().offers
        return replace(
            chain,
            trees=self.width > 1,
            confidence=chain.confidence and self.width == 1,
            reproducible=self.inner.offers.reproducible,
            adaptive=chain.adaptive or self.inner.offers.adaptive,
            calibration=self.inner.offers.calibration if chain.calibration is None else chain.calibration,
            max_nodes=chain.max_depth * self.width,
        )

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        check_vocabulary(f"draft {self.name!r}", self.model.vocab_size, self.model.tokenizer, oracle)
        # A pass is as wide as the longest inner draft of any row, after up to two ids to catch up with.
        slack = min(self.inner.offers.max_depth, self.length.max_depth) + 2
        model = JudgingModel(self.model, num_rows, capacity, self.model.device, slack)
        inner = self.inner.open(self.model, num_rows, capacity)
        return _Session(self, model, inner, open_length(self.length, num_rows), oracle.device)


@dataclass(frozen=True)
class _Ahead:
    """The streams of an inner step: depths count from the trunk's end, ``by`` ``[B]`` tokens after the pending one.

    Purposes are marked, so that a draw for an inner draft is not taken for one of the draft itself.
    """

    inner: Randomness
    by: IntArray

    @property
    def coupled(self) -> bool:
        return self.inner.coupled

    def select(self, rows: IntArray) -> "_Ahead":
        return _Ahead(self.inner.select(rows), self.by[rows])

    def extend(self, part: str | int) -> "_Ahead":
        return _Ahead(self.inner.extend(part), self.by)

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        if laws.all_points or not self.coupled:
            return self.inner.choose(laws, node, 0, f"inner {purpose}", k)
        is_here = laws.index.is_cpu and not isinstance(depth, Tensor)
        by: Any = (self.by if is_here else on_device(self.by, laws.index.device)).reshape(
            -1, *[1] * (len(laws.shape) - 1)
        )
        if not is_here and not isinstance(depth, int):
            depth = on_device(depth if isinstance(depth, Tensor) else np.asarray(depth), laws.index.device)
        return self.inner.choose(laws, node, depth + by, f"inner {purpose}", k)

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        keys = self.inner.chain_keys(f"inner {purpose}")
        return keys._replace(firsts=keys.firsts + self.by) if keys is not None and self.coupled else keys

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays of the host that draws on a device read."""
        yield from (*self.inner.numbers(), self.by)

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> IntArray | FloatArray | None:
        stop, follow = purposes
        numbers = self.inner.verdict_numbers(num_rows, verdict, (f"inner {stop}", f"inner {follow}"))
        # In coupled mode a key for each row, then a position.
        return numbers + np.pad(self.by, (num_rows, 0)) if numbers is not None and self.coupled else numbers


def inner_stream(randomness: Randomness, step: int) -> Randomness:
    """Return the streams of an inner step: neither its owner nor another step shares a number with it."""
    return randomness.extend(f"inner {step}")


def _fault(inner: DraftSource, told: str) -> ValueError:
    """Return the error that the draft of an inner source is refused with."""
    return ValueError(f"inner source {inner.name!r} {told}; its session must respect what it offers and its budget")


class _Session(DraftSession):
    def __init__(
        self, source: Staged, model: JudgingModel, inner: DraftSession, length: LengthSession, device: torch.device
    ) -> None:
        self.source, self.model, self.inner, self.length, self.device = source, model, inner, length, device
        self._verify: ChainVerifier | None = None

    def share(self, prefixes: DraftPrefixes) -> None:
        self.model.share(prefixes)
        share_prefixes(self.inner, prefixes)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.length.begin(rows)
        scores_of_model = self.model.prefill(rows, prompts, self.source.inner.needs)
        self.inner.begin(rows.copy(), [prompt.copy() for prompt in prompts], scores_of_model)

    def end(self, rows: IntArray) -> None:
        self.model.end(rows)
        self.inner.end(rows)

    def close(self) -> None:
        close_session(self.inner)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.model.sync(rows, keep, new_ids)
        self.inner.sync(rows.copy(), keep, new_ids, None)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limits = depth_limits(self.length, rows, context.num_committed, budget)
        limits = np.minimum(limits, self.model.room(rows, context.num_committed))
        asks, depth = self.length.policy.reads_confidence, int(limits.max(initial=0))
        trunk = Trunk(context, depth, self.source.width - 1, asks, self.model.device)
        stages: list[StageInfo] = []
        for step in count():
            live = np.flatnonzero(trunk.counts < limits)
            if not live.size:
                break
            stream = _Ahead(inner_stream(randomness, step).select(live), trunk.counts[live])
            some = context if live.size == len(rows) else context.select(live)
            stages += self._step(rows[live], some, trunk, live, limits[live], stream)
            if asks:
                limits = self._limits_after(rows, limits, stream.by, live, trunk.counts, trunk.confidence())
        self.length.note_counts(rows, trunk.counts)
        branches = self.source.width > 1 and trunk.counts.any()
        draft = trunk.draft_branches(budget.max_nodes, randomness.extend("siblings")) if branches else trunk.draft()
        return replace(draft.to(self.device), stages=sum_of_stages(stages))

    def _limits_after(
        self,
        rows: IntArray,
        limits: IntArray,
        before: IntArray,
        live: IntArray,
        counts: IntArray,
        confidence: FloatArray,
    ) -> IntArray:
        """Return the limits ``[B]`` after asking the policy, once per depth, about the new tokens of rows ``live``."""
        asked = counts.copy()
        asked[live] = before
        for depth in range(int(before.min()) + 1, int(counts.max()) + 1):
            some = np.flatnonzero((asked < depth) & (depth <= counts))
            if some.size:
                goes_on, limits = self.length.continues(rows[some], confidence[some, :depth]), limits.copy()
                limits[some] = cut_limits(self.length, limits[some], counts[some], goes_on)
        return limits

    def _step(
        self, rows: IntArray, context: Context, trunk: Trunk, live: IntArray, limits: IntArray, randomness: _Ahead
    ) -> tuple[StageInfo, ...]:
        """Let the trunk of the rows ``live`` ``[R]`` grow by one model pass; all other arguments are of these rows."""
        began, ids, ends = time.perf_counter(), trunk.ids[live], context.num_committed + randomness.by
        room = limits - randomness.by - 1  # the token after the inner draft is kept too
        warping = context.warping.with_ids(ids, ends)
        given = (Context(ids, ends, warping), Budget(room, room), randomness.extend("draft"))
        device, start = self.model.model.device, self.model.chain_start(rows, ids, ends)
        with stage(chain((start.standing, start.behind), randomness.numbers()), device):
            inner = proposal(self.source.inner, self.inner, rows, *given)
            if inner.tokens.is_cpu and not inner.is_chain:
                raise _fault(self.source.inner, "drafted a tree, and declares offers.trees=False")
            drafted = time.perf_counter()
            with stage(inner.numbers(), device):
                logits = self.model.score_chain(start, inner)
                inner = inner.to(device)
            laws, peaks = drawable_laws(warping.laws(logits, inner, temperature=self.source.temperature), logits)
            if self._verify is None:
                self._verify = ChainVerifier(RULES["standard"], warping.kernels)
            undefined = first_undefined([peaks.masked_fill(~inner.tree.is_real, 0)])
            here = self._verify(inner, laws, randomness, {"undefined": undefined, "inner": inner.undefined})
            if (over := here["num_nodes"] > room).any():
                row = int(over.argmax())
                told = f"drafted {here['num_nodes'][row]} tokens, over its budget of {room[row]}"
                raise _fault(self.source.inner, told)
        tokens, counts = here["tokens"], here["counts"]
        trunk.note_undefined(
            live, np.concatenate([here[name] for name in ("undefined", "inner") if name in here], axis=1)
        )
        self.model.keep_chain(rows, ends, tokens, counts - 1)
        trunk.append(live, tokens, counts, laws, logits)
        verified = time.perf_counter()
        block = np.where(np.arange(tokens.shape[1]) < counts[:, None], tokens, -1)
        self.inner.sync(rows.copy(), ends, block, Scores(logits) if self.source.inner.needs.logits else None)
        own = StageInfo(
            self.source.name,
            passes=1,
            steps=len(rows),
            drafted=int(here["num_nodes"].sum()),
            accepted=int((counts - 1).sum()),
            emitted=int(counts.sum()),
            seconds=verified - drafted,
            inner_seconds=drafted - began + time.perf_counter() - verified,
        )
        return own, *inner.stages
