"""Several sources together: any two, merged or one after the other; a model that is drafted for."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.head_strategies import BLOCK_DRAFTER, EAGLE3, HEAD, HEAD_WEIGHTS, MEDUSA
from experiments.strategies.model_strategies import OTHER_VOCABULARY, SMALL_TRANSFORMER, TREE
from experiments.strategies.strategy import (
    MODEL,
    MODEL_OPTIONS,
    ORDER,
    TRAIN_ON,
    Option,
    Settings,
    Strategy,
    default_of,
    depth,
    lookup_options,
    one_of,
)
from experiments.strategies.text_strategies import LOOKAHEAD, NGRAM, PROMPT_LOOKUP, SUFFIX_AUTOMATON
from specdec import DraftSource, Oracle

_TEXTS, _MODELS = (PROMPT_LOOKUP, SUFFIX_AUTOMATON, NGRAM, LOOKAHEAD), (SMALL_TRANSFORMER, OTHER_VOCABULARY, TREE)
# What may stand beside others; sources that work on the oracle's own cache may not.
MEMBERS = {one.name: one for one in (*_TEXTS, *_MODELS, EAGLE3, BLOCK_DRAFTER, MEDUSA)}
OPTIONS = (
    depth(5),
    Option("first", "prompt_lookup", one_of(*MEMBERS), f"what drafts first: one of {', '.join(MEMBERS)}"),
    *lookup_options(min_ngram=2),
    Option("second", "ngram", one_of(*MEMBERS), "what drafts beside the first, or if that finds nothing: likewise"),
    ORDER,
    TRAIN_ON,
    *MODEL_OPTIONS,
    HEAD,
    HEAD_WEIGHTS,
)


def members(settings: Settings, oracle: Oracle) -> list[DraftSource]:
    """Return the two sources."""
    return [_member(settings[place], settings, oracle) for place in ("first", "second")]


def _member(name: str, settings: Settings, oracle: Oracle) -> DraftSource:
    """Return a source as its own strategy builds it, with that strategy's defaults for what is not given here."""
    options = MEMBERS[name].options
    own = {option.key: default_of(name, option, settings) for option in options}
    given = {key: value for key, value in settings.items() if value is not None}
    if MODEL not in options:  # a combination's model drafts; n-grams have an option of this name for their file
        given.pop(MODEL.key, None)
    return MEMBERS[name].build({**settings, **own, **given}, oracle)


MERGED = Strategy("merged", OPTIONS, lambda settings, oracle: drafts.Merged(members(settings, oracle)))
CASCADE = Strategy("cascade", OPTIONS, lambda settings, oracle: drafts.Cascade(members(settings, oracle)))


def _staged(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    inner = _member(settings["inner"], {**settings, "num_draft_tokens": settings["inner_tokens"]}, oracle)
    tokens, width = settings["num_draft_tokens"], settings["width"]
    return drafts.Staged(draft_model(settings), inner, num_draft_tokens=tokens, width=width)


_INNER = (NGRAM.name, PROMPT_LOOKUP.name, SUFFIX_AUTOMATON.name)


STAGED = Strategy(
    "staged",
    (
        depth(6),
        *MODEL_OPTIONS,
        Option("inner", "ngram", one_of(*_INNER), f"what drafts for the draft model: one of {', '.join(_INNER)}"),
        Option("inner-tokens", 3, int, "tokens that this drafts per pass of the draft model"),
        Option("width", 1, int, "children of each drafted token's node; 1 gives chains"),
        ORDER,
        TRAIN_ON,
    ),
    _staged,
)
