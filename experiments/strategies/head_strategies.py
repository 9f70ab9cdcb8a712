"""Heads draft from the oracle's hidden states: EAGLE-3, DFlash and DSpark, Medusa."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, get_args

import drafts
import oracles
from experiments.strategies.strategy import (
    Option,
    Settings,
    Strategy,
    default_of,
    depth,
    head_of,
    one_of,
    yes_or_no,
)
from experiments.strategies.tree_shapes import FORMS, shape_of, tree_source
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import WeightType
from oracles.heads.head_loading import options_of
from oracles.huggingface import HuggingFaceLM
from specdec import DraftSource, Oracle
from specdec.drafting import check_drafter


def head_for(name: str, settings: Settings, oracle: Oracle, strategy: str | None = None) -> Any:
    """Return the head that the source of a name drafts with.

    Args:
        name: "eagle3", "block_drafter" or "medusa".
        settings: "head" and "head_weights", and what else of the strategy's own options is there.
        oracle: that it drafts for.
        strategy: the name of the one whose options these are; None: ``name``.

    Raises:
        ValueError: the oracle gives no hidden states; there is no such head, or it is of another kind.
    """
    if not isinstance(oracle, LoadedOracle | HuggingFaceLM):
        raise ValueError(f"{name}: its head reads hidden states, which this oracle does not give: leave it out")
    chosen = head_of(settings, name)
    asked: dict[str, Any] = {"aux_layers": settings.get("aux_layers"), "check": settings.get("check_layers", False)}
    try:
        if "head_weights" in settings:
            asked["weights"] = _weights(strategy or name, settings, chosen)
        head = oracles.load_head(chosen, oracle, **asked)
        check_drafter(head, name)
    except ValueError as error:
        raise ValueError(f"{name}: --head {chosen} cannot be used: {error}") from error
    return head


def _weights(strategy: str, settings: Settings, head: str) -> WeightType | None:
    """Return the type of a head's weights; a format that has no choice of it is only asked for one that was given."""
    weights: WeightType | None = settings["head_weights"]
    is_given = weights not in (None, default_of(strategy, HEAD_WEIGHTS, settings))
    return (weights or settings["weights"]) if is_given or "weights" in options_of(head) else None


def _build(
    name: str, source: Callable[..., DraftSource], length: Option, settings: Settings, oracle: Oracle
) -> DraftSource:
    """Return the source that the settings describe; a shape excludes a length, unless that is the default."""
    text = settings.get("shape")
    if text is not None and (asked := settings[length.key]) != default_of(name, length, settings):
        raise ValueError(
            f"{name}: --shape {text} says how deep trees are: give it or --{length.name} {asked}, not both"
        )
    head = head_for(name, settings, oracle)
    shape = None if text is None else shape_of(text)
    try:
        if shape is None:
            return source(head, num_draft_tokens=settings[length.key])
        return tree_source(head, shape, source)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error


def _strategy(name: str, source: Callable[..., DraftSource], kind: str, *options: Option) -> Strategy:
    head = Option("head", None, str, f"{kind} for this oracle: embedded name or folder (what ships for it)")
    shape = Option("shape", None, str, f"trees in place of chains: {FORMS}")
    first, *more = options
    build_one = partial(_build, name, source, first)
    return Strategy(
        name, (first, head, shape, *more), build_one, needs_model="drafts from the oracle's hidden states", asks="head"
    )


_ALL = Option("num-draft-tokens", None, int, "tokens to draft per step (as many as the head has laws for)")
HEAD_WEIGHTS = Option(
    "head-weights", None, one_of(*get_args(WeightType)), "weight type of a head's layers (that of --weights)"
)
HEAD = Option("head", None, str, "head for this oracle: embedded name or folder (what ships for it)")
# What drafts chains token by token, and may stand beside others or stop by its confidence.
HEAD_SOURCES: Mapping[str, Callable[..., DraftSource]] = {
    "eagle3": drafts.Eagle3,
    "block_drafter": drafts.BlockDrafter,
}
_LAYERS = Option(
    "aux-layers",
    None,
    one_of("inputs", "outputs"),
    "what the config's layers mean: inputs or outputs (as its format says)",
)
_CHECK = Option("check-layers", False, yes_or_no, "try the neighbouring layers too, and warn: yes or no")

EAGLE3 = _strategy("eagle3", drafts.Eagle3, "EAGLE-3 head", depth(5), HEAD_WEIGHTS, _LAYERS, _CHECK)
BLOCK_DRAFTER = _strategy("block_drafter", drafts.BlockDrafter, "DFlash or DSpark head", _ALL, HEAD_WEIGHTS, _LAYERS)
MEDUSA = _strategy("medusa", drafts.Medusa, "Medusa's heads", _ALL)
