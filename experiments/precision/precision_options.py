"""The command line of the study of precisions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.harness.options import option
from experiments.inference_stack.study_frame import StudyOptions, parse_study
from experiments.precision.precision_arms import ARMS, DRAFTING, VIEWS, not_run, select_names

TEXT, BITS, TIME, DRAFTS = "text", "bits", "time", "drafts"
PARTS = (TEXT, BITS, TIME, DRAFTS)
SUBJECTS = ("arithmetic", "code")
# Options on which no figure depends, beside those of all studies.
NOT_MEASURED = ("draft_batches", "not_run", "views", "lengths", "draft_subjects")


@dataclass(frozen=True)
class Options(StudyOptions):
    """What was asked for; ``not_run`` says which of all arms lack a package."""

    subject: str = option("arithmetic", "what the oracles decode", choices=SUBJECTS)
    arms: tuple[str, ...] = option(None, "precisions (all whose packages are installed)", nargs="+", metavar="ARM")
    not_run: tuple[str, ...] = ()
    parts: tuple[str, ...] = option(PARTS, "what to measure (all)", choices=PARTS)
    passages: int = option(120, "of held-out code, for bits per byte")
    draft_subjects: tuple[str, ...] = option(SUBJECTS, "what is drafted (all)", choices=SUBJECTS)
    draft_batches: tuple[int, ...] = option((1, 8), "batch sizes with drafts")
    draft_prompts: int = option(32, "that are decoded with drafts")
    views: tuple[str, ...] = option(DRAFTING, f"that draft ({', '.join(DRAFTING)})", metavar="ARM")
    lengths: tuple[int, ...] = option((4, 8), "tokens of a draft")

    @property
    def draft_names(self) -> list[str]:
        """The names of arms that draft: a view and a length."""
        return [f"{view}, {length} ahead" for view in self.views for length in self.lengths]


def parse(argv: Sequence[str] | None, description: str | None) -> Options:
    """Return what is asked for.

    Raises:
        ValueError: an arm that is not there, or whose package is not installed.
    """

    def with_arms(values: dict[str, Any]) -> dict[str, Any]:
        arms, lacking = _arms(values["arms"])
        views = select_names(values["views"], VIEWS, "--views")
        return {**values, "arms": arms, "not_run": lacking, "views": views}

    return parse_study(Options, "precision", description, argv, with_arms)


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
