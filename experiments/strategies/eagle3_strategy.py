"""A published head drafts from the oracle's hidden states."""

from typing import Any, get_args

import drafts
import oracles
from experiments.strategies.strategy import Option, Settings, Strategy, depth, head_of, one_of, yes_or_no
from experiments.strategies.tree_shapes import FORMS, shape_of
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import WeightType
from oracles.heads import Eagle3Base
from oracles.huggingface import HuggingFaceLM
from specdec import DraftSource, Oracle


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    if not isinstance(oracle, LoadedOracle | HuggingFaceLM):
        raise ValueError("eagle3: its head reads hidden states, which this oracle does not give: leave it out")
    name = head_of(settings, "eagle3")
    try:
        head = oracles.load_head(
            name,
            oracle,
            aux_layers=settings["aux_layers"],
            check=settings["check_layers"],
            weights=settings["head_weights"] or settings["weights"],
        )
    except ValueError as error:
        raise ValueError(f"eagle3: --head {name} cannot be used: {error}") from error
    if not isinstance(head, Eagle3Base):
        fits = getattr(head, "drafter", "early_exit")
        raise ValueError(f"eagle3: --head {name} is of another kind: it is for {fits}")
    given: dict[str, Any] = {"num_draft_tokens": settings["num_draft_tokens"]}
    if settings["shape"] is not None:
        shape = shape_of(settings["shape"])
        given = {"tree": shape, "temperature": None if shape.num_kept is None else 0.0}
    return drafts.Eagle3(head, **given)


STRATEGY = Strategy(
    "eagle3",
    (
        depth(5),
        Option("head", None, str, "EAGLE-3 head for this oracle: embedded name or folder (what ships for it)"),
        Option("head-weights", None, one_of(*get_args(WeightType)), "type of its linear layers (that of --weights)"),
        Option("shape", None, str, f"trees in place of chains: {FORMS}"),
        Option("aux-layers", None, one_of("inputs", "outputs"), "what the config's layers mean (what it says)"),
        Option("check-layers", False, yes_or_no, "try the neighbouring layers too, and warn: yes or no (no)"),
    ),
    build,
    needs_model="drafts from the oracle's hidden states",
    asks="head",
)
