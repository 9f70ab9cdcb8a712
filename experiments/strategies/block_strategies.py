"""Published heads that give the laws of several tokens at once draft: DFlash and DSpark, Medusa."""

from collections.abc import Callable
from functools import partial
from typing import Any

import drafts
import oracles
from experiments.strategies.strategy import Option, Settings, Strategy, head_of, one_of
from experiments.strategies.tree_shapes import FORMS, shape_of
from oracles.checkpoints.loading import LoadedOracle
from oracles.huggingface import HuggingFaceLM
from specdec import DraftSource, Oracle


def build(name: str, source: Callable[..., DraftSource], settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    if not isinstance(oracle, LoadedOracle | HuggingFaceLM):
        raise ValueError(f"{name}: its head reads hidden states, which this oracle does not give: leave it out")
    chosen = head_of(settings, name)
    given: dict[str, Any] = {"num_draft_tokens": settings["num_draft_tokens"]}
    if settings["shape"] is not None:
        shape = shape_of(settings["shape"])
        given = {"tree": shape, "temperature": None if shape.num_kept is None else 0.0}
    try:
        head = oracles.load_head(chosen, oracle, aux_layers=settings.get("aux_layers"))
        return source(head, **given)
    except ValueError as error:
        raise ValueError(f"{name}: --head {chosen} cannot be used: {error}") from error


_DEPTH = Option("num-draft-tokens", None, int, "tokens to draft per step (all that the head has laws for)")
_SHAPE = Option("shape", None, str, f"trees in place of chains: {FORMS}")
_READS = "drafts from the oracle's hidden states"

BLOCK_DRAFTER = Strategy(
    "block_drafter",
    (
        _DEPTH,
        Option("head", None, str, "DFlash or DSpark head for this oracle: embedded name or folder (what ships for it)"),
        _SHAPE,
        Option("aux-layers", None, one_of("inputs", "outputs"), "what the config's layers mean (what its format says)"),
    ),
    partial(build, "block_drafter", drafts.BlockDrafter),
    needs_model=_READS,
    asks="head",
)
MEDUSA = Strategy(
    "medusa",
    (
        _DEPTH,
        Option("head", None, str, "Medusa's heads for this oracle: embedded name or folder (what ships for it)"),
        _SHAPE,
    ),
    partial(build, "medusa", drafts.Medusa),
    needs_model=_READS,
    asks="head",
)
