"""A small transformer drafts chains."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.strategy import MODEL_OPTIONS, Settings, Strategy, depth
from specdec import DraftSource, Oracle


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    return drafts.SmallTransformer(draft_model(settings), num_draft_tokens=settings["num_draft_tokens"])


STRATEGY = Strategy("small_transformer", (depth(4), *MODEL_OPTIONS), build)
