"""A small transformer drafts, and a lookup or an n-gram model drafts for it."""

import drafts
from experiments.harness.models import draft_model
from experiments.strategies.ngram_strategy import inner_ngram
from experiments.strategies.strategy import MODEL_OPTIONS, ORDER, TRAIN_ON, Option, Settings, Strategy, depth, one_of
from specdec import DraftSource, Oracle


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    model = draft_model(settings)
    tokens, name = settings["inner_tokens"], settings["inner"]
    source = drafts.PromptLookup(tokens) if name == "prompt_lookup" else inner_ngram(settings, oracle, tokens)
    return drafts.Staged(model, source, num_draft_tokens=settings["num_draft_tokens"], width=settings["width"])


STRATEGY = Strategy(
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
    build,
)
