"""The law that a decoder's output ought to have: plain recursion over whole prefixes, with plain warping of its own.

Except for how a prompt is read, and how unusable stops are refused, nothing here is shared with the engine or with
``specdec.sampling``: one id at a time, Python floats, no cache reuse.
"""

import math
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import index

import numpy as np
import torch

from specdec.contracts import ChatEncoder, Oracle, capability_of, check_has_laws
from specdec.exactness.sequence_laws import Law
from specdec.grammars import Grammar, make_grammars
from specdec.requests import Prompt, Stop, encode_prompt, stops_of
from specdec.sampling import SamplingParams

_MOST_LOGITS = 10**8  # of one pass over all prefixes of a length


def _penalise(logits: list[float], prompt: Sequence[int], new: Sequence[int], sampling: SamplingParams) -> list[float]:
    """Return logits after bias, repetition penalty (prompt and output), presence and frequency (output)."""
    counts, seen, out = Counter(new), {*prompt, *new}, list(logits)
    for token, bias in sampling.logit_bias.items():
        out[token] += bias
    for token in seen:
        factor = sampling.repetition_penalty
        out[token] = out[token] / factor if out[token] > 0 else out[token] * factor
    for token, count in counts.items():
        out[token] -= sampling.presence_penalty + sampling.frequency_penalty * count
    return out


def _normalise(weights: list[float]) -> list[float]:
    """Return weights divided by their sum."""
    total = math.fsum(weights)
    return [weight / total for weight in weights]


def _truncate(probs: list[float], sampling: SamplingParams) -> list[float]:
    """Return probabilities after top_k, top_p and min_p, in this order, normalised after each."""
    if sampling.top_k and sampling.top_k < len(probs):
        least = sorted(probs, reverse=True)[sampling.top_k - 1]
        probs = _normalise([p if p >= least else 0.0 for p in probs])
    if sampling.top_p < 1.0:
        kept, mass = set(), 0.0
        for token in sorted(range(len(probs)), key=lambda i: (-probs[i], i)):
            if mass >= sampling.top_p:
                break
            kept.add(token)
            mass += probs[token]
        probs = _normalise([p if i in kept else 0.0 for i, p in enumerate(probs)])
    if sampling.min_p:
        floor = sampling.min_p * max(probs)
        probs = _normalise([p if p >= floor else 0.0 for p in probs])
    return probs


def plain_law(
    logits: Sequence[float],
    prompt: Sequence[int],
    new: Sequence[int],
    sampling: SamplingParams,
    eos_ids: Sequence[int],
    allowed: Sequence[bool] | None = None,
) -> list[float]:
    """Return the warped law of the id after ``prompt + new``, one Python float per id.

    Args:
        logits: V numbers; -inf bans an id.
        prompt: ids of the prompt.
        new: ids generated so far.
        sampling: a ``SamplingParams``.
        eos_ids: ids that may not come before ``min_new_tokens``.
        allowed: which ids a grammar allows; None: all.
    """
    masked = [x if ok else -math.inf for x, ok in zip(logits, allowed or [True] * len(logits), strict=True)]
    values = _penalise(masked, prompt, new, sampling)
    if len(new) < sampling.min_new_tokens:
        for token in eos_ids:
            values[token] = -math.inf
    top = max(values)
    if sampling.temperature == 0:
        return [1.0 if i == values.index(top) else 0.0 for i in range(len(values))]
    probs = _normalise([math.exp((value - top) / sampling.temperature) for value in values])
    return _truncate(probs, sampling)


def plain_logits(oracle: Oracle, prefixes: Sequence[Sequence[int]]) -> list[list[float]]:
    """Return the logits after each prefix (all of one length), each computed from scratch in one pass.

    Raises:
        ValueError: the oracle is recorded text.

    Cost: one pass of the whole prefixes on a fresh cache.
    """
    check_has_laws(oracle, "the law of an output")
    length = len(prefixes[0])
    tokens = torch.tensor([list(prefix) for prefix in prefixes], dtype=torch.int64, device=oracle.device)
    cache = oracle.new_cache(len(prefixes), length)
    num_nodes = torch.full((len(prefixes),), length, dtype=torch.int64, device=oracle.device)
    scores = oracle.score(tokens, None, num_nodes, cache, np.arange(len(prefixes)), want="last")
    assert scores.logits is not None
    rows: list[list[float]] = scores.logits[:, -1].double().tolist()
    return rows


def ends_of(oracle: Oracle, prompt: Prompt, sampling: SamplingParams, stop: Stop | Sequence[Stop] | None) -> list[Stop]:
    """Return what ends an output beside EOS and a grammar: ``stop``, and of a conversation the ends of its answer.

    A stop that is the text of a special token, which no decoded text holds, is its id.

    Raises:
        ValueError: a stop cannot be used, with the fix.
    """
    stops_of(oracle, [prompt], stop, [sampling])  # refuses; what it read is the engine's
    ends: list[Stop] = [] if stop is None else [stop] if isinstance(stop, str) else [*stop]
    added = {} if oracle.tokenizer is None else oracle.tokenizer.get_added_tokens_decoder()
    special = {token.content: [number] for number, token in added.items() if token.special}
    ends = [special.get(end, end) if isinstance(end, str) else [index(token) for token in end] for end in ends]
    template: ChatEncoder | None = capability_of(oracle, "chat_template")
    if template is not None and isinstance(prompt[0], Mapping) and not sampling.ignore_eos:
        ends += [*template.stop_strings, *([token] for token in template.end_ids)]
    return ends


@dataclass(frozen=True)
class PlainRequest:
    """A request as plain recursion decodes it.

    Args:
        oracle: any.
        prompt: ids.
        sampling: of the request.
        ends: from ``ends_of``.
    """

    oracle: Oracle
    prompt: Sequence[int]
    sampling: SamplingParams
    ends: Sequence[Stop]

    @staticmethod
    def of(
        oracle: Oracle, prompt: Prompt, sampling: SamplingParams, stop: Stop | Sequence[Stop] | None
    ) -> "PlainRequest":
        """Return what ``generate`` is asked for. Raises ValueError if a stop cannot be used."""
        ids = encode_prompt(oracle, prompt, "prompt").tolist()
        return PlainRequest(oracle, ids, sampling, ends_of(oracle, prompt, sampling, stop))

    def longest(self, max_new_tokens: int) -> int:
        """Return how long an output may be: so many ids, or as many as the context has room for."""
        return min(max_new_tokens, self.oracle.max_context - len(self.prompt))

    def laws(self, outputs: Collection[Sequence[int]]) -> Iterator[list[float]]:
        """Yield the law of the id after each of some outputs, all of one length.

        Raises:
            ValueError: the oracle is recorded text.

        Cost: one pass of the whole texts; a grammar is read from its start for each.
        """
        logits = plain_logits(self.oracle, [[*self.prompt, *new] for new in outputs])
        for new, row in zip(outputs, logits, strict=True):
            grammar = self._grammar()
            mask = None if grammar is None else grammar.allowed_ids(np.array(new, dtype=np.int64))
            allowed = None if mask is None else mask.tolist()
            yield plain_law(row, self.prompt, new, self.sampling, self.oracle.eos_ids, allowed)

    def has_ended(self, new: Sequence[int]) -> bool:
        """Tell whether the last id of an output is an EOS, completes one of ``ends`` or finishes the grammar."""
        if not self.sampling.ignore_eos and new[-1] in self.oracle.eos_ids:
            return True
        grammar = self._grammar()
        if grammar is not None and grammar.first_end(np.array(new), 1) == 0:
            return True
        for item in self.ends:
            if isinstance(item, str):
                if self.oracle.tokenizer is not None and item in self.oracle.tokenizer.decode(list(new)):
                    return True
            elif tuple(new[-len(item) :]) == tuple(item):
                return True
        return False

    def _grammar(self) -> Grammar | None:
        """Return the grammar of the request, which has read nothing yet; None: it has none."""
        return make_grammars(self.oracle, [self.sampling.constraint], [0])[0]


def oracle_law(
    oracle: Oracle,
    prompt: Prompt,
    max_new_tokens: int,
    sampling: SamplingParams | None = None,
    *,
    stop: Stop | Sequence[Stop] | None = None,
) -> Law:
    """Return the law of the ids that plain decoding emits: ``{ids: probability}``.

    Args:
        oracle: any oracle.
        prompt: as for ``generate``.
        max_new_tokens: length at which a sequence ends, if no EOS or stop ends it before.
        sampling: a ``SamplingParams``; None is greedy.
        stop: of the request, strings or id lists; an answer in a conversation ends where its turn does too.

    Raises:
        ValueError: more prefixes than can be enumerated, the oracle is recorded text, or a stop cannot be used.

    Guarantee: written apart from the engine, its warping and its reading of stops, so that agreement means something.
        The prompt is read as ``generate`` reads it.
    Cost: one full pass over every prefix of positive probability: O(V ** max_new_tokens) rows. A grammar is read
        from its start for each.
    """
    request = PlainRequest.of(oracle, prompt, SamplingParams() if sampling is None else sampling, stop)
    open_: Law = {(): 1.0}
    done: Law = {}
    for _ in range(request.longest(max_new_tokens)):
        if not open_:
            break
        if len(open_) * oracle.vocab_size > _MOST_LOGITS:
            raise ValueError(
                f"{len(open_):,} beginnings over {oracle.vocab_size:,} ids are too many to enumerate: use an oracle of "
                "3 or 4 ids (oracles.TabularLM), fewer new tokens, or check_lossless with effect=0.1, say: it samples"
            )
        grown: Law = {}
        for (new, mass), law in zip(open_.items(), request.laws(open_), strict=True):
            for token, p in enumerate(law):
                if p > 0:
                    longer = (*new, token)
                    (done if request.has_ended(longer) else grown)[longer] = mass * p
        open_ = grown
    return {**done, **open_}
