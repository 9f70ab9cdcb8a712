"""The command line of the limits."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, get_args

from exactspec.parser import Parser
from experiments.bench.oracle.benchmark_models import SHAPES
from experiments.harness.arguments import positive
from oracles.checkpoints.placement import WeightType
from oracles.quantisation import INT8_DYNAMIC


@dataclass(frozen=True)
class Options:
    """What was asked for: see the command line."""

    oracle: str
    shape: str | None
    storage: str
    backend: str | None
    batch_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    window: int
    prefill: int
    chunks: tuple[int, ...]
    alphas: tuple[float, ...]
    draft_cost: float
    rounds: int
    repeats: int
    threads: int | None
    out: Path

    @property
    def positions(self) -> int:
        """Return the positions that a model must serve for all of this."""
        return max(max(self.contexts) + max(self.widths), self.prefill)


def share(text: str) -> float:
    """Return a number in [0, 1]."""
    value = float(text)
    if not 0.0 <= value <= 1.0:
        raise argparse.ArgumentTypeError(f"must lie in [0, 1], got {value}")
    return value


def cost(text: str) -> float:
    """Return a number >= 0."""
    value = float(text)
    if not 0.0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"must be finite and at least 0, got {value}")
    return value


def parse(argv: Sequence[str] | None, description: str | None) -> Options:
    """Return what is asked for; numbers ascend, each once, and the width 1 is among the widths.

    Raises:
        SystemExit: an argument cannot be, with the reason.
    """
    parser = Parser(description)
    add, subject = parser.add_argument, parser.add_mutually_exclusive_group()
    subject.add_argument("--oracle", default="code", help="embedded checkpoint or checkpoint directory (%(default)s)")
    subject.add_argument("--shape", choices=SHAPES, help="random weights of this shape, in place of an oracle")
    add(
        "--storage",
        choices=[name for name in get_args(WeightType) if name != INT8_DYNAMIC.name],
        default="bfloat16",
        help="of the weights of --shape, if native (%(default)s)",
    )
    add("--backend", choices=("native", "eager"), help="of the passes (native if it can run, else eager)")
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8], help="rows of a pass (1 8)")
    add("--widths", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32], help="nodes a row (1 2 4 8 16 32)")
    add("--contexts", type=positive, nargs="+", default=[128, 1024, 4096, 8192], help="(128 1024 4096 8192)")
    add("--window", type=positive, default=1024, help="positions of the sliding window (%(default)s)")
    add("--prefill", type=positive, default=8192, help="tokens of the prompt that is cut into chunks (%(default)s)")
    add("--chunks", type=positive, nargs="+", default=[64, 128, 512, 2048], help="their sizes (64 128 512 2048)")
    add("--alphas", type=share, nargs="+", default=[0.5, 0.6, 0.7, 0.8, 0.9], help="acceptance rates (0.5 .. 0.9)")
    add("--draft-cost", type=cost, default=0.1, help="of a draft token, over a pass of one node (%(default)s)")
    add("--rounds", type=positive, default=3, help="in which every pass runs; medians count (%(default)s)")
    add("--repeats", type=positive, default=10, help="passes a round at most (%(default)s)")
    add("--threads", type=positive, help="torch threads (torch's own choice)")
    add("--out", type=Path, default=Path("runs/limits"), help="folder of pictures and JSON (%(default)s)")
    values = vars(parser.parse_args(argv))
    values["widths"].append(1)
    return Options(**{f.name: _freeze(values[f.name]) for f in fields(Options)})


def _freeze(value: Any) -> Any:
    """Return a list as a tuple in ascending order without repetitions."""
    return tuple(sorted(set(value))) if isinstance(value, list) else value
