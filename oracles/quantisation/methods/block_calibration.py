"""Calibration, block by block: a block's inputs are gathered, then the block is changed, then comes the next one."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.stages import Stage, block_of, stages_of
from oracles.transformer.eager import Transformer

# Positions in a pass.
_TOKENS_AT_ONCE = 4096
# Ids of a passage that tells one input of a layer from another.
_PASSAGE = 4


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


# The stages of a block, each with the inputs that it takes.
StageInputs = Sequence[tuple[Stage, Inputs]]


@torch.no_grad()
def calibrate_blocks(
    change: Callable[[StageInputs, Format], None], model: Transformer, format: Format, ids: Tensor
) -> None:
    """Quantise a model in place: each block after it was changed by its own inputs, the head to the nearest.

    A block's inputs come from the changed blocks before it and the unchanged embeddings; the inputs of all its layers
    are gathered before any of them is changed. Layers that ``change`` leaves unquantised are rounded to the nearest.

    Args:
        change: changes or quantises the layers of a block, in place.
        model: as it trains, in float32.
        format: to round to.
        ids: ``[B, T]`` int64 of text for calibration, never of text that measures.

    Raises:
        ValueError: as in ``check_calibration``; inputs are not finite; as in ``Transformer.quantise``.

    Cost: that of ``blocks_with_inputs``, and of ``change`` for each block.
    """
    check_calibration(model, ids)
    for block in blocks_with_inputs(model, ids):
        change(block, format)
    model.quantise(format)


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


def check_calibration(model: Transformer, ids: Tensor) -> None:
    """Refuse a model or ids that no method can work with.

    Args:
        model: as it trains, in float32, no layer of a block quantised or packed.
        ids: ``[B, T]`` of the model's vocabulary, T at most ``max_context``, with at least as many different passages
            of four ids as a layer has inputs. An error of outputs in directions that no input takes counts for nothing,
            so on less text a method makes other text worse than rounding to the nearest does.

    Raises:
        ValueError: they are not so, or a weight is not finite; the message names the layer and what to do.
    """
    _check_ids(ids, model.vocab_size, model.max_context)
    if model.dtype != torch.float32:
        has = str(model.dtype).removeprefix("torch.")
        raise ValueError(f"calibration computes in float32, and the model is {has}: load it with dtype='float32'")
    widest = 0
    for number in range(model.num_layers):
        if block_of(model, number).self_attn.qkv_proj is not None:
            raise ValueError("the model was packed and has no plain weights left: calibrate it before it is packed")
        for stage in stages_of(model, number):
            for name, layer in stage.layers.items():
                _check_weight(name, layer.weight)
                widest = max(widest, layer.in_features)
    size = min(_PASSAGE, ids.shape[1])
    if (count := len(set(map(tuple, ids.unfold(1, size, 1).flatten(0, 1).tolist())))) < widest:
        told = f"ids hold {count} different passages of {size} ids, and a layer has {widest} inputs"
        raise ValueError(f"{told}: give more text, or round to the nearest, which is better than so little")


def _check_ids(ids: Tensor, vocab_size: int, max_context: int) -> None:
    shape = list(ids.shape)
    if ids.dim() != 2 or ids.numel() == 0 or ids.dtype not in (torch.int64, torch.int32):
        raise ValueError(f"ids are {shape} {ids.dtype}; give [B, T] int64 with at least one id of calibration text")
    if ids.shape[1] > max_context:
        raise ValueError(f"ids are {shape}, and the model has {max_context} positions: cut them into shorter rows")
    lowest, highest = int(ids.min()), int(ids.max())
    if lowest < 0 or highest >= vocab_size:
        wrong = lowest if lowest < 0 else highest
        raise ValueError(f"ids hold {wrong}, and the model's are 0..{vocab_size - 1}: encode with its own tokenizer")


def _check_weight(name: str, weight: Tensor | None) -> None:
    if weight is None:
        raise ValueError(f"{name} was quantised or packed and has no plain weight left: calibrate a model before")
    if weight.dtype != torch.float32:
        raise ValueError(f"{name} is {str(weight.dtype).removeprefix('torch.')}: widen the model with .float()")
    if not bool(weight.isfinite().all()):
        raise ValueError(f"{name}: a weight is NaN or infinite; mend the checkpoint")
