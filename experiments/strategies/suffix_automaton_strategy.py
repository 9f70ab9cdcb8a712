"""Drafts are what most often followed the longest suffix that stands elsewhere."""

import drafts
from experiments.strategies.strategy import Option, Settings, Strategy, depth
from specdec import DraftSource, Oracle

OPTIONS = (
    depth(8),
    Option("tokens-per-match", 2.0, float, "tokens to draft for each matched one"),
    Option("min-ngram", 1, int, "shortest suffix that counts as a match"),
    Option("min-confidence", 0.0, float, "paths less likely than this get no node"),
    Option("max-nodes", None, int, "nodes of a tree (chains)"),
    Option("store-size", 0, int, "ids kept of the outputs of earlier prompts"),
)


def build(settings: Settings, oracle: Oracle) -> DraftSource:
    """Return the source that the settings describe."""
    return drafts.SuffixAutomaton(**{option.key: settings[option.key] for option in OPTIONS})


STRATEGY = Strategy("suffix_automaton", OPTIONS, build)
