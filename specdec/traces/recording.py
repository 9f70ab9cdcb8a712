"""Decode and record every node: in parts that are written as requests end, so that a killed run goes on."""

import copy
import hashlib
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from specdec.contracts import Oracle, StepInfo, WatchedSource, check_has_laws, rule_label
from specdec.engine import SpeculativeDecoder, State
from specdec.requests import Prompt, Request, Stop, Stops, check_rows, make_requests
from specdec.sampling import SamplingParams, Seed
from specdec.system import hold
from specdec.theory import check_count
from specdec.traces.nodes import KINDS, Array, NodeSession, StepNodes, node_columns
from specdec.traces.parts import Ended, NodeRecords
from specdec.traces.tables import dictionary_column

# Ids that tell an oracle from another.
_PROBE = 8


def record_nodes(
    decoder: SpeculativeDecoder,
    folder: str | Path,
    prompts: Sequence[Prompt],
    max_new_tokens: int = 128,
    sampling: SamplingParams | Sequence[SamplingParams] | None = None,
    seed: int | Sequence[Seed] = 0,
    stop: Stops = None,
    batch_size: int | None = None,
    *,
    logprobs: bool = False,
    label: str = "",
    requests_per_part: int = 8,
) -> NodeRecords:
    """Decode as ``decoder.generate`` does, and write a row for every node; or go on where such a call was killed.

    Args:
        decoder: of any source and rule. It is not changed.
        folder: of the records; it is held against other processes.
        prompts, max_new_tokens, sampling, seed, stop, batch_size: as in ``decoder.generate``.
        logprobs: add the column ``logprob``.
        label: what else tells this run from another, such as the name of a drafting model; a folder is for one run.
            The oracle is identified by its kind, its vocabulary and the likeliest ids after some ids.
        requests_per_part: a part is written when that many requests have ended, and at the end.

    Returns:
        The records of all requests, those of earlier calls among them.

    Raises:
        ValueError: as ``decoder.generate``; the folder holds another run, or a damaged file, or another process records
            there; ``requests_per_part`` is not a positive integer; the oracle is recorded text, which has no laws.

    Guarantee: outputs are those of ``decoder.generate``. Killed at any byte, the next call with the same arguments goes
        on: parts that are written stay, requests in none of them are decoded again, and every request has its rows
        once. If the source is ``reproducible``, these are the rows of a run in one go, seconds apart (p and
        log-probabilities to the last bit only if the oracle is ``bitwise``: the batches are others).
    Cost: the target's laws once more in sampled steps, O(B N^2 + B N D) on the host, O(B N V) for ``logprobs``; a
        file for each part; in memory the rows of the requests in flight and of those that wait for their part.
        Nothing at all for decoders that are not recorded.
    """
    check_has_laws(decoder.oracle, "record_nodes")
    check_count("requests_per_part", requests_per_part)
    check_rows(batch_size)
    requests = make_requests(decoder.oracle, prompts, max_new_tokens, sampling, seed, stop)
    with hold(Path(folder), "folder"):
        records = NodeRecords(folder, _identity(decoder, requests, logprobs, label))
        missing = [i for i in range(len(requests)) if i not in records.ended]
        if missing:
            watched = copy.copy(decoder)
            watched.draft = WatchedSource(decoder.draft, lambda session, *_: NodeSession(session, logprobs))
            own, writer = [requests[i] for i in missing], _Writer(records, np.asarray(missing), requests_per_part)
            _run(watched, own, max_new_tokens, batch_size, writer)
        return records


def _run(
    decoder: SpeculativeDecoder,
    requests: Sequence[Request],
    max_new_tokens: int,
    batch_size: int | None,
    writer: "_Writer",
) -> None:
    """Decode checked requests to the end, and write what is seen."""
    stops: list[list[Stop]] = [[*request.stop_strings, *request.stop_ids] for request in requests]
    state = decoder.start(
        [request.prompt for request in requests],
        max_new_tokens,
        [request.sampling for request in requests],
        [request.seed for request in requests],
        stops,
        batch_size,
    )
    while state.has_work:
        state, info = decoder.step(state)
        writer.add(cast(NodeSession, state.session).seen, info)
        writer.end(state, info)
    writer.finish(state)


def _identity(decoder: SpeculativeDecoder, requests: Sequence[Request], logprobs: bool, label: str) -> dict[str, Any]:
    """Return what tells one run from another."""
    asked = [
        (r.prompt.tolist(), r.max_length, _plain(r.sampling), r.stop_strings, r.stop_ids, r.seed) for r in requests
    ]
    offers, oracle = decoder.draft.offers, decoder.oracle
    return {
        "oracle": [oracle.backend, str(oracle.dtype), oracle.vocab_size, list(oracle.eos_ids), _likeliest(oracle)],
        "num_requests": len(requests),
        "requests": hashlib.sha256(repr(asked).encode()).hexdigest(),
        "draft": decoder.draft.name,
        "max_nodes": int(offers.max_nodes),
        "max_depth": int(offers.max_depth),
        "rule": rule_label(decoder.rule),
        "logprobs": logprobs,
        "label": label,
    }


def _plain(sampling: SamplingParams) -> SamplingParams:
    """Return parameters in the types of their defaults, biases by their ids: equal ones are written alike."""
    plain: dict[str, Any] = {
        one.name: type(one.default)(getattr(sampling, one.name))
        for one in fields(sampling)
        if isinstance(one.default, int | float)
    }
    biases = {int(token): float(bias) for token, bias in sorted(sampling.logit_bias.items())}
    return replace(sampling, **plain, logit_bias=biases)


def _likeliest(oracle: Oracle) -> list[list[int]]:
    """Return the likeliest ids after each of some ids, by which one model is told from another."""
    count = min(_PROBE, oracle.max_context)
    ids = (torch.arange(count, device=oracle.device) % oracle.vocab_size).unsqueeze(0)
    nodes, cache = torch.tensor([count], device=oracle.device), oracle.new_cache(1, count)
    logits = oracle.score(ids, None, nodes, cache, np.zeros(1, dtype=np.int64)).logits
    assert logits is not None, "checked before"
    found: list[list[int]] = logits[0].topk(min(4, oracle.vocab_size)).indices.tolist()
    return found


class _Writer:
    """Rows of requests that have no part yet, step by step."""

    def __init__(self, records: NodeRecords, requests: NDArray[np.int64], requests_per_part: int) -> None:
        self.records, self.requests, self.requests_per_part = records, requests, requests_per_part
        self.blocks: list[dict[str, Array]] = []
        self.steps = np.zeros(len(requests), dtype=np.int64)
        self.names: dict[str, int] = {}
        self.ended: dict[int, Ended] = {}

    def add(self, seen: StepNodes, info: StepInfo) -> None:
        """Take in a step."""
        codes = [self.names.setdefault(name, len(self.names)) for name in info.source_names]
        self.blocks.append(node_columns(seen, info, self.steps[info.requests], codes))
        self.steps[info.requests] += 1

    def end(self, state: State, info: StepInfo) -> None:
        """Take in which requests a step ended; write a part if there are enough."""
        for own in np.setdiff1d(info.requests, state.slots.occupants).tolist():
            self._note_end(own, state)
        if len(self.ended) >= self.requests_per_part:
            self._write()

    def finish(self, state: State) -> None:
        """Write what is left; requests without room for a token never took a step."""
        for own in range(len(self.requests)):
            if int(self.requests[own]) not in self.records.ended and own not in self.ended:
                self._note_end(own, state)
        if self.ended:
            self._write()

    def _note_end(self, own: int, state: State) -> None:
        reason = state.finish_reasons[own]
        assert reason is not None
        self.ended[own] = (state.outputs[own], reason)

    def _write(self) -> None:
        """Write the rows of the requests that have ended, and keep the others."""
        whole = {name: np.concatenate([b[name] for b in self.blocks]) for name in (self.blocks or [{}])[0]}
        if whole:
            is_ended = np.isin(whole["request"], list(self.ended))
            self.blocks = [{name: values[~is_ended] for name, values in whole.items()}]
            whole = {name: values[is_ended] for name, values in whole.items()}
            whole["request"] = self.requests[whole["request"]]
            whole["kind"] = dictionary_column(whole["kind"], list(KINDS))
            whole["source"] = dictionary_column(whole["source"], list(self.names))
        else:
            whole = {"request": self.requests[:0], "step": self.requests[:0]}
        self.records.append(whole, {int(self.requests[own]): one for own, one in self.ended.items()})
        self.ended = {}
