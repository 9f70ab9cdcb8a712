"""From logits to laws: every step that sampling parameters ask for, vectorised over rows and tree nodes.

Penalties are recomputed from the ids that stand, plus each node's own path; there is no running state that a rejected
draft could leave behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import Adjustments, BoolArray, Draft, FloatArray, IntArray, Tree, penalised_rows
from specdec.grammars import Grammar
from specdec.kernels import FILTERS, PENALTIES, Kernels, best_kernels
from specdec.laws import Laws, scatter_rows, take
from specdec.sampling.masking import NodeMasks
from specdec.sampling.parameters import SamplingParams
from specdec.transfers import on_device, stage

_COLUMNS = tuple(f.name for f in fields(SamplingParams) if f.type in (int, float))


def path_mask(tree: Tree, nodes: Tensor | None) -> Tensor:
    """Return ``[B, M, N]`` bool: which nodes but the root lie on the path to each of ``nodes`` (itself included)."""
    mask = tree.ancestors[:, :, 1:]
    return mask if nodes is None else mask[:, nodes]


@dataclass(frozen=True)
class ParameterTable:
    """Sampling parameters of many requests as columns.

    Args:
        values: ``[C, R]`` float64, a column of the table per numeric parameter.
        bias: per row, the logit bias as (ids, values) or None.
        adjusts: ``[R]`` bool, whether the row's logits may change before temperature and filters.
        grammars: per row, what tells the masks of its nodes, or None.
        whole: the table that these rows were taken from, and which rows they are, if a device reads them there.
    """

    values: NDArray[np.float64]
    bias: tuple[tuple[IntArray, NDArray[np.float64]] | None, ...]
    adjusts: BoolArray
    grammars: tuple[Grammar | None, ...]
    whole: "tuple[ParameterTable, IntArray] | None" = None

    @staticmethod
    def of(params: Sequence[SamplingParams], grammars: Sequence[Grammar | None] | None = None) -> "ParameterTable":
        """Return the table of a list of parameters, and of their grammars if some ask for one.

        Args:
            params: of R rows.
            grammars: of each row, None if it has none; None: no row has one.

        Raises:
            ValueError: a row has a grammar and asks for none, or the other way round.
        """
        made = tuple(None for _ in params) if grammars is None else tuple(grammars)
        if any((one.constraint is None) is not (grammar is None) for one, grammar in zip(params, made, strict=True)):
            raise ValueError("parameters ask for grammars: give what specdec.grammars.make_grammars makes of them")
        values = np.array([[getattr(p, name) for p in params] for name in _COLUMNS], dtype=np.float64)
        bias = [
            (np.array(list(p.logit_bias), dtype=np.int64), np.array(list(p.logit_bias.values()), dtype=np.float64))
            if p.logit_bias
            else None
            for p in params
        ]
        changed = [added is not None or g is not None for added, g in zip(bias, made, strict=True)]
        table = ParameterTable(values, tuple(bias), np.array(changed, dtype=np.bool_), made)
        adjusts = table.adjusts | (table.column("min_new_tokens") > 0)
        adjusts[penalised_rows(table.penalties)] = True
        return replace(table, adjusts=adjusts)

    def joined_with(self, other: "ParameterTable", first: int) -> "ParameterTable":
        """Return the first rows, ``first`` of them, and after them those of another table."""
        values = np.hstack([self.values[:, :first], other.values])
        adjusts = np.append(self.adjusts[:first], other.adjusts)
        return ParameterTable(values, self.bias[:first] + other.bias, adjusts, self.grammars[:first] + other.grammars)

    def select(self, rows: IntArray) -> "ParameterTable":
        """Return some rows ``[B]``, in the order asked for."""
        bias, grammars = (tuple(column[row] for row in rows) for column in (self.bias, self.grammars))
        return ParameterTable(self.values[:, rows], bias, self.adjusts[rows], grammars)

    @cached_property
    def with_grammars(self) -> IntArray:
        """``[K]`` the rows that a grammar masks, ascending."""
        return np.flatnonzero([grammar is not None for grammar in self.grammars])

    def part(self, rows: IntArray) -> "ParameterTable":
        """Return some rows ``[B]``, ascending; nothing goes to a device for them but this table, once."""
        return replace(self.select(rows), whole=(self, rows))

    def with_temperature(self, temperature: float) -> "ParameterTable":
        """Return these parameters at another temperature, the same for all rows."""
        if temperature not in self._by_temperature:
            if self.whole is None:
                values = self.values.copy()
                values[_COLUMNS.index("temperature")] = temperature
                self._by_temperature[temperature] = replace(self, values=values)
            else:
                table, rows = self.whole
                self._by_temperature[temperature] = table.with_temperature(temperature).part(rows)
        return self._by_temperature[temperature]

    @cached_property
    def _by_temperature(self) -> dict[float, "ParameterTable"]:
        return {}

    @cached_property
    def sampling_rows(self) -> IntArray:
        """``[K]`` the rows that draw at a temperature above 0, ascending."""
        return np.flatnonzero(self.column("temperature") > 0)

    @cached_property
    def drawing(self) -> "ParameterTable":
        """The parameters of the rows that draw."""
        return self.part(self.sampling_rows)

    @cached_property
    def is_adjusted(self) -> bool:
        """Whether any row's logits may change before temperature and filters."""
        return bool(self.adjusts.any())

    @cached_property
    def is_argmax(self) -> bool:
        """Whether every row takes its largest logit, as it is."""
        return not (self.sampling_rows.size or self.is_adjusted)

    @cached_property
    def filters(self) -> FloatArray:
        """``[F, R]`` what makes laws of logits that are adjusted: FILTERS; read-only."""
        filters = self.values[[_COLUMNS.index(name) for name in FILTERS]]
        filters.flags.writeable = False  # sources read it
        return filters

    @cached_property
    def penalties(self) -> FloatArray:
        """``[3, R]`` those of PENALTIES."""
        return self.values[[_COLUMNS.index(f"{name}_penalty") for name in PENALTIES]]

    @cached_property
    def biases(self) -> tuple[IntArray, IntArray, FloatArray]:
        """``[R]`` where each row's logit biases end, their ids and values ``[K]``, row after row."""
        some = [bias for bias in self.bias if bias is not None]
        ends = np.cumsum([0 if bias is None else len(bias[0]) for bias in self.bias])
        ids = np.concatenate([np.zeros(0, dtype=np.int64), *(ids for ids, _ in some)])
        return ends, ids, np.concatenate([np.zeros(0), *(added for _, added in some)])

    def filters_on(self, device: torch.device) -> list[Tensor]:
        """The same on a device, each of ``[R]`` float64."""
        return [self.column_on(name, device) for name in FILTERS]

    def column(self, name: str) -> NDArray[np.float64]:
        """Return a parameter of all rows, ``[R]``."""
        values: NDArray[np.float64] = self.values[_COLUMNS.index(name)]
        return values

    def column_on(self, name: str, device: torch.device) -> Tensor:
        """Return a parameter of all rows ``[R]``, float64, on a device. The whole table goes there once."""
        return self._on(device)[_COLUMNS.index(name)]

    def _on(self, device: torch.device) -> Tensor:
        if device not in self._there:
            if self.whole is None:
                self._there[device] = on_device(self.values, device)
            else:
                table, rows = self.whole
                self._there[device] = take(table._on(device).T, rows).T
        return self._there[device]

    def unsent(self, device: torch.device) -> tuple[NDArray[np.float64], ...]:
        """Return what laws read of this table on a device and is not there yet: one array ``[C, R]``, or none."""
        if self.whole is not None:
            return self.whole[0].unsent(device)
        return () if device in self._there else (self.values,)

    @cached_property
    def _there(self) -> dict[torch.device, Tensor]:
        return {}


@dataclass(frozen=True)
class BatchWarping:
    """The ``Warping`` of a batch of rows: parameters, and the ids that penalties look back on.

    Args:
        params: one row per batch row.
        ids: ``[B, L]``; columns from ``num_committed[b]`` on are ignored.
        num_committed: ``[B]``.
        prompt_lengths: ``[B]``.
        eos_ids: ids that ``min_new_tokens`` bans.
        kernels: what computes laws.
    """

    params: ParameterTable
    ids: IntArray
    num_committed: IntArray
    prompt_lengths: IntArray
    eos_ids: tuple[int, ...]
    kernels: Kernels = field(default_factory=best_kernels, repr=False, compare=False)

    def select(self, rows: IntArray) -> "BatchWarping":
        """Return the warping of some rows ``[R]``, ascending (indices into this batch)."""
        return replace(
            self,
            params=self.params.part(rows),
            ids=self.ids[rows],
            num_committed=self.num_committed[rows],
            prompt_lengths=self.prompt_lengths[rows],
        )

    def with_ids(self, ids: IntArray, num_committed: IntArray) -> "BatchWarping":
        """Return the warping of the same rows once they hold other ids ``[B, L]``."""
        return replace(self, ids=ids, num_committed=num_committed)

    def laws(
        self,
        logits: Tensor,
        draft: Draft,
        nodes: Tensor | None = None,
        temperature: float | None = None,
    ) -> Laws:
        """Return the warped laws ``[B, M]`` of some nodes of a draft; arguments as in ``Warping.laws``.

        Cost: O(B M V); nothing beyond an argmax for greedy rows without penalties.
        """
        return self.laws_of(self.adjust(logits, draft, nodes), temperature)

    def is_argmax(self) -> bool:
        """Tell whether every row's law is the point mass of its largest logit, whatever the draft."""
        return self.params.is_argmax

    def is_greedy(self, temperature: float | None = None) -> bool:
        """Tell whether every row's law is the point mass of its largest logit after ``adjustments``."""
        return not (self.params if temperature is None else self._at(temperature)).sampling_rows.size

    @cached_property
    def adjustments(self) -> Adjustments | None:
        """What changes logits before anything is made of them, in some of the rows; None: nothing does."""
        if not self.params.is_adjusted:
            return None
        bans = self.params.column("min_new_tokens")
        is_early = self.num_committed - self.prompt_lengths < bans
        return Adjustments(
            self.ids,
            self.num_committed,
            self.prompt_lengths,
            self.params.penalties,
            *self.params.biases,
            bans,
            np.array(self.eos_ids if is_early.any() else (), dtype=np.int64),
        )

    def filters(self, temperature: float | None = None) -> FloatArray | None:
        """Return ``[F, B]`` what compiled code makes laws by after ``adjustments``; None if it takes more than that."""
        params = self.params if temperature is None else self._at(temperature)
        return params.filters if params.sampling_rows.size == len(self.ids) and self.kernels.are_compiled else None

    def _at(self, temperature: float | None) -> ParameterTable:
        return self.params if temperature is None else self.params.with_temperature(temperature)

    def laws_of(self, adjusted: Tensor, temperature: float | None = None) -> Laws:
        """Return the laws of adjusted logits ``[B, M, V]``: temperature and filters, or the best id's point mass.

        Cost: O(B M V).
        """
        params = self._at(temperature)
        sampled = params.sampling_rows
        if sampled.size == 0:
            return Laws.points(adjusted.argmax(-1))
        if sampled.size == len(adjusted):
            return Laws.from_probs(self.kernels.laws(adjusted, params))
        table = Laws.from_probs(self.kernels.laws(take(adjusted, sampled), params.drawing))
        return Laws(table.table, scatter_rows(table.index, sampled, len(adjusted), -1), adjusted.argmax(-1))

    def adjust(self, logits: Tensor, draft: Draft, nodes: Tensor | None = None) -> Tensor:
        """Return logits after masks, bias, penalties and the ban of EOS.

        Args:
            logits, draft, nodes: see ``Warping.laws``.

        Returns:
            ``[B, M, V]``, float32 at least: a copy, or what was given if nothing changes it.

        Cost: none without such parameters; else a copy, O(B M V), and for the rows with penalties O(L + M V) each, for
            those with grammars what ``NodeMasks`` says.
        """
        logits = logits if logits.dtype == torch.float64 else logits.float()
        given = self.adjustments
        if given is None:
            return logits
        logits = logits.clone(memory_format=torch.contiguous_format)
        mask = path_mask(draft.tree, nodes)
        rows = self.params.with_grammars
        real = draft.tree.num_nodes if nodes is None else None
        masks = NodeMasks.of(rows, self.allowed_ids, draft.tokens, mask, real) if rows.size else None
        if masks is not None:
            masks.apply(logits)
        biases = [part for bias in self.params.bias if bias for part in bias]
        of_penalties = (given.rows_with_penalties, given.ids, given.penalties) if given.rows_with_penalties.size else ()
        with stage((*biases, *of_penalties, given.num_committed, given.prompt_lengths, given.eos_ids), logits.device):
            for row, bias in enumerate(self.params.bias):
                if bias is not None:
                    ids, added = (on_device(part, logits.device) for part in bias)
                    logits[row, :, ids] += added.to(logits.dtype)
            if given.rows_with_penalties.size:
                self.kernels.penalise(logits, draft.tokens, mask, given)
            if given.eos_ids.size:
                self._ban_eos(logits, mask, given)
        if masks is not None:
            masks.end_dead_nodes(logits)
        return logits

    @property
    def has_grammars(self) -> bool:
        """Whether a grammar masks some of the rows."""
        return self.params.with_grammars.size > 0

    def allowed_ids(self, row: int, path: IntArray) -> BoolArray | None:
        """Return which ids the grammar of a row allows after what stands and a path ``[D]`` of drafted ids."""
        grammar = self.params.grammars[row]
        output = self.ids[row, self.prompt_lengths[row] : self.num_committed[row]]
        return None if grammar is None else grammar.allowed_ids(output, path)

    def _ban_eos(self, logits: Tensor, mask: Tensor, given: Adjustments) -> None:
        """Give EOS probability 0 at nodes whose next token has fewer than ``min_new_tokens`` before it."""
        ends, prompts, eos = (
            on_device(part, logits.device) for part in (given.num_committed, given.prompt_lengths, given.eos_ids)
        )
        minimum = self.params.column_on("min_new_tokens", logits.device).unsqueeze(1)
        early = (ends - prompts).unsqueeze(1) + mask.sum(-1) < minimum
        logits[:, :, eos] = logits[:, :, eos].masked_fill(early.unsqueeze(-1), -torch.inf)
