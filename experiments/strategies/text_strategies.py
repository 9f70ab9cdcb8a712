"""The text so far drafts: what followed the same tokens before, or n-grams of the oracle's own Jacobi window."""

from collections.abc import Callable
from typing import Any

import drafts
from experiments.strategies.strategy import Option, Settings, Strategy, depth, lookup_options, yes_or_no
from specdec import DraftSource, Oracle


def _strategy(name: str, source: Callable[..., DraftSource], options: tuple[Option, ...], **more: Any) -> Strategy:
    """Return the strategy of a source whose arguments are its options."""

    def build(settings: Settings, oracle: Oracle) -> DraftSource:
        return source(**{option.key: settings[option.key] for option in options})

    return Strategy(name, options, build, **more)


PROMPT_LOOKUP = _strategy(
    "prompt_lookup",
    drafts.PromptLookup,
    (
        depth(8),
        *lookup_options(min_ngram=1),
        Option("match", "last", str, "which earlier occurrence wins: last or first"),
    ),
)
SUFFIX_AUTOMATON = _strategy(
    "suffix_automaton",
    drafts.SuffixAutomaton,
    (
        depth(8),
        Option("tokens-per-match", 2.0, float, "tokens to draft for each matched one"),
        Option("min-ngram", 1, int, "shortest suffix that counts as a match"),
        Option("min-confidence", 0.0, float, "paths less likely than this get no node"),
        Option("max-nodes", None, int, "nodes of a tree (chains)"),
        Option("store-size", 0, int, "ids kept of the outputs of earlier prompts"),
    ),
)
LOOKAHEAD = _strategy(
    "lookahead",
    drafts.Lookahead,
    (
        Option("window", 3, int, "columns of the lookahead branch"),
        Option("ngram", 5, int, "length of the n-grams"),
        Option("guesses", 3, int, "n-grams verified per step"),
        Option("pool-size", 1024, int, "n-grams kept for each request"),
        Option("from-prompt", True, yes_or_no, "the pool takes the n-grams of the text too: yes or no"),
    ),
    variants={
        "window alone": {"from_prompt": False},
        "text alone": {"window": 0},
        "empty pool": {"pool_size": 0},
    },
    needs_model="reads the oracle's logits",
)
