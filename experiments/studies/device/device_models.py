"""The command line of the device's experiment, and the models that are measured."""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

import oracles
from experiments.bench.oracle.benchmark_models import SHAPES as SMALL
from experiments.harness.arguments import PROMPTS
from experiments.harness.options import option, parse_options
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import DTYPES, checkpoint_place
from oracles.graphed import GraphedTransformer
from oracles.transformer.config import RopeScaling, TransformerConfig
from oracles.transformer.eager import Transformer

_SCALING = RopeScaling("llama3", 32.0)
_LLAMA = {"rope_theta": 500000.0, "max_context": 32768, "num_kv_heads": 8}
# Ignored below: values of several types, spread from a dictionary.
SHAPES = {
    "tiny": SMALL["tiny"],
    "110m": SMALL["110m"],
    "1b": TransformerConfig(128256, 2048, 16, 32, 8192, **_LLAMA, tie_embeddings=True, rope_scaling=_SCALING),  # type: ignore[arg-type]
    "8b": TransformerConfig(128256, 4096, 32, 32, 14336, **_LLAMA),  # type: ignore[arg-type]
}


# How oracles are loaded that are compared, by name; the last one may find that it cannot be on this device.
LOADED: dict[str, dict[str, Any]] = {
    "eager": {"backend": "eager"},
    "graphed": {"backend": "graphed"},
    "bitwise": {"backend": "graphed", "bitwise": True},
}


def load_modes(
    modes: Mapping[str, Mapping[str, Any]], name: str, dtype: str | None, device: str
) -> dict[str, LoadedOracle]:
    """Return mode -> the oracle of this name, loaded so; modes that cannot run here are only named on stderr."""
    made = {mode: _try_load(mode, partial(oracles.load, name, dtype, device, **given)) for mode, given in modes.items()}
    return {mode: oracle for mode, oracle in made.items() if oracle is not None}


def random_models(shape: str, dtype: torch.dtype, device: torch.device) -> dict[str, LoadedOracle]:
    """Return mode -> a model of this shape, all on the same random weights; modes that cannot run here are left out."""
    with torch.device("meta"):
        model = Transformer(SHAPES[shape], seed=None)
    model = model.to(dtype).to_empty(device=device).eval()
    generator = torch.Generator(device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.fill_(1.0) if "norm" in name else parameter.normal_(0.0, 0.02, generator=generator)
    model.pack()
    models: dict[str, LoadedOracle] = {"eager": model, "graphed": GraphedTransformer(model)}
    bitwise = _try_load("bitwise", partial(GraphedTransformer, model, bitwise=True))
    return models if bitwise is None else models | {"bitwise": bitwise}


def _try_load(mode: str, make: Callable[[], LoadedOracle]) -> LoadedOracle | None:
    try:
        return make()
    except ValueError as error:
        if mode != "bitwise":
            raise
        print(f"{mode}: {error}", file=sys.stderr)
        return None


PARTS = ("agreement", "attention", "passes", "decoding", "identity")


@dataclass(frozen=True)
class DeviceOptions:
    """What was asked for."""

    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", choices=PARTS)
    device: str = option("cuda", "cuda, cuda:1, ...; cpu tries the program, not a device")
    oracle: str = option("code", "oracle whose texts and scores are compared with the CPU's")
    prompts: str = option(str(PROMPTS), "prompts that the oracle goes on from (the shipped ones)")
    shapes: tuple[str, ...] = option(("1b", "8b"), "models to time, with random weights", choices=SHAPES)
    dtype: str = option("bfloat16", "dtype of these models", choices=DTYPES)
    batch_sizes: tuple[int, ...] = option((1, 8, 32), "rows of a pass")
    widths: tuple[int, ...] = option((1, 2, 4, 8, 16, 32), "nodes a row")
    contexts: tuple[int, ...] = option((1024, 8192), "tokens in the cache")
    num_prompts: int = option(8, "prompts to decode; repeated if they do not fill a batch")
    new_tokens: int = option(64, "new tokens per prompt")
    draft: str = option("code-draft", "model that drafts for the oracle, to compare texts")
    identity_prompts: int = option(64, "prompts of the texts compared, repeated likewise")
    identity_tokens: int = option(1600, "new tokens per prompt of the texts compared")
    rounds: int = option(3, "rounds, in each of which everything runs; medians count")
    repeats: int = option(20, "most passes of a round")
    out: Path = option("runs/device", "folder of the figures", type=Path)
    fresh: bool = option(False, "measure again what was measured before")

    @property
    def place(self) -> torch.device:
        """Where everything is measured."""
        return checkpoint_place(self.device)


def parse(argv: Sequence[str] | None, description: str | None) -> DeviceOptions:
    """Return what is asked for; the widths always include 1.

    Raises:
        SystemExit: an argument cannot be, or there is no such device, with the reason.
    """

    def with_width_1(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "widths": sorted({1, *values["widths"]})}

    return parse_options(DeviceOptions, description, argv, with_width_1, _problem)


def _problem(options: DeviceOptions) -> str | None:
    try:
        place = options.place
    except ValueError as error:
        return f"--device: {error}"
    if place.type != "cuda" or torch.cuda.is_available():
        return None
    return f"--device {options.device}: this machine or this build of torch has no CUDA; give --device cpu"
