"""Products of which the quick suite runs pairs, and how many tests it may have."""

import itertools

import pytest

from tests.support.pairwise import covering, diagonal, pairs_of, pairwise

# Raise it for behaviours that nothing guarded before; a product is pairwise, and a test of the same branch goes.
MOST_TESTS = 9000


def everywhere(*names):
    return True


def never_both_first(a, b, *_):
    return a + b > 0


@pytest.mark.parametrize("only", [everywhere, never_both_first])
@pytest.mark.parametrize("sizes", [(2, 5), (11, 5, 2), (4, 5, 5, 2), (2, 2, 2, 2)], ids=str)
def test_every_pair_of_values_is_covered_by_few_combinations(sizes, only):
    axes = [range(size) for size in sizes]
    found, everything = covering(axes, only), [names for names in itertools.product(*axes) if only(*names)]
    assert set(found) <= set(everything)
    assert set().union(*map(pairs_of, found)) == set().union(*map(pairs_of, everything))
    least = sorted(sizes)[-1] * sorted(sizes)[-2]
    assert len(found) == len(set(found)) <= (least if len(sizes) < 4 else 1.5 * least)


@pytest.fixture
def _with_long_cases(monkeypatch):
    monkeypatch.setattr("tests.support.pairwise.WANTS_LONG", True)


@pytest.mark.usefixtures("_with_long_cases")
def test_the_rest_of_the_product_is_long():
    cases = pairwise({"a": "xy", "b, c": {"one": (1, 2), "two": (3, 4)}, "d": (5, 6)}, lambda a, b, d: d != "6").args[1]
    assert {case.id for case in cases} == {f"{a}-{b}-5" for a in "xy" for b in ("one", "two")}
    assert cases[0].values == ("x", 1, 2, 5)
    whole = pairwise({"a": "xy", "b": "xy", "c": "xy"}).args[1]
    assert (len(whole), sum(not case.marks for case in whole)) == (8, 4)


@pytest.mark.usefixtures("_with_long_cases")
def test_a_diagonal_has_each_value():
    cases = diagonal({"a": "xyz", "b, c": {"one": (1, 2), "two": (3, 4)}}).args[1]
    assert len(cases) == 6
    assert [case.id for case in cases if not case.marks] == ["x-one", "y-two", "z-one"]


def test_the_quick_suite_has_no_more_tests_than_it_may_have(request):
    """Each worker collects all of them; a part of the suite says nothing."""
    quick = [item for item in request.session.items if not any(map(item.get_closest_marker, ("long", "real")))]
    assert len(quick) <= MOST_TESTS, f"{len(quick)} tests in make test; see CONTRIBUTING.md"
