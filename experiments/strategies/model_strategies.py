"""A small transformer drafts: chains, trees, or in another vocabulary."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.strategy import MODEL_OPTIONS, Option, Settings, Strategy, depth
from experiments.strategies.tree_shapes import FORMS, shape_of, tree_source
from specdec import DraftSource, Oracle


def _chains(settings: Settings, oracle: Oracle) -> DraftSource:
    return drafts.SmallTransformer(draft_model(settings), num_draft_tokens=settings["num_draft_tokens"])


def _trees(settings: Settings, oracle: Oracle) -> DraftSource:
    return tree_source(draft_model(settings), shape_of(settings["shape"]))


def _other_vocabulary(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source; the vocabularies are compared here, before a run begins, see ``drafts.OtherVocabulary``."""
    source = drafts.OtherVocabulary(draft_model(settings), settings["num_draft_tokens"])
    source.shared_with(oracle)
    return source


SMALL_TRANSFORMER = Strategy("small_transformer", (depth(4), *MODEL_OPTIONS), _chains)
OTHER_VOCABULARY = Strategy("other_vocabulary", (depth(3), *MODEL_OPTIONS), _other_vocabulary)
_SHAPE = Option("shape", "paths:0.0,0.1,0.2,1.0,2.0", str, FORMS)
TREE = Strategy("tree", (_SHAPE, *MODEL_OPTIONS), _trees)
