"""Prompt lookup and a second source together: merged into one tree, or one after the other."""

import drafts
from experiments.models import draft_model
from experiments.strategies.ngram import inner_ngram
from experiments.strategies.strategy import (
    MODEL_OPTIONS,
    ORDER,
    TRAIN_ON,
    Option,
    Settings,
    Strategy,
    depth,
    lookup_options,
)
from specdec import DraftSource, Oracle


def second(text: str) -> str:
    """Return the name of the second source.

    Raises:
        ValueError: an unknown one.
    """
    if text not in ("ngram", "model"):
        raise ValueError(f"expected ngram or model, got {text!r}")
    return text


OPTIONS = (
    depth(5),
    *lookup_options(min_ngram=2),
    Option("second", "ngram", second, "what drafts beside the lookup: an n-gram model or a draft model"),
    ORDER,
    TRAIN_ON,
    *MODEL_OPTIONS,
)


def members(settings: Settings, oracle: Oracle) -> list[DraftSource]:
    """Return the two sources."""
    tokens = settings["num_draft_tokens"]
    lookup = drafts.PromptLookup(tokens, max_ngram=settings["max_ngram"], min_ngram=settings["min_ngram"])
    if settings["second"] == "model":
        return [lookup, drafts.SmallTransformer(draft_model(settings), num_draft_tokens=tokens)]
    return [lookup, inner_ngram(settings, oracle, tokens)]


MERGED = Strategy("merged", OPTIONS, lambda settings, oracle: drafts.Merged(members(settings, oracle)))
CASCADE = Strategy("cascade", OPTIONS, lambda settings, oracle: drafts.Cascade(members(settings, oracle)))
