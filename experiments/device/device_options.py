"""The command line of the device's experiment."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.device.device_models import SHAPES
from experiments.harness.arguments import DTYPES, PROMPTS
from experiments.harness.options import option, parse_options

PARTS = ("agreement", "products", "attention", "passes", "decoding", "identity")


@dataclass(frozen=True)
class Options:
    """What was asked for."""

    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", choices=PARTS)
    device: str = option("cuda", "cuda, cuda:1, ...; cpu tries the program, not a device")
    oracle: str = option("code", "whose texts and scores are compared with the CPU's")
    prompts: str = option(str(PROMPTS), "that the oracle goes on from (the shipped ones)")
    shapes: tuple[str, ...] = option(("1b", "8b"), "of passes, random weights", choices=SHAPES)
    dtype: str = option("bfloat16", "of these", choices=DTYPES)
    batch_sizes: tuple[int, ...] = option((1, 8, 32), "rows of a pass")
    widths: tuple[int, ...] = option((1, 2, 4, 8, 16, 32), "nodes a row")
    contexts: tuple[int, ...] = option((1024, 8192), "tokens in the cache")
    num_prompts: int = option(8, "decoded; repeated if they do not fill a batch")
    new_tokens: int = option(64, "a prompt")
    draft: str = option("code-draft", "model that drafts for the oracle, to compare texts")
    identity_prompts: int = option(64, "of the texts compared, repeated likewise")
    identity_tokens: int = option(1600, "a prompt, of the texts compared")
    rounds: int = option(3, "in which everything runs; medians count")
    repeats: int = option(20, "passes a round at most")
    out: Path = option("runs/device", "folder of the figures", type=Path)
    fresh: bool = option(False, "measure again what is there")

    @property
    def place(self) -> torch.device:
        """Where everything is measured."""
        return torch.device(self.device)


def parse(argv: Sequence[str] | None, description: str | None) -> Options:
    """Return what is asked for; the width 1 is among the widths.

    Raises:
        SystemExit: an argument cannot be, or there is no such device, with the reason.
    """

    def with_width_1(values: dict[str, Any]) -> dict[str, Any]:
        return {**values, "widths": sorted({1, *values["widths"]})}

    return parse_options(Options, description, argv, with_width_1, _problem)


def _problem(options: Options) -> str | None:
    if options.place.type != "cuda" or torch.cuda.is_available():
        return None
    return f"--device {options.device}: this machine or this build of torch has no CUDA; give --device cpu"
