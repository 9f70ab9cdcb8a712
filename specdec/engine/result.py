"""What a run hands back, and the events of a stream."""

import html
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from specdec.contracts import BITWISE_NODES, DraftSource, Offers, Oracle, StepInfo, VerificationRule, rule_label
from specdec.engine.shared_budget import NodeBudget
from specdec.engine.state import State
from specdec.kernels import Kernels
from specdec.requests import FinishReason, Request, cut_text
from specdec.sampling import Seed
from specdec.stats import Records, Stats, Table, cell, count_of
from specdec.theory import Calibration

Provenance = Literal["draft", "recovered", "bonus"]
# A notebook's table: how many characters of a text it shows, and what its columns mean.
_SHOWN = 200
_LEGEND = {
    "end": "why it ended",
    "tau": "tokens per verify pass",
    "alpha": "accepted given reached",
    "text": "its beginning",
}


def exactness_claim(oracle: Oracle, draft: DraftSource, rule: VerificationRule, budget: NodeBudget | None) -> str:
    """Return a run's claim: "exact", "exact up to numerics", or "lossy: " with the rule or the budget.

    "exact" needs an oracle that is ``bitwise``, and drafts that keep every pass within the number of nodes for which it
    is.
    """
    if not rule.lossless:
        return f"lossy: {rule_label(rule)}"
    if budget is not None and not budget.lossless and not rule.coupled:
        return f"lossy: {type(budget).__name__}"
    fits = 1 + draft.offers.max_nodes <= BITWISE_NODES
    return "exact" if oracle.bitwise and fits else "exact up to numerics"


def is_reproducible(offers: Offers, rule: VerificationRule, requests: Sequence[Request]) -> bool:
    """Tell whether a request's output depends on nothing but its prompt, its parameters and its seed."""
    return offers.reproducible or rule.coupled or all(request.sampling.temperature == 0 for request in requests)


@dataclass(frozen=True)
class Result:
    """The outputs of ``SpeculativeDecoder.generate``, one entry per request in the order of the prompts.

    Attributes:
        tokens: new ids; the EOS id, or the tokens that complete a stop, included.
        texts: their text, cut before a stop string and without EOS; None without a tokenizer. A tokenizer that writes
            spaces as parts of words (Llama 2's, say) drops the first one: prompt and output decoded together keep it.
        finish_reasons: "eos", "stop", "length", or "cancelled" (by ``State.cancel``).
        stats: statistics in total and per request.
        records: one row per request and step.
        logprobs: log-probability of each new id under the warped target law (the unwarped one at temperature 0), if
            they were asked for.
        seeds: replaying a request alone with its seed (and its ``max_draft_tokens``) gives its output again, if
            ``reproducible`` and if the source remembers the same of other runs as it did then.
        exactness: "exact", "exact up to numerics" (the oracle is not ``bitwise``, or drafts may make a pass wider than
            ``BITWISE_NODES``), or "lossy: ..." with the rule and its parameters. It repeats what rule, oracle and
            budget declare; for your own, ``check_lossless`` and ``check_oracle`` hold them to it.
        backend: of the oracle's passes, "native" or "eager" for instance.
        judge: who judged the drafts: the rule's name if its ``__call__`` did, "native: " before it if the compiled
            judge did that it declares; both, after a semicolon, if both did.
        drafter: who drafted: the source's name, "native: " before it if its model drafted in one call of compiled
            code; empty if nothing was drafted.
        kernels: what computed laws and draws, "native" or "reference".
        calibration: the measured figures that draft lengths depended on; None: there were none.
        reproducible: a request's output does not depend on its batch-mates, its slot or scheduling. False: sampled
            rows shared a budget, or the source says so; a request replayed alone may then draw other ids.
    """

    tokens: list[list[int]]
    texts: list[str] | None
    finish_reasons: list[FinishReason]
    stats: Stats
    records: Records
    logprobs: list[list[float]] | None
    seeds: list[Seed]
    exactness: str
    backend: str
    judge: str
    drafter: str
    kernels: str
    calibration: Calibration | None = None
    reproducible: bool = True

    def __repr__(self) -> str:
        stats = self.stats
        ratios = {"a step": stats.block_efficiency, "a second": stats.tokens_per_second}
        told = [f"{cell(value)} {unit}" for unit, value in ratios.items() if value is not None]
        told += [] if stats.acceptance_rate is None else [f"acceptance {cell(stats.acceptance_rate)}"]
        emitted = f"{count_of(stats.num_emitted, 'token')}{': ' if told else ''}{', '.join(told)}"
        return f"Result({count_of(len(self.tokens), 'request')}, {emitted}; {self.exactness}, {self.backend} passes)"

    def _repr_html_(self) -> str:
        """Return what a notebook shows: a row for every request, with the beginning of its text."""
        rows = []
        for number, (tokens, reason, stats) in enumerate(
            zip(self.tokens, self.finish_reasons, self.stats.requests, strict=True)
        ):
            row: dict[str, Any] = {"request": number, "tokens": len(tokens), "end": reason}
            row |= {"tau": stats.block_efficiency, "alpha": stats.acceptance_rate}
            text = None if self.texts is None else _beginning(self.texts[number])
            rows.append({**row, "text": text})
        return Table(repr(self), rows, legend=_LEGEND)._repr_html_() if rows else f"<p>{html.escape(repr(self))}</p>"


def result_of(
    state: State,
    oracle: Oracle,
    draft: DraftSource,
    offers: Offers,
    rule: VerificationRule,
    budget: NodeBudget | None,
    kernels: Kernels,
) -> Result:
    """Return the result of a run whose requests have all ended; the other arguments are its decoder's."""
    requests, tokenizer, infos = state.slots.requests, oracle.tokenizer, state.recorder.infos
    reasons = [reason for reason in state.finish_reasons if reason is not None]
    ended = zip(state.outputs, requests, reasons, strict=True)
    texts = None if tokenizer is None else [cut_text(tokenizer, o, r.stop_strings, why) for o, r, why in ended]
    stats = state.recorder.finish(
        device=None if state.meter is None else state.meter.finish(),
        total_seconds=time.perf_counter() - state.started,
        cache_bytes=state.cache_bytes,
        weight_bytes=oracle.weight_bytes,
        prefixes=state.seating.figures,
    )
    return Result(
        tokens=state.outputs,
        texts=texts,
        finish_reasons=reasons,
        stats=stats,
        records=Records(infos),
        logprobs=logprobs_of(infos, len(requests)) if state.return_logprobs else None,
        seeds=[request.seed for request in requests],
        exactness=exactness_claim(oracle, draft, rule, budget),
        reproducible=is_reproducible(offers, rule, requests),
        backend=oracle.backend,
        judge="; ".join(sorted(state.judges)),
        drafter="; ".join(sorted(state.drafters)),
        kernels=kernels.name,
        calibration=offers.calibration,
    )


def _beginning(text: str) -> str:
    """Return the first characters of a text, on one line."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _SHOWN else f"{flat[:_SHOWN]} ..."


@dataclass(frozen=True)
class StreamEvent:
    """New output of a stream, once per step.

    Attributes:
        tokens: ids that this step emitted.
        text: text that is now certain (held back: unfinished characters, and what may become a stop string).
        provenance: where each token came from: "draft", "recovered" (drawn after a rejection) or "bonus".
        finish_reason: set on the last event.
    """

    tokens: list[int]
    text: str
    provenance: list[Provenance]
    finish_reason: FinishReason | None = None


def logprobs_of(infos: Sequence[StepInfo], num_requests: int) -> list[list[float]]:
    """Return the log-probabilities of each request's output, as its steps reported them."""
    logprobs: list[list[float]] = [[] for _ in range(num_requests)]
    for info in infos:
        assert info.logprobs is not None
        for request, values, count in zip(info.requests, info.logprobs, info.num_emitted, strict=True):
            logprobs[request].extend(map(float, values[:count]))
    return logprobs


def provenance_of(info: StepInfo) -> list[Provenance]:
    """Return the origin of each token that the first row of a step emitted."""
    last: Provenance = "bonus" if info.stopped_at_leaf[0] else "recovered"
    drafted: list[Provenance] = ["draft"] * int(info.num_accepted[0])
    return [*drafted, last][: int(info.num_emitted[0])]
