"""Models whose linear layers are in the formats of GGUF files."""

import torch
from torch import Tensor, nn

from oracles import Transformer
from oracles.quantisation import STORED, WHOLE, Format, QuantisedWeight
from oracles.transformer.linear import Linear, round_inputs


def rounded_to_stored(weight: Tensor, format: Format) -> QuantisedWeight:
    """Return a weight ``[out, in]`` in a format; of a group without minima the largest weight is the lowest number."""
    rows, inputs = weight.shape
    wide = weight.detach().float()
    groups = nn.functional.pad(wide, (0, -inputs % format.group)).view(rows, -1, format.group)
    if format.minima:
        low, high = groups.amin(dim=2), groups.amax(dim=2)
        scales, minima = ((high - low) / format.largest).half().float(), low.half().float()
        numbers = (groups - minima[..., None]) / scales[..., None].clamp(min=1e-30)
        values = numbers.round().clamp(0, format.largest)
    else:
        most = groups.gather(2, groups.abs().argmax(dim=2, keepdim=True))
        scales, minima = (most[..., 0] / -(format.largest + 1)).half().float(), None
        divided = groups / torch.where(scales == 0, 1, scales)[..., None]
        values = divided.round().clamp(-format.largest - 1, format.largest)
    return QuantisedWeight(values.flatten(1)[:, :inputs].to(torch.int8), scales, format, minima)


def in_format(model: Transformer, name: str) -> Transformer:
    """Return the model with all linear layers, a tied head among them, in a type or format, those of GGUF files too."""
    if name not in STORED | WHOLE:
        return model.store(name)
    format = STORED[name.removesuffix("-int8")]
    tied = model.lm_head is None
    if tied:
        model.lm_head = Linear.of(model.model.embed_tokens.weight)
    for part in model.modules():
        if isinstance(part, Linear):
            part.quantised, part.weight = rounded_to_stored(part.weight, format), None
    if tied:
        model.model.embed_tokens.weight = nn.Parameter(model.lm_head.quantised.dequantise(), requires_grad=False)
    if name in WHOLE:
        round_inputs(model)
    return model
