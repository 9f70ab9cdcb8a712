"""Products of which the quick suite runs pairs."""

import itertools

import pytest

from tests.support.pairwise import covering, pairs_of, pairwise


@pytest.mark.parametrize("sizes", [(3,), (2, 5), (11, 5, 2), (4, 5, 5, 2), (2, 2, 2, 2)], ids=str)
def test_every_pair_of_values_is_covered_by_few_combinations(sizes):
    found = list(covering(sizes))
    everything = set(itertools.product(*map(range, sizes)))
    assert set(found) <= everything
    assert set().union(*map(pairs_of, found)) == set().union(*map(pairs_of, everything))
    assert len(found) == len(set(found)) <= max(3, 1.5 * sorted(sizes)[-1] * ([1, *sorted(sizes)][-2]))


def test_the_rest_of_the_product_is_long():
    cases = pairwise({"a": "xy", "b, c": {"one": (1, 2), "two": (3, 4)}, "d": (5, 6)}).args[1]
    assert len(cases) == 8
    assert {case.id for case in cases} == {f"{a}-{b}-{d}" for a in "xy" for b in ("one", "two") for d in (5, 6)}
    assert sum(not case.marks for case in cases) == 4
