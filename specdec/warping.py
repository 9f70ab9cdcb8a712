"""From logits to laws: every step that sampling parameters ask for, vectorised over rows and tree nodes.

Penalties are recomputed from the ids that stand, plus each node's own path; there is no running state that a rejected
draft could leave behind.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from specdec.contracts import IntArray
from specdec.laws import Laws
from specdec.sampling import SamplingParams
from specdec.tree import ancestors_of

_COLUMNS = tuple(f.name for f in fields(SamplingParams) if f.name not in ("logit_bias", "ignore_eos"))


def filter_top_k(logits: Tensor, top_k: Tensor) -> Tensor:
    """Return logits ``[R, M, V]`` with all but the ``top_k[r]`` best at -inf; ties with the k-th stay, 0 keeps all.

    Cost: O(R M V) selection for the largest k asked for.
    """
    size = logits.shape[-1]
    effective = torch.where(top_k > 0, top_k.clamp(max=size), size)
    largest = int(effective[effective < size].max()) if bool((effective < size).any()) else 0
    if largest == 0:
        return logits
    best = logits.topk(largest, dim=-1).values
    at = (effective.clamp(max=largest) - 1).view(-1, 1, 1).expand(-1, logits.shape[1], 1)
    floor = best.gather(-1, at)
    cut = (logits < floor) & (effective < size).view(-1, 1, 1)
    return logits.masked_fill(cut, -torch.inf)


def keep_top_p(probs: Tensor, top_p: Tensor) -> Tensor:
    """Return ``[R, M, V]`` bool: the smallest set of best ids that reaches ``top_p[r]``, lowest id first among equals.

    Cost: one stable sort of each law, O(V log V).
    """
    ordered, ids = probs.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    chosen = (before < top_p.view(-1, 1, 1)) | (top_p.view(-1, 1, 1) >= 1)
    return torch.zeros_like(chosen).scatter_(-1, ids, chosen)


def filtered_probs(logits: Tensor, temperature: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor) -> Tensor:
    """Return the laws of logits ``[R, M, V]`` after temperature (> 0), top_k, top_p and min_p, each ``[R]``.

    Guarantee: rows sum to 1 up to rounding; what a filter drops has probability exactly 0; the dtype is kept.
    """
    probs = filter_top_k(logits / temperature.view(-1, 1, 1).to(logits.dtype), top_k).softmax(-1)
    keep = None
    if bool((top_p < 1).any()):
        keep = keep_top_p(probs, top_p)
        probs = probs * keep
    if bool((min_p > 0).any()):
        low = probs < min_p.view(-1, 1, 1).to(probs.dtype) * probs.amax(-1, keepdim=True)
        keep = ~low if keep is None else keep & ~low
        probs = probs.masked_fill(low, 0)
    return probs if keep is None else probs / probs.sum(-1, keepdim=True)


def path_mask(width: int, parents: Tensor | None, batch: int, nodes: Tensor | None, device: torch.device) -> Tensor:
    """Return ``[B, M, N]`` bool: which draft nodes lie on the path to each scoring node (itself included)."""
    if parents is None:
        own = torch.ones(width, width, dtype=torch.bool, device=device).tril().expand(batch, -1, -1)
    else:
        own = ancestors_of(parents)
    mask = torch.nn.functional.pad(own, (0, 0, 1, 0))
    return mask if nodes is None else mask[:, nodes]


@dataclass(frozen=True)
class ParameterTable:
    """Sampling parameters of many requests as columns; rows are requests.

    Args:
        columns: one ``[R]`` float64 array per numeric parameter.
        bias: per row, the logit bias as (ids, values) or None.
    """

    columns: dict[str, NDArray[np.float64]]
    bias: tuple[tuple[IntArray, NDArray[np.float64]] | None, ...]

    @staticmethod
    def of(params: Sequence[SamplingParams]) -> "ParameterTable":
        """Return the table of a list of parameters."""
        columns = {name: np.array([getattr(p, name) for p in params], dtype=np.float64) for name in _COLUMNS}
        bias = [
            (np.array(list(p.logit_bias), dtype=np.int64), np.array(list(p.logit_bias.values()), dtype=np.float64))
            if p.logit_bias
            else None
            for p in params
        ]
        return ParameterTable(columns, tuple(bias))

    def select(self, rows: IntArray) -> "ParameterTable":
        """Return some rows, in the order asked for."""
        return ParameterTable({k: v[rows] for k, v in self.columns.items()}, tuple(self.bias[r] for r in rows))

    def tensor(self, name: str, device: torch.device) -> Tensor:
        """Return a column as a float64 tensor."""
        return torch.from_numpy(self.columns[name]).to(device)


@dataclass(frozen=True)
class BatchWarping:
    """The ``Warping`` of a batch of rows: parameters, and the ids that penalties look back on.

    Args:
        params: one row per batch row.
        ids: ``[B, L]``; columns from ``num_committed[b]`` on are ignored.
        num_committed: ``[B]``.
        prompt_lengths: ``[B]``.
        eos_ids: ids that ``min_new_tokens`` bans.
    """

    params: ParameterTable
    ids: IntArray
    num_committed: IntArray
    prompt_lengths: IntArray
    eos_ids: tuple[int, ...]

    def select(self, rows: IntArray) -> "BatchWarping":
        """Return the warping of some rows (indices into this batch)."""
        return replace(
            self,
            params=self.params.select(rows),
            ids=self.ids[rows],
            num_committed=self.num_committed[rows],
            prompt_lengths=self.prompt_lengths[rows],
        )

    def laws(
        self,
        logits: Tensor,
        tokens: Tensor,
        parents: Tensor | None = None,
        nodes: Tensor | None = None,
        temperature: float | None = None,
    ) -> Laws:
        """See ``Warping``. Cost: O(B M V); nothing beyond an argmax for greedy rows without penalties."""
        return self.drawn(self.adjusted(logits, tokens, parents, nodes), temperature)

    def drawn(self, adjusted: Tensor, temperature: float | None = None) -> Laws:
        """Return the laws of adjusted logits ``[B, M, V]``: temperature and filters, or the best id's point mass."""
        own = self.params.columns["temperature"]
        heat = own if temperature is None else np.full_like(own, temperature)
        sampled = np.flatnonzero(heat > 0)
        if sampled.size == 0:
            return Laws.points(adjusted.argmax(-1))
        rows = torch.from_numpy(sampled).to(adjusted.device)
        subset = self.params.select(sampled)
        columns = [subset.tensor(name, adjusted.device) for name in ("top_k", "top_p", "min_p")]
        chosen = adjusted if sampled.size == heat.size else adjusted[rows]
        degrees = torch.from_numpy(heat[sampled]).to(adjusted.device)
        probs = filtered_probs(chosen, degrees, columns[0].long(), columns[1], columns[2])
        table = Laws.from_probs(probs)
        if sampled.size == heat.size:
            return table
        index = torch.full(adjusted.shape[:2], -1, dtype=torch.int64, device=adjusted.device)
        index[rows] = table.index
        return Laws(table.table, index, adjusted.argmax(-1))

    def adjusted(
        self, logits: Tensor, tokens: Tensor, parents: Tensor | None = None, nodes: Tensor | None = None
    ) -> Tensor:
        """Return logits after bias, penalties and the ban of EOS, float32 at least; the input is not changed."""
        columns = self.params.columns
        logits = logits if logits.dtype == torch.float64 else logits.float()
        biased = [b for b, bias in enumerate(self.params.bias) if bias is not None]
        penalised = np.flatnonzero(
            (columns["repetition_penalty"] != 1)
            | (columns["presence_penalty"] != 0)
            | (columns["frequency_penalty"] != 0)
        )
        banning = self.num_committed - self.prompt_lengths < columns["min_new_tokens"]
        if not (biased or penalised.size or banning.any()):
            return logits
        logits = logits.clone()
        for b in biased:
            self._add_bias(logits, b)
        mask = path_mask(tokens.shape[1], parents, tokens.shape[0], nodes, logits.device)
        if penalised.size:
            self._penalise(logits, tokens, mask, penalised)
        if banning.any() and self.eos_ids:
            self._ban_eos(logits, mask)
        return logits

    def _add_bias(self, logits: Tensor, row: int) -> None:
        bias = self.params.bias[row]
        assert bias is not None
        values = torch.from_numpy(bias[1]).to(logits.device, logits.dtype)
        logits[row, :, torch.from_numpy(bias[0]).to(logits.device)] += values

    def _penalise(self, logits: Tensor, tokens: Tensor, mask: Tensor, rows: IntArray) -> None:
        """Apply the three penalties to ``rows`` in place. Cost: O(R (L + M V))."""
        at = torch.from_numpy(rows).to(logits.device)
        shape = (len(rows), mask.shape[1], logits.shape[-1])
        drafted = torch.zeros(shape, dtype=logits.dtype, device=logits.device)
        spread = tokens[at].unsqueeze(1).expand(-1, mask.shape[1], -1)
        drafted.scatter_add_(2, spread, mask[at].to(logits.dtype))
        columns = np.arange(self.ids.shape[1])
        stands = columns < self.num_committed[rows, None]
        produced = self._counts(rows, stands & (columns >= self.prompt_lengths[rows, None]), drafted)
        seen = self._counts(rows, stands, drafted) > 0
        repetition, presence, frequency = (
            self.params.tensor(name, logits.device)[at].view(-1, 1, 1).to(logits.dtype)
            for name in ("repetition_penalty", "presence_penalty", "frequency_penalty")
        )
        values = logits[at]
        scaled = torch.where(values > 0, values / repetition, values * repetition)
        values = torch.where(seen & (repetition != 1), scaled, values)
        logits[at] = values - presence * (produced > 0) - frequency * produced

    def _counts(self, rows: IntArray, counted: NDArray[np.bool_], drafted: Tensor) -> Tensor:
        """Return ``[R, M, V]`` occurrences: those of the committed ids marked by ``counted``, and the paths'."""
        ids = torch.from_numpy(np.where(counted, self.ids[rows], 0)).to(drafted.device)
        ones = torch.from_numpy(counted).to(drafted.device, drafted.dtype)
        base = torch.zeros(len(rows), drafted.shape[-1], dtype=drafted.dtype, device=drafted.device)
        return base.scatter_add_(1, ids, ones).unsqueeze(1) + drafted

    def _ban_eos(self, logits: Tensor, mask: Tensor) -> None:
        """Give EOS probability 0 at nodes where fewer than ``min_new_tokens`` precede the next token."""
        produced = torch.from_numpy(self.num_committed - self.prompt_lengths).to(logits.device)
        minimum = self.params.tensor("min_new_tokens", logits.device).unsqueeze(1)
        early = produced.unsqueeze(1) + mask.sum(-1) < minimum
        eos = torch.tensor(self.eos_ids, device=logits.device)
        logits[:, :, eos] = logits[:, :, eos].masked_fill(early.unsqueeze(-1), -torch.inf)
