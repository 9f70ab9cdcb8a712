"""The registry of draft strategies: a new one has a file beside this one, and a line in ``STRATEGIES``."""

from experiments.strategies import (
    combined,
    head_strategies,
    model_strategies,
    oracle_strategies,
    text_strategies,
)
from experiments.strategies.strategy import MODEL, Strategy

__all__ = ["AS_SHIPPED", "MODEL", "STRATEGIES", "Strategy"]

STRATEGIES = {
    strategy.name: strategy
    for strategy in (
        model_strategies.SMALL_TRANSFORMER,
        model_strategies.OTHER_VOCABULARY,
        model_strategies.TREE,
        text_strategies.NGRAM,
        oracle_strategies.EARLY_EXIT,
        head_strategies.EAGLE3,
        head_strategies.BLOCK_DRAFTER,
        head_strategies.MEDUSA,
        oracle_strategies.QUANTIZED,
        text_strategies.PROMPT_LOOKUP,
        text_strategies.SUFFIX_AUTOMATON,
        text_strategies.LOOKAHEAD,
        combined.MERGED,
        combined.CASCADE,
        combined.STAGED,
        model_strategies.THRESHOLD,
    )
}
# Those that run as they are: nothing of theirs must be given.
AS_SHIPPED = tuple(name for name, strategy in STRATEGIES.items() if not strategy.asks)
