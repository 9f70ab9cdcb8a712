"""Drafts are copied from what followed the same tokens before."""

import drafts
from experiments.strategies.strategy import Option, Settings, Strategy, depth, lookup_options
from specdec import DraftSource, Oracle

OPTIONS = (
    depth(8),
    *lookup_options(min_ngram=1),
    Option("match", "last", str, "which earlier occurrence wins: last or first"),
)


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    return drafts.PromptLookup(**{option.key: settings[option.key] for option in OPTIONS})


STRATEGY = Strategy("prompt_lookup", OPTIONS, build)
