"""The command line of the study of precisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from exactspec.parser import Parser
from experiments.harness.arguments import freeze, positive
from experiments.limits.limit_options import cost
from experiments.precision.precision_arms import ARMS, DRAFTING, VIEWS, not_run, select_names

TEXT, BITS, TIME, DRAFTS = "text", "bits", "time", "drafts"
PARTS = (TEXT, BITS, TIME, DRAFTS)
# What says where and which figures are kept, and not what they depend on.
NOT_MEASURED = (
    "out",
    "fresh",
    "batches",
    "draft_batches",
    "arms",
    "not_run",
    "views",
    "parts",
    "lengths",
    "draft_subjects",
)


@dataclass(frozen=True)
class Options:
    """What was asked for: see the command line; ``not_run`` says which of all arms lack a package."""

    subject: str
    batches: tuple[int, ...]
    arms: tuple[str, ...]
    not_run: tuple[str, ...]
    parts: tuple[str, ...]
    rounds: int
    warm_ups: int
    round_seconds: float
    num_prompts: int
    gate_prompts: int | None
    passages: int
    draft_subjects: tuple[str, ...]
    draft_batches: tuple[int, ...]
    draft_prompts: int
    views: tuple[str, ...]
    lengths: tuple[int, ...]
    threads: int
    out: Path
    fresh: bool

    @property
    def draft_names(self) -> list[str]:
        """The names of arms that draft: a view and a length."""
        return [f"{view}, {length} ahead" for view in self.views for length in self.lengths]


def parse(argv: Sequence[str] | None, description: str | None) -> Options:
    """Return what is asked for.

    Raises:
        ValueError: an arm that is not there, or whose package is not installed.
    """
    parser = Parser(description)
    add, subjects = parser.add_argument, ("arithmetic", "code")
    add("--subject", choices=subjects, default="arithmetic", help="what the oracles decode (%(default)s)")
    add("--batches", type=positive, nargs="+", default=[1, 8, 32, 128], help="batch sizes (1 8 32 128)")
    add("--arms", nargs="+", metavar="ARM", help="precisions (all whose packages are installed)")
    add("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="what to measure (all)")
    add("--rounds", type=positive, default=10, help="that are timed (%(default)s)")
    add("--warm-ups", type=positive, default=3, help="rounds before them (%(default)s)")
    add("--round-seconds", type=cost, default=0.3, help="a round lasts that long at least (%(default)s)")
    add("--num-prompts", type=positive, default=10_000, help="that the timed rounds draw from (%(default)s)")
    add("--gate-prompts", type=positive, help="whose outputs are compared (all: 3,277 problems of arithmetic)")
    add("--passages", type=positive, default=120, help="of held-out code, for bits per byte (%(default)s)")
    add("--draft-subjects", choices=subjects, nargs="+", default=list(subjects), help="what is drafted (all)")
    add("--draft-batches", type=positive, nargs="+", default=[1, 8], help="batch sizes with drafts (1 8)")
    add("--draft-prompts", type=positive, default=32, help="that are decoded with drafts (%(default)s)")
    add("--views", nargs="+", metavar="ARM", default=list(DRAFTING), help=f"that draft ({', '.join(DRAFTING)})")
    add("--lengths", type=positive, nargs="+", default=[4, 8], help="tokens of a draft (4 8)")
    add("--threads", type=positive, default=torch.get_num_threads(), help="torch threads (torch's own choice)")
    add("--out", type=Path, help="folder for the figures (runs/precision/SUBJECT)")
    add("--fresh", action="store_true", help="drop the figures that lie in --out")
    values: dict[str, Any] = vars(parser.parse_args(argv))
    values["out"] = values["out"] or Path("runs") / "precision" / values["subject"]
    values["arms"], values["not_run"] = _arms(values["arms"])
    values["views"] = select_names(values["views"], VIEWS, "--views")
    return Options(**{name: freeze(value) for name, value in values.items()})


def _arms(names: Sequence[str] | None) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the named precisions in the order of their table (None: all that can run here), and what is left out."""
    missing = not_run(list(ARMS))
    if names is None:
        lines = tuple(f"{name}: not run ({why})." for name, why in missing.items())
        return tuple(name for name in ARMS if name not in missing), lines
    for name in names:
        if name in missing:
            raise ValueError(f"--arms: {name}: {missing[name]}")
    return select_names(names, list(ARMS), "--arms"), ()
