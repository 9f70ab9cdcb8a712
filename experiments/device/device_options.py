"""The command line of the device's experiment."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import torch

from exactspec.parser import Parser
from experiments.harness.arguments import DTYPES, PROMPTS, freeze, positive

PARTS = ("agreement", "products", "attention", "passes", "decoding", "identity")


@dataclass(frozen=True)
class Options:
    """What was asked for: see the command line."""

    parts: tuple[str, ...]
    device: str
    oracle: str
    prompts: str
    shapes: tuple[str, ...]
    dtype: str
    batch_sizes: tuple[int, ...]
    widths: tuple[int, ...]
    contexts: tuple[int, ...]
    num_prompts: int
    new_tokens: int
    draft: str
    identity_prompts: int
    identity_tokens: int
    rounds: int
    repeats: int
    out: Path
    fresh: bool

    @property
    def place(self) -> torch.device:
        """Where everything is measured."""
        return torch.device(self.device)


def parse(argv: Sequence[str] | None, description: str | None, shapes: Sequence[str]) -> Options:
    """Return what is asked for; the width 1 is among the widths.

    Raises:
        SystemExit: an argument cannot be, or there is no such device, with the reason.
    """
    parser = Parser(description)
    add = parser.add_argument
    add("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="what to measure (all)")
    add("--device", default="cuda", help="cuda, cuda:1, ...; cpu tries the program, not a device (%(default)s)")
    add("--oracle", default="code", help="whose texts and scores are compared with the CPU's (%(default)s)")
    add("--prompts", default=str(PROMPTS), help="that the oracle goes on from (the shipped ones)")
    add("--shapes", choices=shapes, nargs="+", default=["1b", "8b"], help="of passes, random weights (1b 8b)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="of these (%(default)s)")
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8, 32], help="rows of a pass (1 8 32)")
    add("--widths", type=positive, nargs="+", default=[1, 2, 4, 8, 16, 32], help="nodes a row (1 2 4 8 16 32)")
    add("--contexts", type=positive, nargs="+", default=[1024, 8192], help="tokens in the cache (1024 8192)")
    add("--num-prompts", type=positive, default=8, help="decoded; repeated if they do not fill a batch (%(default)s)")
    add("--new-tokens", type=positive, default=64, help="a prompt (%(default)s)")
    add("--draft", default="code-draft", help="model that drafts for the oracle, to compare texts (%(default)s)")
    add("--identity-prompts", type=positive, default=64, help="of the texts compared, repeated likewise (%(default)s)")
    add("--identity-tokens", type=positive, default=1600, help="a prompt, of the texts compared (%(default)s)")
    add("--rounds", type=positive, default=3, help="in which everything runs; medians count (%(default)s)")
    add("--repeats", type=positive, default=20, help="passes a round at most (%(default)s)")
    add("--out", type=Path, default=Path("runs/device"), help="folder of the figures (%(default)s)")
    add("--fresh", action="store_true", help="measure again what is there")
    values = vars(parser.parse_args(argv))
    values["widths"] = sorted({1, *values["widths"]})
    if torch.device(values["device"]).type == "cuda" and not torch.cuda.is_available():
        parser.error(f"--device {values['device']}: this machine or this build of torch has no CUDA; give --device cpu")
    return Options(**{f.name: freeze(values[f.name]) for f in fields(Options)})
