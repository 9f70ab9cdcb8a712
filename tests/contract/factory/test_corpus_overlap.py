"""Shared passages are found exactly from their length on, wherever they stand."""

import numpy as np
import pytest

from oracles.factory.corpus.passage_index import PASSAGE_TOKENS, PassageIndex, passage_hashes
from tests.support.pairwise import pairwise

LENGTH = PASSAGE_TOKENS


def ids(seed: int, num_ids: int) -> list[int]:
    """Return random token ids, no number of tokens in a row of which two seeds share."""
    return np.random.default_rng(seed).integers(0, 4096, num_ids).tolist()


@pairwise({
    "before": (0, 1, 70), "after": (0, 1, 70),
    "num_shared, found": {"less": (LENGTH - 1, False), "just": (LENGTH, True), "more": (LENGTH + 1, True)},
})  # fmt: skip
def test_a_shared_run_counts_from_fifty_tokens_on(before: int, after: int, num_shared: int, found: bool) -> None:
    shared = ids(0, num_shared)
    prompt = ids(1, before) + shared + ids(2, after)
    train = ids(3, after) + shared + ids(4, before)
    assert PassageIndex([ids(5, 300), prompt]).find_overlaps([ids(6, 300), train]) == ({1} if found else set())


def test_every_text_with_the_passage_is_named() -> None:
    shared = ids(0, LENGTH)
    texts = [shared, ids(1, 90), ids(2, 9) + shared, []]
    assert PassageIndex(texts).find_overlaps([shared]) == {0, 2}


def test_passages_do_not_span_texts() -> None:
    shared = ids(0, LENGTH)
    index = PassageIndex([shared])
    assert not index.find_overlaps([shared[:30], shared[30:]])
    assert not PassageIndex([shared[:30], shared[30:]]).find_overlaps([shared])


@pytest.mark.parametrize("texts", [[], [[]], [ids(0, LENGTH - 1)]])
def test_without_a_passage_nothing_is_shared(texts: list[list[int]]) -> None:
    assert PassageIndex(texts).find_overlaps([ids(0, 200), []]) == set()


def test_hashes_tell_passages_apart_and_agree_on_equal_ones() -> None:
    text = ids(0, 400)
    hashes = passage_hashes(text, 5)
    assert hashes.dtype == np.uint64
    assert len(hashes) == 396
    assert len(np.unique(hashes)) == 396
    assert passage_hashes(text[17:22], 5).tolist() == [hashes[17]]


@pytest.mark.parametrize("swap", [([0, 1], [1, 0]), ([0, 0, 1], [0, 1, 0]), ([0], [1])])
def test_order_and_small_ids_matter(swap: tuple[list[int], list[int]]) -> None:
    first, second = swap
    assert passage_hashes(first, len(first)).tolist() != passage_hashes(second, len(second)).tolist()
