"""Linear layers that several processes share: sums over inputs, and outputs side by side."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from oracles.parallel.ranks import Ranks
from oracles.transformer.linear import Linear


class SummedLinear(nn.Module):
    """Compute ``x @ weight.T + bias``, with some columns of the weight in every process, and add a tensor.

    Args:
        ranks: the processes that have the columns.
        first: index of this process's first input in what it is given.
        widths: of the blocks of inputs that this process multiplies.
        out_features: width of the result.
        bias: whether a bias is added, once, after the sum.
        in_order: whether the products of all blocks are gathered and added in the order of the blocks, so that the
            bits depend on the blocks alone; else each process adds its own, and ``all_reduce`` adds these sums.
    """

    def __init__(
        self, ranks: Ranks, first: int, widths: Sequence[int], out_features: int, bias: bool, in_order: bool
    ) -> None:
        super().__init__()
        self.ranks, self.first, self.widths, self.in_order = ranks, first, [*widths], in_order
        self.weight: Tensor | None = nn.Parameter(torch.empty(out_features, sum(widths)))
        self.bias: Tensor | None = nn.Parameter(torch.empty(out_features)) if bias else None
        self.blocks = nn.ModuleList()

    def cut(self) -> None:
        """Make a layer of every block; the whole weight is freed."""
        assert self.weight is not None
        parts = torch.split(self.weight.detach(), self.widths, dim=1)
        self.blocks, self.weight = nn.ModuleList(Linear.of(part.contiguous()) for part in parts), None

    def forward(self, x: Tensor, add: Tensor | None = None) -> Tensor:
        """Return ``[rows, out]`` from ``[rows, in]``, the same on every process, plus ``add`` of the result's shape."""
        given = torch.split(x.narrow(-1, self.first, sum(self.widths)), self.widths, dim=-1)
        products = [block(part.contiguous()) for block, part in zip(self.blocks, given, strict=True)]
        if self.in_order:  # [blocks, rows, out] of every process
            gathered = self.ranks.gather(torch.stack(products))
            out = _in_turn([block for part in gathered for block in part])
        else:
            out = self.ranks.add(_in_turn(products))
        out = out if self.bias is None else out + self.bias
        return out if add is None else out + add


def _in_turn(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for part in parts[1:]:
        total = total + part
    return total


class GatheredLinear(Linear):
    """A linear layer with some outputs in every process; all processes get all outputs.

    Attributes:
        ranks: the processes that have the outputs; set by whoever makes the layer.
        whole: number of outputs in all.
    """

    ranks: Ranks
    whole: int

    @classmethod
    def from_layer(cls, layer: Linear, ranks: Ranks, whole: int) -> "GatheredLinear":
        """Return a layer that has a plain layer's weight as its share."""
        assert layer.weight is not None
        made = cls.of(layer.weight, layer.bias)
        assert isinstance(made, GatheredLinear)
        made.ranks, made.whole = ranks, whole
        return made

    def forward(self, x: Tensor, add: Tensor | None = None, times: Tensor | None = None) -> Tensor:
        """Return ``[rows, whole]`` from ``[rows, in]``; ``add`` and ``times`` are of this process's share."""
        own, count = super().forward(x, add, times), self.ranks.count
        bounds = [self.whole * rank // count for rank in range(count + 1)]
        shapes = [(*own.shape[:-1], bounds[rank + 1] - bounds[rank]) for rank in range(count)]
        return torch.cat(self.ranks.gather(own, shapes), dim=-1)
