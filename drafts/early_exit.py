"""Draft with the first layers of the oracle itself, on its own cache: verification goes on from that layer."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    Context,
    Draft,
    IntArray,
    LayeredOracle,
    LayerHead,
    Needs,
    Oracle,
    Randomness,
    Resume,
    check_model,
)
from specdec.drafting import ChainSampler, LentCache, MemorylessSession, SampledSource
from specdec.drafting.lengths import LengthPolicy, open_length
from specdec.laws import scatter_rows, take
from specdec.system import warn_once
from specdec.theory import check_count

Head = Callable[[Tensor], Tensor]
_UNTRAINED = (
    "specdec: early_exit has no trained head: the oracle's own last one reads the stream after layer {} of {}. Expect "
    "most drafts to be rejected; exactspec train_head --kind early_exit trains one, oracles.load_head loads it"
)


class EarlyExit(SampledSource):
    """Draft a chain of tokens from the residual stream after the oracle's first layers.

    A drafted token's keys in those layers are the very ones that its verification needs. So the verify pass starts
    above them, from the streams that drafting left, and every node passes every layer once.

    Args:
        oracle: the decoder's own, one whose pass can be cut (``specdec.contracts.LayeredOracle``).
        num_layers: k, the layers to draft with, from 1 to one less than the oracle has.
        head: turns streams after layer k ``[R, D]`` into logits ``[R, V]``, such as ``oracles.load_head`` returns;
            None: the oracle's own last norm and head, untrained for this place (a warning says so once). A
            ``specdec.contracts.LayerHead`` must be made for layer k.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 3.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.

    Raises:
        ValueError: no model, an argument out of range, an oracle whose pass cannot be cut, a head that is not a
            function or is for another layer; in the decoder, another oracle than this one.

    Guarantee: the declared law of a node is the one its token was drawn from, so it is lossless under every lossless
        rule. The verify pass has the bits of a whole one if the oracle is ``bitwise``. Reproducible.
    Cost: for a chain of N tokens N + 1 passes of k layers, one node a row, and N calls of the head; the verify pass
        leaves out those k layers for its N + 1 nodes. So no layer's work is done twice. What drafting costs is the
        head, and running k layers node by node. In a batch whose policy ends some rows before a draw (``Entropy``),
        those rows take part in one more pass, which nothing uses. No cache of its own. The streams take B * (N + 1) * D
        numbers.
    Source: Zhang et al. 2023, "Draft & Verify" (arXiv 2309.08168); Elhoushi et al. 2024, "LayerSkip"
        (arXiv 2404.16710), section 4.3, whose cache of exit states and keys this is; adapters after frozen layers:
        Liu et al. 2024, "Kangaroo" (arXiv 2404.18911).
    Deviations: the oracle is left as it is (LayerSkip trains it with layer dropout and an exit loss); the first layers
        are taken (Draft & Verify searches for layers to skip); a draft follows the request's sampling (LayerSkip's is
        greedy); batches are ragged.
    """

    name = "early_exit"

    def __init__(
        self,
        oracle: LayeredOracle,
        num_layers: int,
        head: Head | None = None,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
    ) -> None:
        check_model(oracle, "oracle")
        if not oracle.num_layers:
            raise ValueError("early_exit needs an oracle whose pass can be cut between layers, such as a Transformer")
        last = oracle.num_layers - 1
        if not last:
            raise ValueError("early_exit leaves the last layers out, and the oracle has one: use another source")
        if num_layers not in range(1, last + 1):
            raise ValueError(f"num_layers is {num_layers}; the oracle has {last + 1} layers, so draft with 1..{last}")
        check_count("num_layers", num_layers)
        if head is not None and not callable(head):
            raise ValueError(f"head must turn streams into logits, not {head!r}: give what oracles.load_head returns")
        if isinstance(head, LayerHead) and head.num_layers != num_layers:
            raise ValueError(f"head was made for layer {head.num_layers}, not for num_layers={num_layers}")
        super().__init__(num_draft_tokens, length, temperature, default=3)
        self.oracle, self.num_layers = oracle, num_layers
        if head is None:
            warn_once(_UNTRAINED.format(num_layers, last + 1))
        self.head: Head = oracle.read_out if head is None else head

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(cache_of=self.oracle)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from."""
        return self.oracle.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        sampler = ChainSampler(open_length(self.length, num_rows), self.temperature, oracle.device)
        return _Session(self, sampler)


class _Session(MemorylessSession):
    def __init__(self, source: EarlyExit, sampler: ChainSampler) -> None:
        super().__init__(sampler.length, sampler.device)
        self.source, self.sampler = source, sampler

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        source = self.source
        every = np.arange(len(rows))
        with LentCache(source.name, context, rows, source.oracle) as lent:
            lower = _LowerLayers(source.oracle, source.num_layers, lent)

            def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
                # Rows that draft nothing need their pending token's stream too: the verify pass is one pass for all
                # rows.
                lower.feed(lent.latest(depth, tokens), lower.drew if depth else every)
                lower.drew = live
                return scatter_rows(self._logits(lower.streams[-1], live), live, len(rows))

            draft = self.sampler(rows, context, limits, randomness, next_logits)
            # If a policy looked at the law after the last token and drew none, that token was fed already.
            if len(lower.streams) == draft.width:
                lower.feed(draft.tokens[:, -1:], lower.drew)
        layers = (source.num_layers, source.oracle.num_layers)
        return replace(draft, resume=Resume(source.oracle, layers, torch.cat(lower.streams, dim=1)))

    @torch.no_grad()
    def _logits(self, stream: Tensor, live: IntArray) -> Tensor:
        """Return ``[R, 1, V]`` logits of some rows of a stream ``[B, 1, D]``."""
        return self.source.head(take(stream, live).squeeze(1)).unsqueeze(1)


class _LowerLayers:
    """One step's passes through the lower layers, on the target's cache: its rows grow by a node in each."""

    def __init__(self, oracle: LayeredOracle, num_layers: int, lent: LentCache) -> None:
        self.num_layers, self.lent = num_layers, lent
        self.score = partial(oracle.score, want="none", hidden=(num_layers - 1,), layers=(0, num_layers))
        self.streams: list[Tensor] = []  # per node [B, 1, D], zero if a row has none
        self.drew: IntArray = np.arange(0)  # indices of the rows that drew the latest token

    def feed(self, tokens: Tensor, live: IntArray) -> None:
        """Run the lower layers over a token ``[B, 1]`` of the rows ``live``, and keep its stream and keys."""
        scores = self.lent.grow(self.score, tokens, live)
        self.streams.append(scatter_rows(scores.hidden[0], live, len(tokens)))
