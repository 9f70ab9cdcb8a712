"""Drafts are n-grams of the oracle's own Jacobi window."""

import drafts
from experiments.strategies.strategy import Option, Settings, Strategy, yes_or_no
from specdec import DraftSource, Oracle

OPTIONS = (
    Option("window", 3, int, "columns of the lookahead branch"),
    Option("ngram", 5, int, "length of the n-grams"),
    Option("guesses", 3, int, "n-grams verified per step"),
    Option("pool-size", 1024, int, "n-grams kept for each request"),
    Option("from-prompt", True, yes_or_no, "the pool takes the n-grams of the text too: yes or no"),
)
VARIANTS: dict[str, Settings] = {
    "window alone": {"from_prompt": False},
    "text alone": {"window": 0},
    "empty pool": {"pool_size": 0},
}


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    return drafts.Lookahead(**{option.key: settings[option.key] for option in OPTIONS})


STRATEGY = Strategy("lookahead", OPTIONS, build, VARIANTS, needs_model="reads the oracle's logits")
