"""Recorded continuations as an oracle: how much of a text a draft source would have predicted."""

from collections.abc import Sequence
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor

from oracles.checkpoints.loading import load_tokenizer, num_ids
from oracles.recorded.reading import Text, ids_of, read_records
from oracles.recorded.record_tree import ROOT, RecordTree
from oracles.transformer.pass_parts import check_plain_call
from specdec.cache import KVCache
from specdec.contracts import IntArray, OracleDefaults, Scores, Want


class RecordedText(OracleDefaults):
    """Repeat what a model once wrote: this measures a source's acceptance on its outputs, without the model.

    A prompt selects its record, and greedy decoding reproduces the record id by id, whatever the source. It fulfils
    ``specdec.contracts.RecordedOracle``: whatever reads logits is refused.

    A row ends where its record ends. If the record's last id is ``eos_id``, its finish reason is "eos"; if not, it is
    "length", because it is unknown what would have followed. (A shorter ``max_new_tokens`` and stops end it as usual.)
    Drafts are cut at the record's end as at any length.

    Args:
        prompts: strings or ids, one for each record.
        outputs: strings or ids, what was written after each prompt.
        tokenizer: of the model that wrote, or its location: a ``tokenizer.json``, its directory, or the name of an
            embedded checkpoint; strings need it. Recorded ids are better than text, which the model may have written in
            other tokens than tokenizing it gives.
        vocab_size: V; None: the tokenizer's, or the larger of ``eos_id`` and all recorded ids, + 1.
        eos_id: the id that ends a record; None: none does.

    Attributes:
        prompts, outputs: the ids ``[L]`` of each record.

    Raises:
        ValueError: names the row (counted from 0) and the fix: an empty prompt or output, text without a tokenizer, an
            id (or ``eos_id``) that is not below V, ids after ``eos_id``, equal prompts, or a prompt that is another one
            with a part of its output, after which the two differ.

    Guarantee: an id is accepted if and only if it is the record's. If the record was written greedily, acceptance is
        that of the model. If it was drawn from laws p: a draft that is chosen (not drawn) is accepted with its
        probability p, in expectation over records, which again is the model's. A draft *drawn* from a law q is accepted
        with sum_x p(x) q(x), which is at most what the standard rule reaches with p at hand, sum_x min(p(x), q(x)):
        measured acceptance, and tau, are a lower bound then.
    Cost: 32 bytes for each id of all records; a step reads B * M entries on the host, whatever V and the context are.
        The times of its passes are meaningless: no model runs.
    """

    dtype = torch.float32
    device = torch.device("cpu")
    bitwise = True
    backend = "recorded"
    is_recorded = True

    def __init__(
        self,
        prompts: Sequence[Text],
        outputs: Sequence[Text],
        tokenizer: Tokenizer | str | Path | None = None,
        vocab_size: int | None = None,
        eos_id: int | None = None,
    ) -> None:
        if len(prompts) != len(outputs) or not len(prompts):
            raise ValueError(
                f"{len(prompts)} prompts and {len(outputs)} outputs: give one output per prompt, one or more"
            )
        tokenizer = load_tokenizer(tokenizer) if isinstance(tokenizer, str | Path) else tokenizer
        self.tokenizer: Any | None = tokenizer
        pairs = [ids_of(*pair, tokenizer, row) for row, pair in enumerate(zip(prompts, outputs, strict=True))]
        if vocab_size is None:
            recorded = max(int(ids.max()) for pair in pairs for ids in pair)
            most = max(recorded, eos_id if isinstance(eos_id, Integral) else 0)
            vocab_size = most + 1 if tokenizer is None else num_ids(tokenizer)
        self.vocab_size = vocab_size
        if eos_id is not None and eos_id not in range(vocab_size):
            raise ValueError(
                f"eos_id={eos_id!r} is no id of the vocabulary 0..{vocab_size - 1}: give the id, or the vocab_size, of "
                "the model that wrote the records, or leave eos_id None"
            )
        self.eos_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        self._check_ids(pairs)
        self._tree = RecordTree()
        for row, (prompt, output) in enumerate(pairs):
            self._tree.add(row, prompt.tolist(), output.tolist())
        self.prompts, self.outputs = tuple(prompt for prompt, _ in pairs), tuple(output for _, output in pairs)
        self.max_context = max(len(prompt) + len(output) for prompt, output in pairs)

    @classmethod
    def load(
        cls,
        path: str | Path,
        column: str | None = None,
        output_column: str | None = None,
        tokenizer: Tokenizer | str | Path | None = None,
        vocab_size: int | None = None,
        eos_id: int | None = None,
    ) -> "RecordedText":
        """Return the records of a file, one for each row.

        Args:
            path: of a ``.jsonl``, ``.json`` or ``.parquet`` file.
            column: holds the prompts, text or lists of ids; None: the first of ``reading.PROMPT_COLUMNS`` that exists.
            output_column: holds what followed; None: the first of ``reading.OUTPUT_COLUMNS`` that exists.
            tokenizer, vocab_size, eos_id: see above.

        Raises:
            ValueError: the file cannot be read, lacks a column, or holds what the constructor refuses.
        """
        prompts, outputs = read_records(Path(path), column, output_column)
        return cls(prompts, outputs, tokenizer, vocab_size, eos_id)

    def __repr__(self) -> str:
        return f"RecordedText({len(self.prompts):,} records, vocabulary {self.vocab_size:,})"

    @property
    def weight_bytes(self) -> int:
        """Memory of the tree of records; there are no weights."""
        return self._tree.bytes

    def recorded_length(self, prompt: IntArray, name: str) -> int:
        """Return how long a prompt's ``[L]`` record is; see ``specdec.contracts.RecordedOracle.recorded_length``."""
        return len(prompt) + len(self.output_of(prompt, name))

    def output_of(self, prompt: IntArray, name: str = "prompt") -> IntArray:
        """Return the ids ``[N]`` recorded after a prompt ``[L]``; arguments as of ``recorded_length``.

        Raises:
            ValueError: no record has this prompt; the message calls it ``name``.
        """
        row = self._tree.row_of(prompt.tolist())
        if row is None:
            raise ValueError(
                f"{name} selects no record: its {len(prompt)} ids are none of the {len(self.prompts)} recorded "
                "prompts; give one of them unchanged, or record what the model writes after it"
            )
        return self.outputs[row]

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> KVCache:
        """Return an empty cache of places in the records, ``num_rows`` rows of ``capacity`` slots.

        Raises:
            ValueError: it would exceed ``max_cache_bytes``.
        """
        return KVCache((num_rows, capacity), 0, 1, torch.int64, self.device, max_cache_bytes)

    def score(
        self,
        tokens: Tensor,
        parents: Tensor | None,
        num_nodes: Tensor,
        cache: KVCache,
        rows: IntArray,
        want: Want = "all",
        hidden: Sequence[int] = (),
        first: int = 0,
    ) -> Scores:
        """Return the recorded id after every node ``[B, M]``, as ``specdec.contracts.RecordedOracle`` spells out.

        Raises:
            ValueError: an id is out of range, hidden layers are asked for (there are none), ``want`` is unknown, or
                the nodes do not fit after the committed prefix.

        Cost: B * M steps in Python, independent of V and the context.
        """
        check_plain_call(tokens, self.vocab_size, want, hidden, "a record")
        lengths = cache.reserve(rows, tokens.shape[1], first)
        slots = lengths[:, None] + np.arange(tokens.shape[1])
        held = cache.payload.numpy()
        before = np.where(lengths > 0, held[rows, lengths - 1], ROOT)
        known = held[rows[:, None], slots[:, :first]]
        places = self._places(tokens, parents, before, known)
        held[rows[:, None], slots] = places
        if want == "none":
            return Scores(None)
        chosen = places[:, first:] if want == "all" else places[np.arange(len(rows)), num_nodes.numpy() - 1][:, None]
        ids = torch.from_numpy(self._tree.next_ids(chosen))
        return Scores(None, likeliest=(ids, torch.zeros(ids.shape, device=self.device)))

    def _places(self, tokens: Tensor, parents: Tensor | None, before: IntArray, known: IntArray) -> IntArray:
        """Return the places of all nodes ``[B, M]``, given those of the first nodes ``[B, first]``."""
        above = [None] * len(before) if parents is None else parents.tolist()
        rows = zip(known.tolist(), before.tolist(), tokens.tolist(), above, strict=True)
        return np.array([self._tree.walk(*row) for row in rows], dtype=np.int64).reshape(tuple(tokens.shape))

    def _check_ids(self, pairs: Sequence[tuple[IntArray, IntArray]]) -> None:
        """Refuse ids beyond the vocabulary, and outputs that continue after their end."""
        for row, pair in enumerate(pairs):
            for part, ids in zip(("prompt", "output"), pair, strict=True):
                if ids.min() < 0 or ids.max() >= self.vocab_size:
                    worst = ids.min() if ids.min() < 0 else ids.max()
                    raise ValueError(
                        f"row {row}: its {part} has id {worst}, outside the vocabulary 0..{self.vocab_size - 1}; give "
                        "the tokenizer, or the vocab_size, of the model that wrote it"
                    )
            ended = np.flatnonzero(np.isin(pair[1][:-1], self.eos_ids))
            if ended.size:
                raise ValueError(
                    f"row {row}: its output has eos_id {self.eos_ids[0]} at place {ended[0]} and goes on after it; cut "
                    "it there, or leave eos_id None"
                )
