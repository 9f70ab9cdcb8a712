"""Draft with an n-gram model: the continuations it expects, as a chain or as a tree."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor

from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSession,
    FloatArray,
    IntArray,
    Needs,
    Oracle,
    Randomness,
    check_vocabulary,
    first_undefined,
)
from specdec.drafting import (
    ChainSampler,
    Frontier,
    MemorylessSession,
    NGramModel,
    SampledSource,
    Sequences,
    TreeSampler,
    check_contents,
    check_header,
    point_chains,
)
from specdec.drafting.lengths import LengthPolicy, LengthSession, cut_limits, open_length
from specdec.drafting.shapes import TreeShape
from specdec.system import write_whole
from specdec.theory import check_flag
from specdec.transfers import HOST, on_host


class NGram(SampledSource):
    """Draft the continuations that an n-gram model expects, by default the likeliest ones.

    Args:
        model: what ``NGramModel.train`` returned (``NGram.train`` does both, ``NGram.load`` reads a saved one).
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 5.
        sampled: draw from the model's laws, warped as the request asks (penalties along the drafted path included),
            and declare them. Otherwise every token is the likeliest one, a point mass.
        temperature: of sampled drafts; None follows each request, 0 drafts greedily after the request's warping.
        length: a length policy.
        tree: the shape of the drafts, in place of a length (see ``SmallTransformer``).

    Raises:
        ValueError: no model, an argument out of range, a tree beside a length, a tree that is re-ranked and sampled; in
            ``open``, another vocabulary than the oracle's.

    Guarantee: declared laws are those drawn from; reproducible; a row's draft depends on its own ids only.
    Cost: if greedy, O(B order log S) to find the states of S contexts, and two reads per token; nothing V-wide unless
        ``length`` reads entropies. If sampled, O(B V) per token, and the host reads back the draws at every token. A
        tree takes O(V) per node that has children, and the costs of ``TreeSampler``.
    """

    name = "ngram"
    needs = Needs()

    def __init__(
        self,
        model: NGramModel,
        num_draft_tokens: int | None = None,
        sampled: bool = False,
        temperature: float | None = None,
        length: LengthPolicy | None = None,
        tree: TreeShape | None = None,
    ) -> None:
        if not isinstance(model, NGramModel):
            raise ValueError(f"model={model!r} is no n-gram model: give NGramModel.train(...), or call NGram.load")
        check_flag("sampled", sampled)
        if temperature is not None and not sampled:
            raise ValueError(f"temperature={temperature}: it needs sampled=True")
        super().__init__(num_draft_tokens, length, temperature if sampled else 0, tree, default=5)
        self.model, self.sampled = model, sampled

    @classmethod
    def train(
        cls,
        sequences: Sequences,
        vocab_size: int,
        order: int = 4,
        tokenizer: Any | None = None,
        discount: float | None = None,
        progress: bool = True,
        **settings: Any,
    ) -> Self:
        """Return a source on a freshly trained model: the arguments of ``NGramModel.train``, then the source's own."""
        return cls(NGramModel.train(sequences, vocab_size, order, tokenizer, discount, progress), **settings)

    def save(self, path: str | Path) -> None:
        """Write the model (not the source's settings) to a safetensors file, as ``write_whole`` does."""
        parts = vars(self.model)
        metadata = {name: str(parts[name]) for name in ("order", "vocab_size")}
        arrays = {name: np.ascontiguousarray(part) for name, part in parts.items() if name not in metadata}
        write_whole(Path(path), save(arrays, metadata))

    @classmethod
    def load(cls, path: str | Path, **settings: Any) -> Self:
        """Return a source on a model that ``save`` wrote, with the constructor's settings.

        Raises:
            ValueError: the file is absent, is no such model, or is broken; a setting out of range.
        """
        try:
            with safe_open(path, framework="np") as file:
                views = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
                header = {name: (view.get_dtype(), view.get_shape()) for name, view in views.items()}
                order, vocab_size = check_header(file.metadata() or {}, header)
                arrays: dict[str, Any] = {name: file.get_tensor(name) for name in header}
            model = NGramModel(order, vocab_size, **arrays)
            check_contents(model)
        except (SafetensorError, OSError, ValueError) as error:
            raise ValueError(f"{path} is no n-gram model: {error}; give a file that NGram.save wrote") from error
        return cls(model, **settings)

    @property
    def vocab_size(self) -> int:
        """The vocabulary drafted from."""
        return self.model.vocab_size

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        check_vocabulary(f"draft {self.name!r}", self.vocab_size, None, oracle)
        dtype = torch.promote_types(oracle.dtype, torch.float32)
        if self.tree is not None:
            return _TreeSession(self.model, TreeSampler(self.tree, self.temperature, HOST), dtype)
        length = open_length(self.length, num_rows)
        if not self.sampled:
            return _GreedySession(self.model, length)
        sampler = ChainSampler(length, self.temperature, HOST)
        return _SampledSession(self.model, sampler, dtype)


def _recent(context: Context, count: int) -> IntArray:
    """Return ``[B, count]`` the latest ids of each row, newest first, -1 if there are fewer."""
    columns = context.num_committed[:, None] - 1 - np.arange(count)
    return np.where(columns >= 0, np.take_along_axis(context.ids, np.maximum(columns, 0), axis=1), -1)


def _entropies(laws: FloatArray) -> FloatArray:
    """Return ``[B]`` the entropies of laws ``[B, V]`` in nats."""
    return on_host(torch.special.entr(torch.from_numpy(laws)).sum(-1))


class _GreedySession(MemorylessSession):
    def __init__(self, model: NGramModel, length: LengthSession) -> None:
        super().__init__(length)
        self.model = model

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        model, policy = self.model, self.length.policy
        states = model.states(_recent(context, model.order - 1))
        tokens = np.empty((len(rows), int(limits.max())), dtype=np.int64)
        confidence, peaks = np.empty(tokens.shape), np.zeros(tokens.shape)
        for i in range(tokens.shape[1]):
            tokens[:, i], live = model.best[states], limits > i
            peaks[live, i] = model.best_probs[states[live]]
            if policy.reads_entropy:
                entropies = _entropies(model.laws(states))
                peaks[live, i] += entropies[live]  # finite where both are
                limits = cut_limits(self.length, limits, i, self.length.draws(rows, entropies))
            if policy.reads_confidence:
                confidence[:, i] = model.best_probs[states]
                limits = cut_limits(self.length, limits, i + 1, self.length.continues(rows, confidence[:, : i + 1]))
            if limits.max() <= i:
                break
            states = model.successor[states]
        self.length.note_counts(rows, limits)
        draft = point_chains(tokens, limits, confidence if policy.reads_confidence else None)
        if np.isfinite(peaks).all():
            return draft
        return replace(draft, undefined=first_undefined([torch.from_numpy(peaks)]))


class _SampledSession(MemorylessSession):
    def __init__(self, model: NGramModel, sampler: ChainSampler, dtype: torch.dtype) -> None:
        super().__init__(sampler.length, sampler.device)
        self.model, self.sampler, self.dtype = model, sampler, dtype

    def draft(self, rows: IntArray, context: Context, limits: IntArray, randomness: Randomness) -> Draft:
        width = self.model.order - 1
        recent = _recent(context, width)

        def next_logits(depth: int, tokens: Tensor, live: IntArray) -> Tensor:
            drafted = on_host(tokens[:, :depth].flip(1))
            laws = self.model.laws(self.model.states(np.concatenate([drafted, recent], axis=1)[:, :width]))
            return torch.from_numpy(np.log(laws)).to(self.dtype).unsqueeze(1)

        return self.sampler(rows, context, limits, randomness, next_logits)


class _TreeSession(DraftSession):
    def __init__(self, model: NGramModel, sampler: TreeSampler, dtype: torch.dtype) -> None:
        self.model, self.sampler, self.dtype = model, sampler, dtype

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        width = self.model.order - 1
        recent = _recent(context, width)

        def next_logits(frontier: Frontier) -> Tensor:
            above = np.broadcast_to(recent[:, None], (len(recent), frontier.size, width))
            newest_first = np.concatenate([_path_ids(frontier), above], axis=2)[:, :, :width]
            laws = self.model.laws(self.model.states(newest_first.reshape(len(recent) * frontier.size, width)))
            logits = torch.from_numpy(np.log(laws)).view(len(recent), frontier.size, -1)
            return logits.to(self.dtype)

        return self.sampler(context, budget, budget.max_depth, randomness, next_logits)


def _path_ids(frontier: Frontier) -> IntArray:
    """Return ``[B, size, depth]`` the drafted ids on the path to each node, the node's own first."""
    tokens, batch = on_host(frontier.tokens), len(frontier.parents)
    at = np.broadcast_to(np.arange(frontier.first, tokens.shape[1]), (batch, tokens.shape[1] - frontier.first))
    found: list[IntArray] = []
    while (at >= 0).any():
        found.append(np.where(at >= 0, np.take_along_axis(tokens, np.maximum(at, 0), 1), -1))
        at = np.where(at >= 0, np.take_along_axis(frontier.parents, np.maximum(at, 0), 1), -1)
    return np.stack(found, axis=2) if found else np.empty((batch, 1, 0), dtype=np.int64)
