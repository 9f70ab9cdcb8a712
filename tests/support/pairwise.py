"""Products of parameters: every pair of values in ``make test``, the whole product in ``make exactness``."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pytest

Axis = Mapping[str, Any] | Sequence[Any]


def pairwise(axes: Mapping[str, Axis]) -> pytest.MarkDecorator:
    """Return a parametrisation with the whole product, of which all that a set of pairs needs not is ``long``.

    Args:
        axes: argument (or several with commas between, whose values are tuples) -> values, by names or by themselves.
    """
    named = [axis if isinstance(axis, Mapping) else {str(value): value for value in axis} for axis in axes.values()]
    quick = set(covering([len(axis) for axis in named]))
    names = [name.strip() for arguments in axes for name in arguments.split(",")]
    cases = []
    for at in itertools.product(*(range(len(axis)) for axis in named)):
        picked = [list(axis.items())[i] for axis, i in zip(named, at, strict=True)]
        values = [
            part
            for arguments, (_, value) in zip(axes, picked, strict=True)
            for part in (value if "," in arguments else (value,))
        ]
        marks = () if at in quick else pytest.mark.long
        cases.append(pytest.param(*values, id="-".join(name for name, _ in picked), marks=marks))
    return pytest.mark.parametrize(names, cases)


def covering(sizes: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield combinations in which every value of an axis meets every value of every other one, few of them."""
    axes = range(len(sizes))
    combinations = list(itertools.product(*map(range, sizes)))
    missing = {pair for combination in combinations for pair in pairs_of(combination)}
    first, second = sorted(axes, key=lambda axis: -sizes[axis])[:2] if len(sizes) > 1 else (0, 0)
    # Each pair of the two longest axes has to occur: with the rest that covers most beside it.
    rows: dict[tuple[int, int], list[tuple[int, ...]]] = {}
    for combination in combinations:
        rows.setdefault((combination[first], combination[second]), []).append(combination)
    for row in rows.values():
        best = max(row, key=lambda combination: len(missing & pairs_of(combination)))
        missing -= pairs_of(best)
        yield best
    while missing:
        best = max(combinations, key=lambda combination: len(missing & pairs_of(combination)))
        missing -= pairs_of(best)
        yield best


def pairs_of(combination: Sequence[int]) -> set[tuple[tuple[int, int], tuple[int, int]]]:
    return set(itertools.combinations(enumerate(combination), 2))
