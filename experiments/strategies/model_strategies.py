"""A small transformer drafts: chains, trees, in another vocabulary, or for as long as a token is worth its cost."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drafts
from exactspec.parser import positive
from experiments.harness.models import draft_model
from experiments.harness.rule_choice import rule_for, sampling_of
from experiments.strategies.head_strategies import HEAD, HEAD_SOURCES, HEAD_WEIGHTS, head_for
from experiments.strategies.strategy import MODEL_OPTIONS, TRAIN_ON, Option, Settings, Strategy, depth, one_of
from experiments.strategies.text_strategies import training_files, training_sequences
from experiments.strategies.tree_shapes import FORMS, shape_of, tree_source
from specdec import Calibration, DraftSource, Fixed, Oracle, Threshold, calibrate
from specdec.drafting.lengths import LengthPolicy


def _chains(settings: Settings, oracle: Oracle) -> DraftSource:
    return drafts.SmallTransformer(draft_model(settings), num_draft_tokens=settings["num_draft_tokens"])


def _trees(settings: Settings, oracle: Oracle) -> DraftSource:
    return tree_source(draft_model(settings), shape_of(settings["shape"]))


def _other_vocabulary(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source; the vocabularies are compared here, before a run begins, see ``drafts.OtherVocabulary``."""
    source = drafts.OtherVocabulary(draft_model(settings), settings["num_draft_tokens"])
    source.shared_pieces(oracle)
    return source


SMALL_TRANSFORMER = Strategy("small_transformer", (depth(4), *MODEL_OPTIONS), _chains)
OTHER_VOCABULARY = Strategy("other_vocabulary", (depth(3), *MODEL_OPTIONS), _other_vocabulary)
_SHAPE = Option("shape", "paths:0.0,0.1,0.2,1.0,2.0", str, f"shape of the tree: {FORMS}")
TREE = Strategy("tree", (_SHAPE, *MODEL_OPTIONS), _trees)


CALIBRATING = (
    replace(
        TRAIN_ON,
        help="text files or folders of shards to calibrate on, separated by commas (the corpus's training modules)",
    ),
    Option("calibrate-prompts", 12, positive, "excerpts of these to decode for the calibration"),
)


# Tokens of the drafts that a calibration measures, if there can be so many.
_CALIBRATED = 8


def calibration(settings: Settings, oracle: Oracle, make_source: Callable[[LengthPolicy], DraftSource]) -> Calibration:
    """Return what drafted tokens are worth and cost on this machine, on excerpts of the files to train on.

    The options it reads are ``CALIBRATING``; measured with the sampling and the batch size of the run, on drafts of
    eight tokens, or of all that a head's block has laws for.
    """
    sequences = training_sequences(training_files(settings), oracle.tokenizer)
    step = max(len(sequences) // settings["calibrate_prompts"], 1)
    prompts = [_excerpt(sequence) for sequence in sequences[::step]][: settings["calibrate_prompts"]]
    source = make_source(Fixed(1))
    rule, size = rule_for(settings["rule"], source), settings["batch_size"]
    longest = min(_CALIBRATED, getattr(getattr(source, "head", None), "num_laws", _CALIBRATED))
    how: dict[str, Any] = {"sampling": sampling_of(settings), "rule": rule, "kernels": settings["kernels"]}
    return calibrate(oracle, make_source, prompts, num_draft_tokens=longest, max_new_tokens=48, batch_size=size, **how)


def _excerpt(sequence: Path | list[int]) -> str | list[int]:
    """Return a part of a training text to go on from."""
    if isinstance(sequence, list):
        return sequence[: len(sequence) // 2]
    text = sequence.read_text(encoding="utf-8")
    # From the middle of a file: heads are licences and imports.
    return text[len(text) // 2 :][:600]


def confident_source(settings: Settings, oracle: Oracle) -> Callable[[LengthPolicy], DraftSource]:
    """Return what makes a source with a length policy: of the draft model, or of the head that "drafter" names."""
    name = settings["drafter"]
    drafter = draft_model(settings) if name == "model" else head_for(name, settings, oracle, "threshold")
    source = drafts.SmallTransformer if name == "model" else HEAD_SOURCES[name]

    def make_source(length: LengthPolicy) -> DraftSource:
        return source(drafter, length=length)

    return make_source


def fixed_source(make_source: Callable[[LengthPolicy], DraftSource], length: int, option: str) -> DraftSource:
    """Return a source of drafts of one length.

    Raises:
        ValueError: the length is none, or too much for the drafter, with the option that gave it; or ``make_source``
            makes nothing of any length.
    """
    make_source(Fixed(0))
    try:
        return make_source(Fixed(length))
    except ValueError as error:
        raise ValueError(f"{option}: {error}") from error


def _threshold(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    make_source, longest = confident_source(settings, oracle), settings["num_draft_tokens"]
    fixed_source(make_source, longest, "--num-draft-tokens")  # before the calibration, which takes its time
    return make_source(Threshold(calibration(settings, oracle, make_source), max_draft_tokens=longest))


THRESHOLD = Strategy(
    "threshold",
    (
        depth(16),
        Option("drafter", "model", one_of("model", *HEAD_SOURCES), "what drafts, and whose confidence counts"),
        *MODEL_OPTIONS,
        HEAD,
        HEAD_WEIGHTS,
        *CALIBRATING,
    ),
    _threshold,
    needs_model="measures the times of the oracle's passes",
)
