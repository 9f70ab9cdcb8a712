"""The registry of draft strategies: a new one is a file beside this one and one line in ``STRATEGIES``."""

from experiments.strategies import (
    combined,
    early_exit,
    lookahead,
    ngram,
    prompt_lookup,
    quantized,
    small_transformer,
    staged,
    threshold,
    tree,
)
from experiments.strategies.strategy import MODEL, Option, Settings, Strategy
from experiments.strategies.threshold import CALIBRATING, calibration

__all__ = ["CALIBRATING", "MODEL", "STRATEGIES", "Option", "Settings", "Strategy", "calibration"]

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        small_transformer.STRATEGY,
        tree.STRATEGY,
        ngram.STRATEGY,
        early_exit.STRATEGY,
        quantized.STRATEGY,
        prompt_lookup.STRATEGY,
        lookahead.STRATEGY,
        combined.MERGED,
        combined.CASCADE,
        staged.STRATEGY,
        threshold.STRATEGY,
    )
}
