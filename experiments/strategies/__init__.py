"""The registry of draft strategies: a new one is a file beside this one and one line in ``STRATEGIES``."""

from experiments.strategies import (
    combined,
    early_exit_strategy,
    head_strategies,
    lookahead_strategy,
    ngram_strategy,
    other_vocabulary_strategy,
    prompt_lookup_strategy,
    quantized_strategy,
    small_transformer_strategy,
    staged_strategy,
    suffix_automaton_strategy,
    threshold_strategy,
    tree_strategy,
)
from experiments.strategies.strategy import MODEL, Option, Settings, Strategy
from experiments.strategies.threshold_strategy import CALIBRATING, calibration

__all__ = ["AS_SHIPPED", "CALIBRATING", "MODEL", "STRATEGIES", "Option", "Settings", "Strategy", "calibration"]

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        small_transformer_strategy.STRATEGY,
        other_vocabulary_strategy.STRATEGY,
        tree_strategy.STRATEGY,
        ngram_strategy.STRATEGY,
        early_exit_strategy.STRATEGY,
        head_strategies.EAGLE3,
        head_strategies.BLOCK_DRAFTER,
        head_strategies.MEDUSA,
        quantized_strategy.STRATEGY,
        prompt_lookup_strategy.STRATEGY,
        suffix_automaton_strategy.STRATEGY,
        lookahead_strategy.STRATEGY,
        combined.MERGED,
        combined.CASCADE,
        staged_strategy.STRATEGY,
        threshold_strategy.STRATEGY,
    )
}
# Those that run as they are: nothing of theirs must be given.
AS_SHIPPED = tuple(name for name, strategy in STRATEGIES.items() if not strategy.asks)
