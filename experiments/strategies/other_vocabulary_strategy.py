"""Drafts come from a model with another tokenizer."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.strategy import MODEL_OPTIONS, Settings, Strategy, depth
from specdec import DraftSource, Oracle

OPTIONS = (depth(3), *MODEL_OPTIONS)


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe.

    Raises:
        ValueError: see ``drafts.OtherVocabulary``; the vocabularies are compared here, before a run begins.
    """
    source = drafts.OtherVocabulary(draft_model(settings), settings["num_draft_tokens"])
    source.shared_with(oracle)
    return source


STRATEGY = Strategy("other_vocabulary", OPTIONS, build)
