"""Oracles whose laws are all written down in a table: the ground truth of exactness tests."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from oracles.transformer.pass_parts import check_plain_call
from specdec.cache import KVCache
from specdec.contracts import IntArray, OracleDefaults, Scores, Want, describe_oracle
from specdec.transfers import HOST

ROW_SUM_TOLERANCE = 1e-9


class TabularLM(OracleDefaults):
    """A language model of order m: the law of the next id depends on the m ids before it, as a table says.

    It fulfils the oracle contract, cache included: the cache remembers the ids of the sequence, and a scoring call
    looks up the table at the last m ids of every node's path.

    Args:
        table: ``[V] * (m + 1)`` probabilities (tensor, array or nested lists; kept as float64), last axis the law of
            the next id given the m ids before it, oldest first. Contexts shorter than m are padded on the left with
            id 0. Zeros are legal: their logits are -inf.
        eos_id: the id that ends a sequence, or None.
        max_context: longest sequence served.

    Raises:
        ValueError: the axes differ in length, an entry is negative or not finite, a law does not sum to 1, ``eos_id``
            is not below V, or ``max_context`` is below 1.

    Guarantee: ``softmax(logits)`` is the table's law up to float64 rounding, and a node's logits are bitwise
    independent of the width of the pass, its place in it, the tree, the batch and the chunking.
    """

    tokenizer: Any | None = None
    dtype = torch.float64
    bitwise = True
    backend = "table"

    def __init__(self, table: Any, eos_id: int | None = None, max_context: int = 2**20) -> None:
        where = table.device if isinstance(table, Tensor) else HOST
        self.table = _check_table(torch.as_tensor(table, dtype=torch.float64, device=where).clone())
        self.vocab_size = self.table.shape[-1]
        self.order = self.table.dim() - 1
        if eos_id is not None and not 0 <= eos_id < self.vocab_size:
            raise ValueError(f"eos_id {eos_id} is out of range: give an id from 0 to {self.vocab_size - 1}, or None")
        if max_context < 1:
            raise ValueError(f"max_context is {max_context}; it is at least 1")
        self.eos_ids: tuple[int, ...] = () if eos_id is None else (eos_id,)
        self.max_context = max_context
        self._log_laws = self.table.log().reshape(-1, self.vocab_size)  # [V ** m, V]

    @classmethod
    def random(cls, vocab_size: int, order: int, seed: int, eos_id: int | None = None) -> "TabularLM":
        """Return a model whose laws are drawn from the flat Dirichlet law, one for every context.

        Args:
            vocab_size: V, at least 1.
            order: m, 0 or more.
            seed: of the draws; equal arguments give equal tables.
            eos_id: the id that ends a sequence, or None.

        Cost: V ** (order + 1) float64 numbers.
        """
        shape = _table_shape(vocab_size, order)
        support = torch.ones(shape, dtype=torch.bool, device=HOST)
        return cls(_dirichlet(support, torch.Generator().manual_seed(seed)), eos_id)

    @classmethod
    def pair(cls, vocab_size: int, order: int, alpha: float, seed: int) -> tuple["TabularLM", "TabularLM"]:
        """Return a target and a draft with ``sum_x min(p(x), q(x)) == alpha`` in every context.

        In each context ``p = alpha * r + (1 - alpha) * a`` and ``q = alpha * r + (1 - alpha) * b``, where r is drawn
        from the flat Dirichlet law over all ids, and a and b from the flat Dirichlet laws over the two parts of a
        random partition of the ids. Every pair of laws with that overlap has this form.

        Args:
            vocab_size: V, at least 2.
            order: m, 0 or more.
            alpha: 0..1, the acceptance rate of standard verification.
            seed: of the draws.

        Returns:
            (target, draft), without EOS.

        Raises:
            ValueError: ``alpha`` is outside 0..1, ``vocab_size`` is below 2, or ``order`` is below 0.
        """
        if not 0.0 <= alpha <= 1.0:
            raise ValueError(f"alpha is {alpha}; an overlap of two laws lies between 0 and 1")
        if vocab_size < 2:
            raise ValueError(f"vocab_size is {vocab_size}; two different laws need at least 2 ids")
        shape = _table_shape(vocab_size, order)
        generator = torch.Generator().manual_seed(seed)
        common = alpha * _dirichlet(torch.ones(shape, dtype=torch.bool, device=HOST), generator)
        part = _partition(shape, generator)
        only_target, only_draft = _dirichlet(part, generator), _dirichlet(~part, generator)
        return cls(common + (1.0 - alpha) * only_target), cls(common + (1.0 - alpha) * only_draft)

    def __repr__(self) -> str:
        return describe_oracle(self)

    @property
    def device(self) -> torch.device:
        """Where the table lies."""
        return self.table.device

    @property
    def weight_bytes(self) -> int:
        """Bytes of the table and its logarithms."""
        return self.table.nbytes + self._log_laws.nbytes

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> KVCache:
        """Return an empty cache of ids, ``num_rows`` rows of ``capacity`` slots.

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
        """Return the log-probabilities of the laws of nodes ``[B, M]``; see ``specdec.contracts.Oracle.score``.

        Raises:
            ValueError: an id is out of range, hidden layers are asked for (there are none), ``want`` is unknown, or
                the nodes do not fit after the committed prefix.

        Cost: B * M * (m + V) reads, independent of the context.
        """
        check_plain_call(tokens, self.vocab_size, want, hidden, "a table")
        lengths = torch.from_numpy(cache.reserve(rows, tokens.shape[1], first)).to(self.device)
        at_rows = torch.from_numpy(rows).to(self.device).unsqueeze(1)
        slots = lengths.unsqueeze(1) + torch.arange(first, tokens.shape[1], device=self.device)
        cache.payload[at_rows, slots] = tokens[:, first:]
        if want == "none":
            return Scores(None)
        if want == "last":
            slots = (lengths + num_nodes - 1).unsqueeze(1)
        context = torch.zeros_like(slots)
        for power in range(self.order):
            ids = cache.payload[at_rows, slots.clamp(min=0)]
            context += torch.where(slots >= 0, ids, 0) * self.vocab_size**power
            slots = _slots_before(slots, parents, lengths)
        return Scores(self._log_laws[context])


def _slots_before(slots: Tensor, parents: Tensor | None, lengths: Tensor) -> Tensor:
    """Return the slots of the ids that precede those at ``slots`` ``[B, M]`` on each node's path (negative: none)."""
    if parents is None:
        return slots - 1
    first = lengths.unsqueeze(1)
    parent = parents.gather(1, (slots - first).clamp(min=0))
    # The pending token (parent -1) follows the last committed slot, first - 1, which is where first + parent points.
    return torch.where(slots >= first, first + parent, slots - 1)


def _table_shape(vocab_size: int, order: int) -> tuple[int, ...]:
    if vocab_size < 1 or order < 0:
        raise ValueError(f"vocab_size {vocab_size} and order {order}: give at least 1 and at least 0")
    return (vocab_size,) * (order + 1)


def _check_table(table: Tensor) -> Tensor:
    if table.dim() == 0 or len(set(table.shape)) != 1 or table.numel() == 0:
        raise ValueError(f"table has shape {tuple(table.shape)}; give [V] * (m + 1), every axis as long as V")
    if not bool((torch.isfinite(table) & (table >= 0)).all()):
        raise ValueError("table holds a negative or non-finite entry; give probabilities")
    worst = float((table.sum(-1) - 1.0).abs().max())
    if worst > ROW_SUM_TOLERANCE:
        raise ValueError(f"a law of the table misses a sum of 1 by {worst:.3g}; normalise the last axis in float64")
    return table


def _dirichlet(support: Tensor, generator: torch.Generator) -> Tensor:
    """Return flat-Dirichlet laws on the last axis, zero outside ``support`` (bool, at least one id in every law)."""
    weights = torch.empty(support.shape, dtype=torch.float64, device=HOST).exponential_(generator=generator) * support
    return weights / weights.sum(-1, keepdim=True)


def _partition(shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Return bools of ``shape``; along the last axis at least one is True and at least one False."""
    rank = torch.rand(shape, dtype=torch.float64, generator=generator, device=HOST).argsort(-1)
    coin = torch.rand(shape, dtype=torch.float64, generator=generator, device=HOST) < 0.5
    return (rank == 0) | ((rank != 1) & coin)
