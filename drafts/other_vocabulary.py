"""Draft with a model that has another tokenizer: by the pieces that both vocabularies have, or by text read again."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSession,
    IntArray,
    Needs,
    Oracle,
    Randomness,
    Scores,
    check_model,
    first_undefined,
    pad_rows,
)
from specdec.drafting import (
    ChainSampler,
    ChainSession,
    DraftModel,
    RunModel,
    SampledSource,
    SharedPieces,
    Spelling,
    list_chains,
)
from specdec.drafting.lengths import LengthPolicy, LengthSession, depth_limits, open_length
from specdec.laws import argmax
from specdec.transfers import HOST, on_device

Mapping = Literal["intersection", "text"]
# How many of the model's ids its cache has room for, for each id of the target.
_MOST_IDS = 4


class OtherVocabulary(SampledSource):
    """Draft tokens sampled from a model whose ids mean something else than the oracle's.

    Pieces of the two vocabularies are the same if their bytes are. The model's law is restricted to the common pieces,
    renormalised, and indexed by the oracle's ids, so that it is a law like any other; the oracle's other pieces are
    never drafted. The model reads what stands as its own ids, after those that its tokenizer puts before a text: a
    common piece as it is, any other one as text, read again from the last stable boundary
    (``specdec.drafting.Spelling``), to which its cache is rolled back too.

    Args:
        model: any object with the oracle contract, whose tokenizer spells text byte for byte.
        num_draft_tokens: tokens to draft; shorthand for ``length=Fixed(num_draft_tokens)``. Default 3.
        length: a length policy.
        temperature: of the drafts; None follows each request, 0 drafts greedily. The request's other warping applies
            to the restricted law.
        mapping: "intersection": as above. "text": the model goes on greedily in its own ids, and the oracle's tokenizer
            reads what it wrote; drafts are point masses, of any pieces of the oracle that its tokenizer can spell. It
            cannot spell the rest of a word, say, if it puts a space before all that it reads.
        tokenizers: for the model and for the oracle, if not the ones that they bring (``tokenizers.Tokenizer``).

    Raises:
        ValueError: no model, an argument out of range; mapping="text" with a temperature above 0, or with a length that
            reads confidences or entropies. In ``open``: a tokenizer is missing, or the model's changes the text that it
            reads (it puts a space before it, say); for an intersection, vocabularies without a common piece.

    Guarantee: the declared law of a node is the one its token was drawn from; greedy tokens and texts are point masses.
        Lossless under every lossless rule for chains. What the model reads follows from a row's ids alone, so it is
        reproducible. A row whose text ends within a character that the model cannot read yet drafts nothing until it
        can; so does one whose text takes more than four times as many of the model's ids, or more than the model's
        context.
    Cost: a pass of the model for each token, and O(V) to move its logits; to catch up, one pass if the model is at most
        two ids behind, else one more. Nothing is drafted in one native call. An emitted id that the model lacks costs,
        in Python, a look-up or some ten microseconds of its tokenizer. Ids that are taken back cost reading all others
        again. The vocabularies are read once per source, about 0.1 s for 50,000 ids. A text takes, for each token, as
        many passes as the row's text so far took ids of the model for each of the oracle's, and one more in all.
    Source: Timor et al. 2025 (arXiv 2502.05202), token-level intersection (TLI). Texts: the assisted generation of
        transformers with an ``assistant_tokenizer``.
    Deviations: pieces are compared by their bytes, not as they are written, so that tokenizers of different kinds agree
        on them. Ids that both have are never read again by themselves, which keeps the model's keys of what it drafted.
    """

    name = "other_vocabulary"
    needs = Needs()
    vocab_size = None

    def __init__(
        self,
        model: Oracle,
        num_draft_tokens: int | None = None,
        length: LengthPolicy | None = None,
        temperature: float | None = None,
        mapping: Mapping = "intersection",
        tokenizers: tuple[Any, Any] | None = None,
    ) -> None:
        check_model(model, "model")
        if mapping not in get_args(Mapping):
            raise ValueError(f"mapping must be one of {get_args(Mapping)}, not {mapping!r}")
        super().__init__(num_draft_tokens, length, temperature, default=3)
        self.model, self.mapping, self.tokenizers = model, mapping, tokenizers
        if mapping == "text":
            _check_greedy(temperature, self.length)
            self.temperature = 0  # what it drafts are point masses
        self._shared: tuple[Any, int, SharedPieces] | None = None  # with the oracle's tokenizer and vocabulary

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> DraftSession:
        """Return a session for a run; arguments as in ``DraftSource.open``."""
        shared, length = self.shared_pieces(oracle), open_length(self.length, num_rows)
        model = DraftModel(self.model, num_rows, _MOST_IDS * capacity, oracle.device)
        if self.mapping == "text":
            tokenizer = (self.tokenizers or (None, oracle.tokenizer))[1]
            return _TextSession(_Reader(model, shared, num_rows), length, tokenizer, oracle.vocab_size)
        sampler = ChainSampler(length, self.temperature, oracle.device)
        return ChainSession(_CommonPieces(model, shared, num_rows, oracle), sampler)

    def shared_pieces(self, oracle: Oracle) -> SharedPieces:
        """Return what the model's vocabulary has in common with an oracle's; the last one's is kept.

        Raises:
            ValueError: see the class.
        """
        own, target = self.tokenizers or (self.model.tokenizer, oracle.tokenizer)
        for whose, tokenizer in (("model", own), ("oracle", target)):
            if tokenizer is None:
                raise ValueError(
                    f"draft {self.name!r}: the {whose} has no tokenizer, so nobody knows what its ids stand for: give "
                    "tokenizers=(the model's, the oracle's), or a SmallTransformer if their ids are the same"
                )
        kept = self._shared  # which another thread may replace
        if kept is None or kept[0] is not target or kept[1] != oracle.vocab_size:
            shared = SharedPieces(own, self.model.vocab_size, target, oracle.vocab_size)
            _check_shared(self.name, shared, self.mapping)
            kept = self._shared = target, oracle.vocab_size, shared
        return kept[2]


def _check_shared(name: str, shared: SharedPieces, mapping: Mapping) -> None:
    """Raise ValueError if a model cannot draft by the pieces that it shares with a target, or cannot read its text."""
    if mapping == "intersection" and not shared.target_ids.size:
        raise ValueError(
            f"draft {name!r}: the vocabularies of model and oracle have no piece in common, so that every draft would "
            "be empty: give mapping='text', or another model (exactspec overlap tells what two share)"
        )
    if not shared.reads_text:
        raise ValueError(
            f"draft {name!r}: the model's tokenizer changes the text that it reads (it puts a space before it, or "
            "leaves something out), so that its ids do not spell the oracle's text: give a model with a byte-level one"
        )


def _restrict(logits: Tensor, model_ids: Tensor, target_ids: Tensor, vocab_size: int) -> Tensor:
    """Return logits ``[..., V]`` of the target's ids from the model's, -inf for pieces that the model lacks."""
    moved = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    moved[..., target_ids] = logits[..., model_ids]
    return moved


def _check_greedy(temperature: float | None, length: LengthPolicy) -> None:
    """Raise ValueError if something is asked of texts that only laws have."""
    if temperature:
        raise ValueError(f"temperature={temperature}: mapping='text' drafts greedily; leave it out, or give 0")
    if length.reads_confidence or length.reads_entropy:
        raise ValueError("length reads confidences or entropies, and mapping='text' has none: use Fixed or Heuristic")


class _Reader:
    """A model at work on rows of the target's ids, which it reads as its own.

    Args:
        model: with a cache.
        shared: what the vocabularies have in common.
        num_rows: of the run.

    Attributes:
        sizes: ``[num_rows]`` the model's ids of each row.
    """

    def __init__(self, model: DraftModel, shared: SharedPieces, num_rows: int) -> None:
        self.model, self.shared = model, shared
        self.spellings = [Spelling(shared) for _ in range(num_rows)]
        self.ids = np.zeros((num_rows, model.capacity), dtype=np.int64)  # as far as the model's context reaches
        self.sizes = np.zeros(num_rows, dtype=np.int64)

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        """Take in new requests."""
        texts = []
        for row, prompt in zip(rows.tolist(), prompts, strict=True):
            self.spellings[row] = Spelling(self.shared)
            _, text = self._read(row, 0, prompt.tolist())
            texts.append(np.array(text or [0], dtype=np.int64))  # a lone id makes no key
        self.model.begin(rows, texts)

    def end(self, rows: IntArray) -> None:
        """Forget finished requests."""
        self.model.end(rows)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        """Learn what stands; arguments as in ``DraftSession.sync``."""
        read = [
            self._read(row, size, [one for one in ids if one >= 0])
            for row, size, ids in zip(rows.tolist(), keep.tolist(), new_ids.tolist(), strict=True)
        ]
        stable, blocks = zip(*read, strict=True)
        self.model.sync(rows, np.array(stable, dtype=np.int64), pad_rows(blocks, -1))

    def _read(self, row: int, keep: int, new_ids: list[int]) -> tuple[int, list[int]]:
        """Let ids follow the first ``keep`` of a row; return how many of the model's ids stand, and the next."""
        spelling = self.spellings[row]
        spelling.cut(keep)
        for one in new_ids:
            spelling.append(one)
        stable = spelling.stable
        new = spelling.settle()
        room = self.ids[row, stable : stable + len(new)]
        room[:] = new[: len(room)]
        self.sizes[row] = len(spelling.own)
        return stable, new

    def own_context(self, rows: IntArray, context: Context) -> Context:
        """Return the context of rows as the model reads it; its warping is the target's still."""
        sizes = self.sizes[rows]
        return replace(context, ids=self.ids[rows, : int(sizes.max())], num_committed=sizes)

    def room(self, rows: IntArray, num_committed: IntArray) -> IntArray:
        """Return ``[B]`` how many ids of its own the model may draft; none after text that it cannot read."""
        is_read = np.array([self.spellings[row].is_whole for row in rows.tolist()]) & (self.sizes[rows] > 0)
        return np.where(is_read, self.model.room(rows, self.sizes[rows]), 0)


class _CommonPieces(_Reader, RunModel):
    """A reader whose laws are restricted to the common pieces, and indexed by the target's ids.

    Args:
        model, shared, num_rows: see ``_Reader``.
        oracle: has the target's ids.
    """

    def __init__(self, model: DraftModel, shared: SharedPieces, num_rows: int, oracle: Oracle) -> None:
        super().__init__(model, shared, num_rows)
        self.vocab_size = oracle.vocab_size
        ids = shared.model_ids, shared.target_ids, np.maximum(np.array(shared.to_model), 0)
        self.model_ids, self.target_ids, self.to_model = (on_device(one, oracle.device) for one in ids)

    def catch_up(self, rows: IntArray, context: Context, live: IntArray, depth: int = 1) -> Tensor:
        """Read the model's ids of what stands."""
        return self._restrict(self.model.catch_up(rows, context, live))

    def advance(self, rows: IntArray, tokens: Tensor, live: IntArray) -> Tensor:
        """Read the model's id of the common piece that was drafted last."""
        return self._restrict(self.model.advance(rows, self.to_model[tokens], live))

    def note(self, rows: IntArray, starts: IntArray, draft: Draft) -> None:
        """Remember the model's ids of chains; they follow its own ids of each row."""
        self.model.note(rows, self.sizes[rows], replace(draft, tokens=self.to_model[draft.tokens]))

    def _restrict(self, logits: Tensor) -> Tensor:
        return _restrict(logits, self.model_ids, self.target_ids, self.vocab_size)


class _TextSession(DraftSession):
    def __init__(self, reader: _Reader, length: LengthSession, tokenizer: Any, vocab_size: int) -> None:
        self.reader, self.length, self.tokenizer, self.vocab_size = reader, length, tokenizer, vocab_size

    def begin(self, rows: IntArray, prompts: Sequence[IntArray], scores: Scores | None) -> None:
        self.length.begin(rows)
        self.reader.begin(rows, prompts, scores)

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.reader.sync(rows, keep, new_ids, scores)

    def end(self, rows: IntArray) -> None:
        self.reader.end(rows)

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limits = depth_limits(self.length, rows, context.num_committed, budget)
        # As many ids of the model for each of the target as there were so far, and one more to complete the last word.
        wanted = -(-limits * self.reader.sizes[rows] // context.num_committed) + 1
        counts = np.where(limits > 0, np.minimum(wanted, self.reader.room(rows, context.num_committed)), 0)
        written, undefined = self._write(rows, context, counts)
        texts = [
            self._tokens(ids[:count], limit)
            for ids, count, limit in zip(written.tolist(), counts.tolist(), limits.tolist(), strict=True)
        ]
        draft = list_chains(texts)
        self.length.note_counts(rows, draft.num_nodes.numpy())
        return replace(draft, undefined=undefined)

    def _write(self, rows: IntArray, context: Context, counts: IntArray) -> tuple[Tensor, Tensor | None]:
        """Return ``counts`` of the model's likeliest ids for each row, ``[B, N]``, and ``Draft.undefined``."""
        model, own = self.reader.model, self.reader.own_context(rows, context)
        written = torch.zeros(len(rows), int(counts.max(initial=0)), dtype=torch.int64, device=model.device)
        peaks: list[Tensor] = []
        while (live := np.flatnonzero(counts > len(peaks))).size:
            depth = len(peaks)
            if depth == 0:
                logits = model.catch_up(rows, own, live)
            else:
                logits = model.advance(rows, written[:, depth - 1 : depth], live)
            ids, peak = argmax(logits)
            written[:, depth : depth + 1] = ids
            peaks.append(peak)
        model.note(rows, own.num_committed, Draft(written, on_device(counts, model.device)))
        return written, on_device(first_undefined(peaks), HOST) if peaks else None

    def _tokens(self, ids: Sequence[int], limit: int) -> list[int]:
        """Return up to ``limit`` ids of the target that spell what the model wrote, as far as its characters are whole.

        Some tokenizers have ids that their model lacks: the text ends there.
        """
        written = self.reader.shared.text_of(ids)
        try:
            text = written.decode()
        except UnicodeDecodeError as error:
            text = written[: error.start].decode()
        return self._read(text)[:limit]

    def _read(self, text: str) -> list[int]:
        """Return ids of the target that spell a text that continues another one, or as much of it as they can."""
        content = text.encode()
        size, ids = self._spell(text, content)
        if size < len(content) and text.startswith(" "):
            # Some tokenizers put a space before all that they read: it serves as the one that is there.
            _, ids = max((size, ids), self._spell(text[1:], content), key=lambda found: found[0])
        return ids

    def _spell(self, text: str, content: bytes) -> tuple[int, list[int]]:
        """Return how many bytes of ``content`` the target's first ids of a text spell, and these ids.

        They end at the first id that does not spell what follows.
        """
        found, size = list[int](), 0
        ids = self.tokenizer.encode(text, add_special_tokens=False).ids
        for one in takewhile(lambda one: one < self.vocab_size, ids):
            piece = self.reader.shared.content[one]
            if not content.startswith(piece, size):
                break
            found.append(one)
            size += len(piece)
        return size, found
