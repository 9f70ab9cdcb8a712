"""Calls of any size are cut into passes of few shapes that cover them exactly."""

from itertools import product

import pytest

from oracles.graphed.buckets import MAX_NODES, ROWS, WIDTHS, bucket_of, cuts

EDGES = (1, 2, 3, 63, 64, 65, 127, 128, 129, 300)


@pytest.mark.parametrize("num_rows", EDGES)
def test_the_passes_of_a_call_cover_it_once_and_in_order(num_rows):
    for first, new, is_tree in product((0, 1, 64), EDGES, (False, True)):
        size, rows = first + new, 0
        for group in cuts(num_rows, size, first, is_tree, cache_rows=300):
            assert all(cut.rows == group[0].rows for cut in group)
            assert group[0].rows.start == rows
            rows, nodes = group[0].rows.stop, first
            for cut in group:
                assert cut.nodes.start == nodes
                nodes = cut.nodes.stop
                assert cut.bucket == bucket_of(cut.rows, cut.nodes, size if is_tree else 0, 300)
            assert nodes == size
        assert rows == num_rows


@pytest.mark.parametrize("cache_rows", [1, 2, 3, 12, 33, 64, 65, 200, 300])
def test_a_bucket_holds_its_cut_and_little_more(cache_rows):
    for num_rows in (*range(1, min(cache_rows, 64) + 1), cache_rows):
        for size in range(1, 129):
            for group in cuts(num_rows, size, 0, True, cache_rows):
                (cut,) = group
                bucket, taken = cut.bucket, cut.rows.stop - cut.rows.start
                assert taken <= bucket.rows <= min(2 * taken, cache_rows if bucket.whole else ROWS[-1])
                assert size <= bucket.width <= max(size, 1.5 * size)
                assert bucket.width <= bucket.total == min(width for width in WIDTHS if width >= size)
                assert bucket.nodes <= MAX_NODES
                assert bucket.whole == (bucket.rows == cache_rows)
                assert bucket.returns


def test_a_full_batch_is_not_padded_and_lies_at_its_own_places():
    for cache_rows in range(1, 65):
        bucket = bucket_of(slice(0, cache_rows), slice(0, 8), 0, cache_rows)
        assert (bucket.rows, bucket.whole) == (cache_rows, True)
    assert not bucket_of(slice(0, 64), slice(0, 8), 0, 65).whole


def test_a_tree_wider_than_any_bucket_has_a_shape_that_is_not_kept():
    (group,) = cuts(2, 300, 0, True, 2)
    assert [(cut.bucket.width, cut.bucket.total, cut.bucket.returns) for cut in group] == [
        (128, 384, False),
        (128, 384, False),
        (48, 384, False),
    ]


def test_all_calls_of_a_run_have_few_shapes():
    shapes = {
        cut.bucket
        for num_rows in range(1, 33)
        for size in range(1, 17)
        for group in cuts(num_rows, size, 0, False, 32)
        for cut in group
    }
    assert len(shapes) == len([rows for rows in ROWS if rows <= 32]) * len([width for width in WIDTHS if width <= 16])
