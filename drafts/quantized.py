"""Draft with the oracle's own weights in fewer bits, on its own cache: what stands has its full-precision keys."""

from functools import partial
from typing import cast

import numpy as np
from torch import Tensor

from specdec.contracts import (
    ChainingOracle,
    ChainWatch,
    Context,
    DeviceChainingOracle,
    Draft,
    Draws,
    IntArray,
    Needs,
    Oracle,
    Randomness,
    WholeDrafts,
    can_chain_on_device,
    can_draft_natively,
    check_model,
    check_vocabulary,
)
from specdec.drafting import ChainSampler, LentCache, MemorylessSession, SampledSource
from specdec.drafting.lengths import LengthPolicy, open_length
from specdec.laws import scatter_rows


class Quantized(SampledSource):
    """Draft a chain of tokens from a view of the oracle, the same network with weights of fewer bits.

    The view has no cache. It scores on the decoder's, where all that stands has the oracle's own keys and values: there
    is nothing to prefill, to catch up with or to roll back, and rounding errors do not pile up in what the view reads.
    It writes keys of its own for the pending token and for drafted ones; the verify pass, which scores these anyway,
    writes over them.

    Args:
        oracle: the decoder's own.
        view: an oracle that can score on its cache (equal ``cache_format``): loaded from the same checkpoint, for the
            same backend, dtype, device and context, such as ``oracles.load("code", weights="int8")``.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 3.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily.

    Raises:
        ValueError: no model, an argument out of range, an oracle that does not lend its cache, a view with another
            vocabulary or for caches of another format; in the decoder, another oracle than this one.

    Guarantee: the declared law of a node is the one its token was drawn from, so it is lossless under every lossless
        rule. The keys that stand have the bits of plain decoding if the oracle is ``bitwise``. Reproducible.
    Cost: for a chain of N tokens, N passes of the view over one node a row, all in one call if the view offers that
        (see ``ChainSampler``). Rows with a spent budget take part in none. No cache of its own; the view's weights are
        resident beside the oracle's.
    Source: Zhao et al. 2024, "QSpec" (arXiv 2410.11305): one model in two precisions, one cache, which the verify pass
        overwrites. Cf. Tiwari et al. 2025, "QuantSpec" (arXiv 2502.10424).
    Deviations: only weights are rounded, and the oracle's are as they are stored (QSpec drafts with 4-bit weights and
        activations, and verifies with the same weights and 16-bit activations, so that weights are resident once). The
        cache is not rounded (QuantSpec's is). A draft follows the request's sampling; batches are ragged.
    """

    name = "quantized"

    def __init__(
        self,
        oracle: Oracle,
        view: Oracle,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
    ) -> None:
        _check_view(oracle, view)
        super().__init__(num_draft_tokens, length, temperature, default=3)
        self.oracle, self.view = oracle, view

    @property
    def needs(self) -> Needs:
        """What it asks of the engine."""
        return Needs(cache_of=self.oracle)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from."""
        return self.view.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> "_Session":
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        return _Session(self.view, ChainSampler(open_length(self.length, num_rows), self.temperature, oracle.device))


def _check_view(oracle: Oracle, view: Oracle) -> None:
    """Raise ValueError if a view cannot score on the oracle's cache."""
    check_model(oracle, "oracle")
    check_model(view, "view")
    if oracle.cache_format is None:
        raise ValueError(
            f"oracle is a {oracle.backend!r} model, which lends its cache to nobody: give a transformer, such as "
            "oracles.load returns"
        )
    check_vocabulary("view", view.vocab_size, view.tokenizer, oracle)
    if view.cache_format != oracle.cache_format:
        raise ValueError(
            f"view, whose backend is {view.backend!r}, cannot score on the oracle's cache, whose backend is "
            f"{oracle.backend!r}: load both from one checkpoint, with the same backend, dtype, device and max_context; "
            "only weights may differ"
        )


class _Session(MemorylessSession):
    def __init__(self, view: Oracle, sampler: ChainSampler) -> None:
        super().__init__(sampler.length, sampler.device)
        self.view, self.sampler = view, sampler

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        score = partial(self.view.score, want="last")

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            logits = lent.grow(score, lent.latest(depth, tokens), live).logits
            assert logits is not None
            return scatter_rows(logits, live, len(rows))

        with LentCache(Quantized.name, context, rows, self.view) as lent:
            follow = partial(self._follow, lent) if can_draft_natively(self.view, context.warping) else None
            on_device = (
                partial(self._follow_on_device, lent) if can_chain_on_device(self.view, context.warping) else None
            )
            return self.sampler(rows, context, limits, randomness, next_logits, follow, on_device)

    def _follow(
        self,
        lent: LentCache,
        rows: IntArray,
        context: Context,
        limits: IntArray,
        watch: ChainWatch | None,
        draws: Draws | None,
    ) -> WholeDrafts:
        """Return what ``ChainSampler`` asks of ``follow``: only the pending token has to be read."""
        view, ends = cast(ChainingOracle, self.view), lent.start + (limits > 0)
        call = context.ids, ends, lent.cache, rows, limits
        return view.follow_ids(*call, watch, draws, context.warping.adjustments)

    def _follow_on_device(self, lent: LentCache, rows: IntArray, context: Context, limits: IntArray) -> Draft:
        """Return what ``ChainSampler`` asks of ``follow_on_device``; see ``_follow``."""
        view, one = cast(DeviceChainingOracle, self.view), np.ones_like(limits)
        return view.device_chains(context.pending[:, None], one, lent.cache, rows, limits)
