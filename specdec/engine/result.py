"""What a run hands back, and the events of a stream."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from specdec.calibration import Calibration
from specdec.contracts import BITWISE_NODES, DraftSource, Oracle, StepInfo, VerificationRule
from specdec.randomness import Seed
from specdec.requests import FinishReason
from specdec.stats import Records, Stats

Provenance = Literal["draft", "recovered", "bonus"]


def exactness_claim(oracle: Oracle, draft: DraftSource, rule: VerificationRule) -> str:
    """Return what may be claimed of a run: "exact", "exact up to numerics" or "lossy: rule".

    "exact" needs an oracle that is ``bitwise``, and drafts that leave every pass within the nodes for which it is.
    """
    if not rule.lossless:
        return f"lossy: {rule.name}"
    fits = 1 + draft.offers.max_nodes <= BITWISE_NODES
    return "exact" if oracle.bitwise and fits else "exact up to numerics"


@dataclass(frozen=True)
class Result:
    """The outputs of ``SpeculativeDecoder.generate``, one entry per request in the order of the prompts.

    Attributes:
        tokens: new ids; the EOS id, or the tokens that complete a stop, included.
        texts: their text, cut before a stop string and without EOS; None without a tokenizer.
        finish_reasons: "eos", "stop" or "length".
        stats: statistics in total and per request.
        records: one row per request and step.
        logprobs: log-probability of each new id under the warped target law (the unwarped one at temperature 0), if
            they were asked for.
        seeds: replaying a request alone with its seed gives its output again.
        exactness: "exact", "exact up to numerics" (the oracle is not ``bitwise``, or drafts may make a pass wider than
            ``BITWISE_NODES``), or "lossy: ..." with the rule.
        backend: of the oracle's passes, "native" or "eager" for instance.
        judge: who judged the drafts: the rule's name if its ``__call__`` did, "native: " before it if the compiled
            judge did that it declares; both if both did.
        drafter: who drafted: the source's name, "native: " before it if its model drafted in one call of compiled code.
        kernels: by which laws and draws were computed, "native" or "reference".
        calibration: the measured figures that draft lengths depended on; None: on none.
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
