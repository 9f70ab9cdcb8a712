"""A small transformer drafts for as long as a token is worth its cost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drafts
from experiments.harness.models import draft_model
from experiments.harness.rule_choice import rule_for, sampling_of
from experiments.strategies.ngram_strategy import training_files, training_sequences
from experiments.strategies.strategy import MODEL_OPTIONS, TRAIN_ON, Option, Settings, Strategy, depth
from specdec import Calibration, DraftSource, Fixed, Oracle, Threshold, calibrate
from specdec.drafting.lengths import LengthPolicy

CALIBRATING = (
    replace(
        TRAIN_ON,
        help="text files or folders of shards to calibrate on, separated by commas (the corpus's training modules)",
    ),
    Option("calibrate-prompts", 12, int, "excerpts of them that are decoded for the calibration"),
)


def calibration(settings: Settings, oracle: Oracle, make_source: Callable[[LengthPolicy], DraftSource]) -> Calibration:
    """Return what drafted tokens are worth and cost on this machine, on excerpts of the files to train on.

    The options it reads are ``CALIBRATING``; measured with the sampling and the batch size of the run.
    """
    sequences = training_sequences(training_files(settings), oracle.tokenizer)
    step = max(len(sequences) // settings["calibrate_prompts"], 1)
    prompts = [_excerpt(sequence) for sequence in sequences[::step]][: settings["calibrate_prompts"]]
    rule, size = rule_for(settings["rule"], make_source(Fixed(1))), settings["batch_size"]
    how: dict[str, Any] = {"sampling": sampling_of(settings), "rule": rule, "kernels": settings["kernels"]}
    return calibrate(oracle, make_source, prompts, max_new_tokens=48, batch_size=size, **how)


def _excerpt(sequence: Path | list[int]) -> str | list[int]:
    """Return a part of a training text to go on from."""
    if isinstance(sequence, list):
        return sequence[: len(sequence) // 2]
    text = sequence.read_text(encoding="utf-8")
    # From the middle of a file: heads are licences and imports.
    return text[len(text) // 2 :][:600]


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    model = draft_model(settings)

    def make_source(length: LengthPolicy) -> DraftSource:
        return drafts.SmallTransformer(model, length=length)

    measured = calibration(settings, oracle, make_source)
    return make_source(Threshold(measured, max_draft_tokens=settings["num_draft_tokens"]))


STRATEGY = Strategy(
    "threshold",
    (depth(16), *MODEL_OPTIONS, *CALIBRATING),
    build,
    needs_model="measures the times of the oracle's passes",
)
