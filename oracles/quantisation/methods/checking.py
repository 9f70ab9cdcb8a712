"""Check what calibration requires of a model and of ids, before anything is computed."""

import torch
from torch import Tensor

from oracles.quantisation.methods.stages import block_of, stages_of
from oracles.transformer.eager import Transformer

# Ids of a passage that tells one input of a layer from another.
_PASSAGE = 4


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
