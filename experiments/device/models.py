"""The models that are measured, eagerly and in graphs on the same weights, and how a device is timed."""

from collections.abc import Callable
from functools import partial

import torch

from experiments.bench_oracle.models import SHAPES as SMALL
from experiments.bench_oracle.rounds import repeated
from oracles.config import RopeScaling, TransformerConfig
from oracles.graphed import GraphedTransformer
from oracles.transformer import Transformer

_SCALING = RopeScaling("llama3", 32.0)
_LLAMA = {"rope_theta": 500000.0, "max_context": 32768, "num_kv_heads": 8}
# Ignored below: values of several types, spread from a dictionary.
SHAPES = {
    "tiny": SMALL["tiny"],
    "110m": SMALL["110m"],
    "1b": TransformerConfig(128256, 2048, 16, 32, 8192, **_LLAMA, tie_embeddings=True, rope_scaling=_SCALING),  # type: ignore[arg-type]
    "8b": TransformerConfig(128256, 4096, 32, 32, 14336, **_LLAMA),  # type: ignore[arg-type]
}


def random_models(shape: str, dtype: torch.dtype, device: torch.device) -> dict[str, Transformer | GraphedTransformer]:
    """Return backend -> a model of this shape, both on the same random weights."""
    with torch.device("meta"):
        model = Transformer(SHAPES[shape], seed=None)
    model = model.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(0.0, 0.02, generator=generator)
    model.pack()
    return {"eager": model, "graphed": GraphedTransformer(model)}


def finished(action: Callable[[], object], device: torch.device) -> None:
    """Run something, and wait for the device to have done it."""
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def seconds_of(action: Callable[[], object], device: torch.device, most: int) -> float:
    """Return the median seconds of some calls, each waited for, after one that warms up."""
    return repeated(partial(finished, action, device), most)
