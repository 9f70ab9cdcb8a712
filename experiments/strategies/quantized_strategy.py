"""The oracle's own weights in fewer bits draft, on its own cache."""

from typing import get_args

import drafts
from experiments.harness.models import HF, load_model
from experiments.strategies.strategy import Option, Settings, Strategy, depth
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import WeightType
from specdec import DraftSource, Oracle

KINDS = get_args(WeightType)


def weight_type(text: str) -> str:
    """Return the name of a type of weights.

    Raises:
        ValueError: there is none of that name.
    """
    if text not in KINDS:
        raise ValueError(f"expected one of {', '.join(KINDS)}, got {text!r}")
    return text


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe; its view is read from the oracle's own checkpoint."""
    if settings["oracle"].startswith(HF):
        raise ValueError("quantized: weights of few bits are made of a transformer of ours, not of hf: models")
    kind = settings["draft_weights"]
    # A cache is read by the backend that filled it, which the oracle may have chosen by itself.
    backend = oracle.backend if isinstance(oracle, LoadedOracle) else settings["backend"]
    try:
        view = load_model(settings["oracle"], {**settings, "weights": kind, "backend": backend})
    except ValueError as error:
        raise ValueError(f"quantized: --draft-weights {kind}: {error}") from error
    return drafts.Quantized(oracle, view, num_draft_tokens=settings["num_draft_tokens"])


STRATEGY = Strategy(
    "quantized",
    (
        depth(3),
        Option("draft-weights", "int8", weight_type, f"the view's linear layers: {', '.join(KINDS)}"),
    ),
    build,
    needs_model="drafts with the oracle's own weights",
)
