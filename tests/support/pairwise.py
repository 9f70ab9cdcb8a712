"""Products of parameters: every pair of values in ``make test``, the whole product in ``make exactness``."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import pytest

Axis = Mapping[str, Any] | Sequence[Any]
Names = tuple[Any, ...]
Case = TypeVar("Case")
# Whether ``long`` cases are made, or left out because pytest would deselect them: tests/conftest.py sets it.
WANTS_LONG = True


def pairwise(axes: Mapping[str, Axis], only: Callable[..., bool] = lambda *_: True) -> pytest.MarkDecorator:
    """Return a parametrisation with the whole product, of which ``long`` is all that no pair of values needs.

    Args:
        axes: argument (or several with commas between, whose values are tuples) -> values, by names or by themselves.
        only: of a combination's names, whether it is there at all.
    """
    named = _named(axes)
    return _parametrised(axes, named, only, set(covering([list(axis) for axis in named], only)))


def chosen(axes: Mapping[str, Axis], meetings: Callable[..., set[Any]]) -> pytest.MarkDecorator:
    """Return a parametrisation with the whole product, in whose quick part all occurs that meets in a combination."""
    named = _named(axes)
    quick = cover(list(itertools.product(*named)), lambda names: meetings(*names))
    return _parametrised(axes, named, lambda *_: True, set(quick))


def diagonal(axes: Mapping[str, Axis]) -> pytest.MarkDecorator:
    """Return a parametrisation with the whole product, in whose quick part each value occurs: for dear tests."""
    named = _named(axes)
    names, most = [list(axis) for axis in named], max(map(len, named))
    return _parametrised(
        axes, named, lambda *_: True, {tuple(axis[i % len(axis)] for axis in names) for i in range(most)}
    )


def _named(axes: Mapping[str, Axis]) -> list[Mapping[str, Any]]:
    return [axis if isinstance(axis, Mapping) else {str(value): value for value in axis} for axis in axes.values()]


def _parametrised(
    axes: Mapping[str, Axis], named: list[Mapping[str, Any]], only: Callable[..., bool], quick: set[Names]
) -> pytest.MarkDecorator:
    cases = []
    for names in itertools.product(*named):
        if not (only(*names) and (WANTS_LONG or names in quick)):
            continue
        values: list[Any] = []
        for arguments, axis, name in zip(axes, named, names, strict=True):
            values += axis[name] if "," in arguments else (axis[name],)
        cases.append(pytest.param(*values, id="-".join(names), marks=() if names in quick else pytest.mark.long))
    return pytest.mark.parametrize([name.strip() for arguments in axes for name in arguments.split(",")], cases)


def covering(axes: Sequence[Sequence[Any]], only: Callable[..., bool] = lambda *_: True) -> list[Names]:
    """Return few combinations, in which each value meets all of every other axis that it meets in any of them."""
    return cover([names for names in itertools.product(*axes) if only(*names)], pairs_of)


def cover(cases: Sequence[Case], pairs_of: Callable[[Case], set[Any]]) -> list[Case]:
    """Return some of the cases, with all pairs that any of them has; those that add most are taken first."""
    found = [pairs_of(case) for case in cases]
    missing, chosen = set().union(*found), []
    for gain in range(max(map(len, found), default=0), 0, -1):
        for case, pairs in zip(cases, found, strict=True):
            if len(missing & pairs) >= gain:
                chosen.append(case)
                missing -= pairs
    return chosen


def pairs_of(names: Names) -> set[tuple[tuple[int, Any], ...]]:
    return set(itertools.combinations(enumerate(names), 2))


def first_of(quick: Any, *others: Any) -> list[Any]:
    """Return values of which the first is quick and the others are ``long``: seeds, where one history tells a fault."""
    return [quick, *(pytest.param(value, marks=pytest.mark.long) for value in others if WANTS_LONG)]
