"""The oracle itself drafts: by its first layers, or by its weights in fewer bits."""

from typing import get_args

import drafts
from experiments.harness.models import HF, load_model
from experiments.strategies.strategy import TRAINED_HEAD, Option, Settings, Strategy, depth, head_of, one_of
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import WeightType
from oracles.heads import load_exit_head
from specdec import DraftSource, Oracle


def _early_exit(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    if not isinstance(oracle, LoadedOracle):
        raise ValueError("early_exit: it needs a transformer of ours, whose pass can be cut: leave it out")
    name, k = head_of(settings, "early_exit", f"none, the oracle's own, or {TRAINED_HEAD}"), settings["num_layers"]
    try:
        head = None if name == "none" else load_exit_head(name, oracle)
    except ValueError as error:
        raise ValueError(
            f"early_exit: give --head none, the oracle's own, as {name} cannot be used: {error}"
        ) from error
    if k is None:
        k = max(1, oracle.num_layers // 3) if head is None else head.num_layers
    return drafts.EarlyExit(oracle, k, head, num_draft_tokens=settings["num_draft_tokens"])


EARLY_EXIT = Strategy(
    "early_exit",
    (
        depth(2),
        Option("num-layers", None, int, "layers to draft with (the head's; without a head, a third of the oracle's)"),
        Option("head", None, str, "trained head: embedded name or folder; none: the oracle's own"),
    ),
    _early_exit,
    needs_model="drafts with the oracle's own layers",
)


_KINDS = get_args(WeightType)


def _quantized(settings: Settings, oracle: Oracle) -> DraftSource:
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


QUANTIZED = Strategy(
    "quantized",
    (
        depth(3),
        Option(
            "draft-weights", "int8", one_of(*_KINDS), f"weight type of the view's linear layers: {', '.join(_KINDS)}"
        ),
    ),
    _quantized,
    needs_model="drafts with the oracle's own weights",
)
