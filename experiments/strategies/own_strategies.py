"""Draft sources of one's own as strategies: their places in place of a strategy's name."""

import inspect
from typing import Any

from experiments.harness.own_places import load_own, own_name
from experiments.strategies.strategy import LENGTH, Strategy
from specdec import DraftSource, Oracle
from specdec.contracts import check_source


def own_strategy(place: str) -> Strategy:
    """Return the strategy of a source, or of a function that makes one for an oracle; it has no options.

    A program that chooses how long drafts are passes that to the function, as its argument ``num_draft_tokens``.
    Building raises ValueError if there is nothing at the place, no source, or no function that takes the length.
    """
    return Strategy(own_name(place), (), lambda settings, oracle: _source(place, oracle, settings.get(LENGTH)))


def _source(place: str, oracle: Oracle, length: int | None) -> DraftSource:
    value = load_own(place)
    makes = not isinstance(value, type) and callable(value)
    if length is None:
        try:
            return _checked(value, place)
        except ValueError:
            if not makes:
                raise
        return _checked(value(oracle), f"what {place} makes")
    if not makes or LENGTH not in inspect.signature(value).parameters:
        form = "def NAME(oracle, num_draft_tokens)"
        raise ValueError(f"{place}: drafts of given lengths are asked for; give a function that makes them, {form}")
    return _checked(value(oracle, **{LENGTH: length}), f"what {place} makes")


def _checked(value: Any, argument: str) -> DraftSource:
    check_source(value, argument)
    source: DraftSource = value
    return source
