"""The registry of draft strategies: a new one has a file beside this one, and a line in ``STRATEGIES``."""

from experiments.harness.own_places import name_or_place
from experiments.strategies import (
    combined,
    head_strategies,
    model_strategies,
    oracle_strategies,
    text_strategies,
)
from experiments.strategies.own_strategies import own_strategy
from experiments.strategies.strategy import MODEL, Strategy

__all__ = ["AS_SHIPPED", "MODEL", "STRATEGIES", "Strategy", "strategy_name", "strategy_of"]

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


def strategy_of(name: str) -> Strategy:
    """Return the strategy of a name, or of a source of one's own by its place."""
    return STRATEGIES.get(name) or own_strategy(name)


def strategy_name(text: str) -> str:
    """Return the name of a strategy, or the place of a source of one's own.

    Raises:
        ArgumentTypeError: it is neither.
    """
    return name_or_place(text, STRATEGIES, "strategy")
