"""Draft sources of one's own as strategies: their places in place of a strategy's name."""

from typing import Any

from experiments.harness.own_places import load_own, own_name
from experiments.strategies.strategy import Strategy
from specdec import DraftSource, Oracle
from specdec.contracts import check_source


def own_strategy(place: str) -> Strategy:
    """Return the strategy of a source, or of a function that makes one for an oracle; it has no options.

    Building it raises ValueError if there is nothing at the place, or no source.
    """
    return Strategy(own_name(place), (), lambda settings, oracle: _source(place, oracle))


def _source(place: str, oracle: Oracle) -> DraftSource:
    value = load_own(place)
    try:
        return _checked(value, place)
    except ValueError:
        if isinstance(value, type) or not callable(value):
            raise
    return _checked(value(oracle), f"what {place} makes")


def _checked(value: Any, argument: str) -> DraftSource:
    check_source(value, argument)
    source: DraftSource = value
    return source
