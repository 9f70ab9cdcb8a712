"""The books of pages, without a model: who uses them, which texts they hold, which go first."""

from threading import Thread

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from specdec.cache import PAGE, PagedKVCache, PagePool, TensorMemory
from specdec.cache import page_pool as module


def text(*pages: int, rest: int = 0) -> np.ndarray:
    """Return a text whose pages are told apart by numbers, and some ids more."""
    return np.concatenate([*(np.arange(PAGE) + 100 * page for page in pages), np.arange(rest)]).astype(np.int64)


def take(pool: PagePool, count: int) -> np.ndarray:
    """Have a row take pages; return them."""
    pages = pool.take(count)
    pool.uses[pages] += 1
    return pages


def store(pool: PagePool, *pages: int) -> list[int]:
    """Have a row read a text and leave; return the pages that it had."""
    known = pool.find(text(*pages))
    pool.uses[known] += 1
    own = np.concatenate([known, take(pool, len(pages) - len(known))])
    pool.keep(text(*pages), own)
    pool.uses[own] -= 1
    return own.tolist()


def test_pages_are_handed_out_side_by_side_where_that_can_be():
    pool = PagePool(8)
    first, second, third = (take(pool, count) for count in (2, 3, 2))
    assert [first.tolist(), second.tolist(), third.tolist()] == [[0, 1], [2, 3, 4], [5, 6]]
    pool.uses[first] -= 1
    pool.uses[third] -= 1
    assert take(pool, 3).tolist() == [5, 6, 7]
    assert pool.num_free == 2
    with pytest.raises(ValueError, match="3 pages are asked for, and 2 of 8 are free"):
        take(pool, 3)
    pool.uses[second[1:2]] -= 1
    assert take(pool, 3).tolist() == [0, 1, 3]
    assert take(pool, 0).tolist() == []


def test_the_longest_known_beginning_is_found():
    pool = PagePool(8)
    own = store(pool, 1, 2, 3)
    assert pool.find(text(1, 2, 3, rest=5)).tolist() == own
    assert pool.find(text(1, 2, 4)).tolist() == own[:2]
    assert pool.find(text(1, 2)[:-1]).tolist() == own[:1]
    assert pool.find(text(2, 3)).tolist() == pool.find(text(4, 2, 3)).tolist() == []
    assert store(pool, 1, 2, 5)[:2] == own[:2]


def test_a_page_stays_while_a_row_uses_it_and_the_least_recently_looked_up_goes_first():
    pool = PagePool(6)
    old, new = store(pool, 1, 2), store(pool, 3, 4)
    pool.find(text(1, 2))
    assert new[1] in take(pool, 3), "the end of a text before its beginning"
    assert pool.find(text(3, 4)).tolist() == new[:1]
    pool.find(text(1, 2))
    pool.uses[pool.find(text(3))] += 1
    take(pool, 1)
    assert pool.find(text(1, 2)).tolist() == old[:1]
    assert pool.find(text(3)).tolist() == new[:1], "a row uses it"
    assert pool.num_evicted == 2
    assert pool.is_dirty[[new[1], old[1]]].all()


def test_equal_hashes_are_no_hit(monkeypatch):
    class Same:
        def digest(self) -> bytes:
            return b"same"

    monkeypatch.setattr(module.hashlib, "blake2b", lambda *_, **__: Same())
    pool = PagePool(4)
    own = store(pool, 1)
    assert pool.find(text(1)).tolist() == own
    assert pool.find(text(2)).tolist() == []
    assert pool.find(text(1, 1)).tolist() == own


def test_a_text_that_was_read_twice_at_once_is_known_once():
    pool = PagePool(6)
    one, other = take(pool, 2), take(pool, 2)
    pool.keep(text(1, 2), one)
    pool.keep(text(1, 2), other)
    assert pool.find(text(1, 2)).tolist() == one.tolist()
    pool.uses[one] -= 1
    pool.uses[other] -= 1
    assert pool.num_free == 6
    assert take(pool, 4).tolist() == [2, 3, 4, 5], "nothing is known of the second copy"
    assert pool.num_evicted == 0


@pytest.mark.parametrize("in_another_thread", [False, True])
def test_a_cache_that_goes_while_its_pages_are_counted_gives_them_back(in_another_thread):
    pages, rows = np.arange(2), []

    class Counts(np.ndarray):
        """Rows that go between a reading and a writing of the counts, as the collector of garbage may have it."""

        def __getitem__(self, at):
            found = super().__getitem__(at)
            go = Thread(target=rows.clear) if in_another_thread else None
            if go is None:
                rows.clear()
            else:
                go.start()
                go.join()
            return found

    memory = TensorMemory((1,), (1,), 4, torch.float32, torch.device("cpu"), 0)
    rows.append(PagedKVCache(memory, 1, 2 * PAGE))
    pool = memory.pool
    pool.uses = pool.uses.view(Counts)
    pool.uses[pages] += 1
    pool.uses[pages] -= 1
    assert not rows
    assert pool.num_free == 4
    assert pool.is_dirty[:2].all()


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_what_is_found_is_what_was_kept_and_counts_agree(data):
    pool, rows, contents = PagePool(data.draw(st.integers(4, 10))), {}, {}
    for step in range(data.draw(st.integers(1, 25))):
        if rows and data.draw(st.booleans()):
            pool.uses[rows.pop(data.draw(st.sampled_from(sorted(rows))))] -= 1
            continue
        pages = data.draw(st.lists(st.integers(0, 2), min_size=1, max_size=4))
        known = pool.find(text(*pages))
        for place, page in enumerate(known.tolist()):
            assert contents[page] == tuple(pages[: place + 1])
        if len(pages) - len(known) > pool.num_free - pool.count_unused(known):
            continue
        pool.uses[known] += 1
        taken = take(pool, len(pages) - len(known))
        assert not set(taken.tolist()) & {page for own in rows.values() for page in own.tolist()}
        rows[step] = own = np.concatenate([known, taken])
        contents |= {page: tuple(pages[: place + 1]) for place, page in enumerate(own.tolist()) if place >= len(known)}
        pool.keep(text(*pages), own)
    assert pool.num_pages - pool.num_free == len({page for own in rows.values() for page in own.tolist()})
