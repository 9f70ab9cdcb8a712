"""Several sources together: a lookup and a second one, merged or one after the other; a model that is drafted for."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.head_strategies import HEAD, HEAD_SOURCES, HEAD_WEIGHTS, head_for
from experiments.strategies.strategy import (
    MODEL_OPTIONS,
    ORDER,
    TRAIN_ON,
    Option,
    Settings,
    Strategy,
    depth,
    lookup_options,
    one_of,
)
from experiments.strategies.text_strategies import inner_ngram
from specdec import DraftSource, Oracle

OPTIONS = (
    depth(5),
    Option("first", "prompt_lookup", one_of("prompt_lookup", "suffix_automaton"), "which lookup drafts"),
    *lookup_options(min_ngram=2),
    Option("second", "ngram", one_of("ngram", "model", *HEAD_SOURCES), "what drafts beside the lookup"),
    ORDER,
    TRAIN_ON,
    *MODEL_OPTIONS,
    HEAD,
    HEAD_WEIGHTS,
)


def members(settings: Settings, oracle: Oracle) -> list[DraftSource]:
    """Return the two sources."""
    tokens, second = settings["num_draft_tokens"], settings["second"]
    if settings["first"] == "suffix_automaton":
        lookup: DraftSource = drafts.SuffixAutomaton(tokens, min_ngram=settings["min_ngram"])
    else:
        lookup = drafts.PromptLookup(tokens, max_ngram=settings["max_ngram"], min_ngram=settings["min_ngram"])
    if second == "ngram":
        return [lookup, inner_ngram(settings, oracle, tokens)]
    if second == "model":
        return [lookup, drafts.SmallTransformer(draft_model(settings), num_draft_tokens=tokens)]
    return [lookup, HEAD_SOURCES[second](head_for(second, settings, oracle), num_draft_tokens=tokens)]


MERGED = Strategy("merged", OPTIONS, lambda settings, oracle: drafts.Merged(members(settings, oracle)))
CASCADE = Strategy("cascade", OPTIONS, lambda settings, oracle: drafts.Cascade(members(settings, oracle)))


def _staged(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    model = draft_model(settings)
    tokens, name = settings["inner_tokens"], settings["inner"]
    source = drafts.PromptLookup(tokens) if name == "prompt_lookup" else inner_ngram(settings, oracle, tokens)
    return drafts.Staged(model, source, num_draft_tokens=settings["num_draft_tokens"], width=settings["width"])


STAGED = Strategy(
    "staged",
    (
        depth(6),
        *MODEL_OPTIONS,
        Option(
            "inner",
            "ngram",
            one_of("ngram", "prompt_lookup"),
            "what drafts for it: ngram or prompt_lookup",
        ),
        Option("inner-tokens", 3, int, "tokens that it drafts per pass of the draft model"),
        Option("width", 1, int, "children of each drafted token's node; 1: chains"),
        ORDER,
        TRAIN_ON,
    ),
    _staged,
)
