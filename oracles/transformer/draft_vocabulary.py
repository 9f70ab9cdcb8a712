"""A small model with a large vocabulary: it reads every id through the target's table, but writes only some ids."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional

from oracles.checkpoints.weights import StoredTensors
from oracles.quantisation.quantised import round_straight_through
from oracles.transformer.config import TransformerConfig
from oracles.transformer.linear import Linear

OFFSETS, WRITTEN = "d2t", "t2d"
EMBEDDINGS, HEAD = "model.embed_tokens", "lm_head"
_ROWS_AT_ONCE = 4096


class DraftHead(Linear):
    """A head that writes some ids of the target's vocabulary, and gives every other id probability 0.

    Laws, noise, penalties and biases after it are indexed by the target's ids: no other code knows of its columns.

    Args:
        in_features: width of the residual stream, D.
        target_ids: ``[R]`` int64, rising: the id that each column writes.
        vocab_size: V, ids of the target.

    Attributes:
        target_ids: the same.
        vocab_size: V.

    Source: the offsets ``d2t`` that published heads store: Li et al. 2025 (EAGLE-3, arXiv 2503.01840); why a few ids
        are enough: Zhao et al. 2025 (FR-Spec, arXiv 2502.14856).
    """

    target_ids: Tensor

    def __init__(self, in_features: int, target_ids: Tensor, vocab_size: int) -> None:
        super().__init__(in_features, len(target_ids))
        self.vocab_size = vocab_size
        self.register_buffer("target_ids", target_ids, persistent=False)

    @property
    def offsets(self) -> Tensor:
        """The offsets that files store, ``[R]``: each column's id minus the column's number."""
        return self.target_ids - torch.arange(len(self.target_ids), device=self.target_ids.device)

    def columns(self, x: Tensor) -> Tensor:
        """Return logits ``[..., R]`` of the ids that are written, from the normed stream ``[..., D]``."""
        return super().forward(x)

    def forward(self, x: Tensor, add: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """Return logits ``[..., V]``, minus infinity for ids without a column."""
        return spread(self.columns(x), self.target_ids, self.vocab_size)

    def cut(self, out_features: int) -> "DraftHead":
        """Return a head with only the columns that write ids below ``out_features``; itself if these are all."""
        kept = self.target_ids[self.target_ids < out_features]
        if len(kept) == len(self.target_ids):
            return self
        plain = super().cut(len(kept))
        with torch.device("meta"):
            head = DraftHead(self.in_features, kept, out_features)
        head.weight, head.quantised = plain.weight, plain.quantised
        return head


class ProjectedHead(DraftHead):
    """A head whose weights are the target's embeddings of the ids that it writes, through a trained projection.

    Args:
        table: ``[V, W]`` the target's embeddings, which do not change.
        in_features, target_ids: see ``DraftHead``.
    """

    table: Tensor

    def __init__(self, table: Tensor, in_features: int, target_ids: Tensor) -> None:
        nn.Module.__init__(self)
        self.vocab_size, self.learns_as = len(table), None
        self.register_buffer("target_ids", target_ids, persistent=False)
        self.register_buffer("table", table[target_ids], persistent=False)
        self.projection = nn.Linear(in_features, table.shape[1], bias=False)

    def columns(self, x: Tensor) -> Tensor:
        """Return logits ``[..., R]`` of the ids that are written, from the normed stream ``[..., D]``."""
        if self.learns_as is None:
            return functional.linear(functional.linear(x, self.projection.weight), self.table)
        return functional.linear(x, round_straight_through(self.table @ self.projection.weight, self.learns_as))


def head_of(config: TransformerConfig) -> Linear:
    """Return a model's own head; if it writes only some ids, these are the first ones until it is told which."""
    if config.draft_vocab_size is None:
        return Linear(config.hidden_size, config.embedding_rows, config.head_bias)
    return DraftHead(config.hidden_size, torch.arange(config.draft_vocab_size), config.vocab_size)


def spread(columns: Tensor, target_ids: Tensor | None, vocab_size: int) -> Tensor:
    """Return logits ``[..., V]`` from those of columns ``[..., R]``; minus infinity (probability 0) for all other ids.

    Args:
        columns: the logits.
        target_ids: ``[R]`` distinct ids that they are for; None: column i is for id i, with one for every id.
        vocab_size: V.
    """
    if target_ids is None:
        return columns
    every = columns.new_full((*columns.shape[:-1], vocab_size), -torch.inf)
    return every.index_copy(-1, target_ids, columns)


def column_of_id(target_ids: Tensor, vocab_size: int) -> Tensor:
    """Return ``[V]`` the column that writes each id, -1 if none does."""
    columns = torch.full((vocab_size,), -1, device=target_ids.device)
    columns[target_ids] = torch.arange(len(target_ids), device=target_ids.device)
    return columns


def read_written_ids(stored: StoredTensors, count: int, vocab_size: int, rising: bool = True) -> Tensor:
    """Return the ids ``[count]`` below ``vocab_size`` that the columns of a stored head write, from its offsets.

    Args:
        stored: the checkpoint, from which the offsets are taken.
        count: columns, R.
        vocab_size: V.
        rising: whether ids must rise; else they need only differ.

    Raises:
        ValueError: there are no offsets, or not one whole number for each column, or ids do not rise within the
            vocabulary.
    """
    path = stored.path(OFFSETS) if OFFSETS in stored.shapes else stored.folder
    offsets = stored.take(OFFSETS)
    if not count or offsets.dtype not in (torch.int32, torch.int64) or offsets.shape != (count,):
        raise ValueError(
            f"{path}: tensor {OFFSETS!r} is {offsets.dtype} {tuple(offsets.shape)}; draft_vocab_size wants "
            f"{count} whole numbers"
        )
    ids = offsets.long() + torch.arange(len(offsets))
    ordered = ids if rising else ids.sort().values
    # Differences of ids within the vocabulary do not overflow.
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size or not bool((ordered.diff() > 0).all()):
        raise ValueError(
            f"{path}: by tensor {OFFSETS!r} column r writes id r + {OFFSETS}[r]; these must "
            f"{'rise' if rising else 'differ'}, from 0 to {vocab_size - 1} at most"
        )
    return ids


def check_mask(mask: Tensor, ids: Tensor, rows: int, path: Path) -> None:
    """Raise ValueError unless a stored mask ``[rows]`` bool marks exactly the ids ``[R]`` that the offsets give."""
    if not (mask.dtype == torch.bool and mask.shape == (rows,) and torch.equal(mask.nonzero()[:, 0], ids)):
        raise ValueError(f"{path}: tensor {WRITTEN!r} names other ids than {OFFSETS!r} gives, or is no mask of all ids")


class ProjectedEmbedding(nn.Module):
    """The target's embeddings through a projection: every id has one, and only the projection trains.

    Args:
        table: ``[V, W]`` the target's embeddings, which do not change.
        hidden_size: D.
    """

    table: Tensor

    def __init__(self, table: Tensor, hidden_size: int) -> None:
        super().__init__()
        self.register_buffer("table", table, persistent=False)
        self.projection = nn.Linear(table.shape[1], hidden_size, bias=False)

    @property
    def weight(self) -> Tensor:
        """The trained projection ``[D, W]``."""
        return self.projection.weight

    def forward(self, ids: Tensor) -> Tensor:
        """Return embeddings ``[..., D]`` of ids ``[...]``."""
        return functional.linear(self.table[ids], self.projection.weight)


def give_tables(stored: StoredTensors, table: Tensor, target_ids: Tensor | None) -> None:
    """Make a checkpoint's embeddings and head from its projections and the target's embeddings.

    For a row t of the table, the row of the embeddings ``[V, D]`` is P t, with P ``[D, W]``, and the row of the head
    ``[R, D]``, if it writes that id, is Q^T t, with Q ``[W, D]``. Both are rounded to bfloat16 from sums in double
    precision, so that the order in which a machine adds does not show.

    Args:
        stored: of the draft; has ``model.embed_tokens.projection.weight`` and ``lm_head.projection.weight``.
        table: ``[V, W]``.
        target_ids: ``[R]`` what the head writes; None: all ids.

    Raises:
        ValueError: a projection is missing, or does not fit this table.
    """
    _give(stored, EMBEDDINGS, table, 1)
    _give(stored, HEAD, table if target_ids is None else table[target_ids], 0)


def _give(stored: StoredTensors, module: str, table: Tensor, wide: int) -> None:
    """Replace a module's projection, whose dimension ``wide`` is the table's, by the module's weight."""
    key = f"{module}.projection.weight"
    path = stored.path(key) if key in stored.shapes else stored.folder
    projection = stored.take(key)
    if projection.ndim != 2 or projection.shape[wide] != table.shape[1]:
        raise ValueError(
            f"{path}: tensor {key!r} has shape {tuple(projection.shape)}, and the embeddings that it projects are "
            f"{table.shape[1]} wide"
        )
    narrow = projection.double() if wide == 0 else projection.double().t()
    rows = [(part.double() @ narrow).bfloat16() for part in torch.split(table.detach(), _ROWS_AT_ONCE)]
    stored.give(f"{module}.weight", torch.cat(rows), path)
