"""The inputs of a transformer's linear layers, gathered on calibration text, block by block."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oracles.quantisation.methods.stages import Stage, stages_of
from oracles.transformer.eager import Transformer

# Positions in a pass.
_TOKENS_AT_ONCE = 4096


@dataclass
class Inputs:
    """Sums over the inputs ``[N, in]`` of a stage.

    Args:
        count: N, the positions so far.
        gram: ``[in, in]`` float64, X^T X: products in float32, added up in float64.
        sizes: ``[in]`` float64, the sum of |x|.
        largest: ``[in]`` float32, the largest |x|.
    """

    count: int
    gram: Tensor
    sizes: Tensor
    largest: Tensor

    @classmethod
    def none(cls, size: int, device: torch.device | None = None) -> "Inputs":
        """Return the sums over no input of a width."""
        gram = torch.zeros(size, size, dtype=torch.float64, device=device)
        return cls(0, gram, gram[0].clone(), gram[0].float())

    def add(self, x: Tensor) -> None:
        """Take in ``[..., in]``."""
        rows = x.detach().flatten(0, -2)
        self.count += len(rows)
        self.gram += rows.t() @ rows
        self.sizes += rows.abs().sum(0)
        self.largest = torch.maximum(self.largest, rows.abs().amax(0))

    @property
    def mean_size(self) -> Tensor:
        """``[in]`` float32, the mean of |x|."""
        return (self.sizes / self.count).float()


@torch.no_grad()
def blocks_with_inputs(model: Transformer, ids: Tensor) -> Iterator[list[tuple[Stage, Inputs]]]:
    """Yield the stages of each block with their inputs, blocks in the order of the pass.

    The caller may change a block before it takes the next one, whose inputs then come from the changed block.

    Args:
        model: as ``check_calibration`` requires it.
        ids: ``[B, T]`` int64.

    Raises:
        ValueError: inputs are not finite; the message names the layer.

    Cost: two passes over the ids, and 2 * B * T * in^2 operations for a stage; memory of one residual stream
        ``[B, T, D]``, two while a block runs, and the Gram matrices of one block.
    """
    parts = torch.split(ids.to(model.device), max(1, _TOKENS_AT_ONCE // ids.shape[1]))
    streams: list[Tensor | None] = [None] * len(parts)
    for number in range(model.num_layers):
        stages = stages_of(model, number)
        with _gathering(stages) as gathered:
            for part, stream in zip(parts, streams, strict=True):
                model.streams(part, (number, number + 1), stream)
        found = list(zip(stages, gathered, strict=True))
        for stage, inputs in found:
            _check_finite(stage, inputs)
        yield found
        given = zip(parts, streams, strict=True)
        streams = [model.streams(part, (number, number + 1), stream)[0] for part, stream in given]


@contextmanager
def _gathering(stages: tuple[Stage, ...]) -> Iterator[list[Inputs]]:
    """Gather the inputs of stages while their block runs."""
    gathered, hooks = [], []
    for stage in stages:
        layer = stage.layers[stage.name]
        inputs = Inputs.none(layer.in_features, layer.weight.device if layer.weight is not None else None)
        gathered.append(inputs)

        def take(_: Any, arguments: tuple[Tensor, ...], inputs: Inputs = inputs) -> None:
            inputs.add(arguments[0])

        hooks.append(layer.register_forward_pre_hook(take))
    try:
        yield gathered
    finally:
        for hook in hooks:
            hook.remove()


def _check_finite(stage: Stage, inputs: Inputs) -> None:
    if not bool(inputs.gram.isfinite().all()):
        raise ValueError(
            f"{stage.name}: its inputs on the calibration ids, or their squares, are NaN or infinite; mend the "
            "checkpoint, whose embeddings, norms or biases may be so"
        )
