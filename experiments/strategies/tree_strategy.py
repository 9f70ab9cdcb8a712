"""A small transformer drafts trees."""

from experiments.harness.models import draft_model
from experiments.strategies.strategy import MODEL_OPTIONS, Option, Settings, Strategy
from experiments.strategies.tree_shapes import FORMS, shape_of, tree_source
from specdec import DraftSource, Oracle

DEFAULT = "paths:0.0,0.1,0.2,1.0,2.0"


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    return tree_source(draft_model(settings), shape_of(settings["shape"]))


STRATEGY = Strategy("tree", (Option("shape", DEFAULT, str, FORMS), *MODEL_OPTIONS), build)
