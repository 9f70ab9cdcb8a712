"""What is a user's own in place of names: draft sources as strategies, and length policies."""

import argparse
import inspect
from collections.abc import Sequence
from functools import partial
from typing import Any

from experiments.harness.own_places import (
    FORMS,
    call_own,
    check_names,
    load_own,
    make_own,
    own_name,
    own_place,
    told_at,
    values_of,
)
from experiments.strategies.strategy import LENGTH, Settings, Strategy
from specdec import DraftSource, Oracle
from specdec.contracts import check_source
from specdec.drafting.lengths import LengthPolicy, resolve


def own_strategy(place: str) -> Strategy:
    """Return the strategy of a source, or of a function that makes one for an oracle; it has no options.

    The function is called with the oracle and the values of the place. If it has a parameter ``settings``, that is what
    the builders of our strategies know of the run. A program that chooses how long drafts are passes that as
    ``num_draft_tokens``. Building raises ValueError if there is nothing at the place, no source, or no function that
    takes what it is to take.
    """
    return Strategy(own_name(place), (), lambda settings, oracle: _source(place, oracle, settings))


def add_own_lengths(parser: argparse.ArgumentParser) -> None:
    """Add the choice of length policies of a user's own."""
    told = f"length policies of your own too, {FORMS} (none)"
    parser.add_argument("--lengths", nargs="*", type=own_place, default=[], metavar="PLACE", help=told)


def own_lengths(places: Sequence[str]) -> dict[str, LengthPolicy]:
    """Return name -> the length policy at a place, or what a class or a function makes there of the place's values.

    Raises:
        ValueError: there is nothing at a place, or no policy, or two have one name.
    """
    check_names([own_name(place) for place in places])
    made = {place: make_own(place) for place in places}
    return {own_name(place): told_at(place, partial(resolve, None, policy, 0)) for place, policy in made.items()}


def _source(place: str, oracle: Oracle, settings: Settings) -> DraftSource:
    value, length = load_own(place), settings.get(LENGTH)
    makes = not isinstance(value, type) and callable(value)
    if length is None and not values_of(place):
        try:
            return _checked(value, place)
        except ValueError:
            if not makes:
                raise
    if length is not None and not (makes and LENGTH in inspect.signature(value).parameters):
        form = "def NAME(oracle, num_draft_tokens)"
        raise ValueError(f"{place}: drafts of given lengths are asked for; give a function that makes them, {form}")
    if not makes:
        raise ValueError(f"{place}: values are for a function of the oracle that makes sources, def NAME(oracle, KEY)")
    given = {} if length is None else {LENGTH: length}
    return _checked(call_own(place, value, oracle, settings=settings, **given), f"what {place} makes")


def _checked(value: Any, argument: str) -> DraftSource:
    check_source(value, argument)
    source: DraftSource = value
    return source
