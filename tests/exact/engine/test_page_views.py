"""Pages are read where they lie, in few pieces, or copied side by side: numbers and scores are the same bit for bit."""

import numpy as np
import pytest
import torch

from oracles.transformer import attention
from oracles.transformer.page_views import copy_pages, view_pages
from specdec.cache import PAGE, PagedKVCache
from tests.support.backends import pack_eagerly
from tests.support.models.scoring import append, random_tree
from tests.support.models.tiny_models import small_model

HEADS, PAGES = 2, 8
GENERATOR = np.random.default_rng(0)


def whole(pages: np.ndarray) -> None:
    """Leave the pages of rows as they were taken."""


def apart(pages: np.ndarray) -> None:
    """Swap the first two pages of a row."""
    pages[1, :2] = pages[1, 1::-1].copy()


def in_any_order(pages: np.ndarray) -> None:
    pages[:] = GENERATOR.permutation(pages.ravel()).reshape(pages.shape)


# Rows of a cache, what becomes of its pages, and the pieces: how many, whether they are rows, whether they are copies.
TABLES = {
    "all rows": ([0, 1, 2, 3], whole, 4, (1, False, False)),
    "the first rows": ([0, 1, 2], whole, 4, (HEADS, False, False)),
    "every second row": ([1, 3, 5], whole, 7, (HEADS, False, False)),
    "as few rows as heads": ([0, 1], whole, 4, (2, True, False)),
    "one row": ([1], whole, 4, (1, True, False)),
    "unequal distances": ([0, 1, 3], whole, 4, (3, True, False)),
    "backwards": ([2, 1, 0], whole, 4, (3, True, False)),
    "a row lies apart": ([0, 1, 2], apart, 4, (1, False, True)),
    "pages of any row": ([0, 1, 2], in_any_order, 4, (1, False, True)),
}
every_table = pytest.mark.parametrize(("rows", "move", "num_rows", "kind"), TABLES.values(), ids=TABLES)


@every_table
def test_views_hold_what_lies_in_the_lines_of_rows(rows, move, num_rows, kind):
    shape = (3, 2, HEADS), (5,), num_rows, PAGES * PAGE
    cache = PagedKVCache.alone(*shape, torch.float32, torch.device("cpu"))
    cache.payload.normal_()
    move(cache.pages)
    count = PAGES // 2
    pages = cache.span(np.array(rows), count)
    views = view_pages(cache.memory, pages)
    assert (len(views.pieces), views.rows_first, views.room is not None) == kind
    lines = cache.lines(np.array(rows)[:, None], np.arange(count * PAGE))
    for layer in range(3):
        if views.room is not None:
            copy_pages(cache.memory, layer, torch.from_numpy(pages.ravel()), views.room)
        # [2, K, B, T, D]
        there = cache.payload[layer][:, :, lines]
        there = there.transpose(1, 2) if views.rows_first else there
        assert torch.equal(torch.cat([piece[layer] for piece in views.pieces], dim=1), there.flatten(1, 2))


@pytest.fixture(scope="module")
def model():
    packed = pack_eagerly(small_model(num_heads=4, num_kv_heads=HEADS))
    assert packed.bitwise
    return packed


@pytest.mark.parametrize("is_tree", [False, True], ids=["chains", "trees"])
@every_table
def test_scores_are_the_same_bits_wherever_pages_lie(rows, move, num_rows, kind, is_tree, model, monkeypatch):
    generator, size = torch.Generator().manual_seed(0), 9
    texts = [torch.randint(23, (70 + 5 * i,), generator=generator) for i in range(len(rows))]
    tokens = torch.randint(23, (len(rows), size), generator=generator)
    parents = random_tree(len(rows), size, generator) if is_tree else None
    kinds = []

    def view(*args):
        views = view_pages(*args)
        kinds.append((len(views.pieces), views.rows_first, views.room is not None))
        return views

    alone, together = (model.new_cache(count, PAGES * PAGE) for count in (1, num_rows))
    move(together.pages)
    for row, text in zip(rows, texts, strict=True):
        append(model, together, row, text)
    monkeypatch.setattr(attention, "view_pages", view)
    scored = model.score(tokens, parents, torch.full((len(rows),), size), together, np.array(rows)).logits
    assert kinds == [kind]
    for i, text in enumerate(texts):
        alone.reset(np.array([0]))
        append(model, alone, 0, text)
        own = None if parents is None else parents[i : i + 1]
        by_itself = model.score(tokens[i : i + 1], own, torch.tensor([size]), alone, np.array([0])).logits
        assert torch.equal(scored[i], by_itself[0])
