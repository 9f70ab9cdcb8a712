"""The tabular oracle fulfils the oracle contract: laws, trees, cache, shapes; and its tables are what they promise."""

import pytest
import torch

from oracles.tabular import TabularLM
from specdec.cache import KVCache
from specdec.contracts import Oracle
from tests.support.texts.records import rows_of


def law(model: TabularLM, ids: list[int]) -> torch.Tensor:
    """Return the law of the id after ``ids``, read off the table one index at a time."""
    padded = [0] * model.order + ids
    table = model.table
    for token in padded[len(padded) - model.order :]:
        table = table[token]
    return table


def filled_cache(model: TabularLM, prefixes: list[list[int]], capacity: int = 16) -> KVCache:
    cache = model.new_cache(len(prefixes), capacity)
    for row, prefix in enumerate(prefixes):
        if prefix:
            ids = torch.tensor([prefix])
            model.score(ids, None, torch.tensor([len(prefix)]), cache, rows_of(row), "none")
            cache.commit(rows_of(row), None, rows_of(len(prefix)))
    return cache


def test_it_is_an_oracle() -> None:
    model: Oracle = TabularLM.random(3, 1, seed=0, eos_id=2)
    assert (model.vocab_size, model.eos_ids, model.tokenizer, model.dtype) == (3, (2,), None, torch.float64)
    assert model.bitwise
    assert model.weight_bytes == 2 * 9 * 8
    assert TabularLM.random(3, 1, seed=0).eos_ids == ()


@pytest.mark.parametrize("order", [0, 1, 2, 3])
def test_chain_scores_are_the_tables_laws(order: int) -> None:
    model = TabularLM.random(4, order, seed=order)
    prefixes = [[], [3], [1, 2, 3, 1]]
    cache = filled_cache(model, prefixes)
    rows = rows_of(2, 0, 1)
    tokens = torch.tensor([[2, 3, 1], [1, 3, 2], [3, 0, 1]])
    scores = model.score(tokens, None, torch.tensor([3, 3, 3]), cache, rows)
    assert scores.logits is not None
    for b, row in enumerate(rows):
        for i in range(3):
            expected = law(model, prefixes[row] + tokens[b, : i + 1].tolist())
            assert torch.equal(scores.logits[b, i], expected.log())


def random_parents(batch: int, size: int, generator: torch.Generator) -> torch.Tensor:
    parents = torch.full((batch, size), -1)
    for i in range(1, size):
        parents[:, i] = torch.randint(0, i, (batch,), generator=generator)
    return parents


def test_tree_nodes_see_their_path_and_nothing_else_and_commit_keeps_it() -> None:
    generator = torch.Generator().manual_seed(0)
    model = TabularLM.random(5, 3, seed=1)
    texts: list[list[int]] = [[1], [4, 3, 2], [], [2, 2, 1, 0, 3]]
    cache = filled_cache(model, texts, capacity=40)
    rows = rows_of(3, 1, 0, 2)
    for _ in range(4):
        tokens = torch.randint(0, 5, (4, 7), generator=generator)
        parents = random_parents(4, 7, generator)
        stops = torch.randint(0, 7, (4,), generator=generator)
        logits = model.score(tokens, parents, torch.full((4,), 7), cache, rows).logits
        assert logits is not None
        paths = []
        for b, row in enumerate(rows):
            for i in range(7):
                assert torch.equal(logits[b, i], law(model, texts[row] + ids_to(tokens[b], parents[b], i)).log())
            paths.append(nodes_to(parents[b], int(stops[b])))
        num_kept = rows_of(*map(len, paths))
        padded = torch.tensor([path + [6] * (7 - len(path)) for path in paths])
        cache.commit(rows, padded, num_kept)
        for b, row in enumerate(rows):
            texts[row] = texts[row] + tokens[b, paths[b]].tolist()
        assert cache.lengths.tolist() == [len(text) for text in texts]


def nodes_to(parents: torch.Tensor, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.insert(0, node)
        node = int(parents[node])
    return path


def ids_to(tokens: torch.Tensor, parents: torch.Tensor, node: int) -> list[int]:
    ids: list[int] = tokens[nodes_to(parents, node)].tolist()
    return ids


def test_want_selects_logits() -> None:
    model = TabularLM.random(4, 2, seed=3)
    cache = filled_cache(model, [[1, 2], [3]])
    tokens, num_nodes, rows = torch.tensor([[0, 1, 2], [3, 1, 0]]), torch.tensor([2, 3]), rows_of(0, 1)
    for parents in (None, torch.tensor([[-1, 0, 0], [-1, 0, 0]])):
        every = model.score(tokens, parents, num_nodes, cache, rows, "all").logits
        last = model.score(tokens, parents, num_nodes, cache, rows, "last").logits
        assert every is not None
        assert last is not None
        assert every.dtype == torch.float64
        assert torch.equal(last, torch.stack([every[0, 1:2], every[1, 2:3]]))
        assert model.score(tokens, parents, num_nodes, cache, rows, "none").logits is None


def test_rejected_nodes_and_predecessors_leave_no_trace() -> None:
    model = TabularLM.random(4, 2, seed=4)
    cache = filled_cache(model, [[1, 2, 3, 3]])
    cache.truncate(rows_of(0), rows_of(1))
    again = model.score(torch.tensor([[0]]), None, torch.tensor([1]), cache, rows_of(0)).logits
    assert again is not None
    assert torch.equal(again[0, 0], law(model, [1, 0]).log())
    cache.reset(rows_of(0))
    fresh = model.score(torch.tensor([[3]]), None, torch.tensor([1]), cache, rows_of(0)).logits
    assert fresh is not None
    assert torch.equal(fresh[0, 0], law(model, [3]).log())


def test_zeros_of_the_table_are_minus_infinity() -> None:
    model = TabularLM([[0.0, 1.0], [0.25, 0.75]])
    cache = model.new_cache(1, 4)
    logits = model.score(torch.tensor([[0, 1]]), None, torch.tensor([2]), cache, rows_of(0)).logits
    assert logits is not None
    assert logits[0, 0].tolist() == [-torch.inf, 0.0]
    expected = torch.tensor([0.25, 0.75], dtype=torch.float64)
    torch.testing.assert_close(logits[0, 1].softmax(0), expected, rtol=0.0, atol=1e-15)


def test_random_tables_are_reproducible_laws_that_differ_between_contexts() -> None:
    first, again, other = (TabularLM.random(5, 2, seed=s).table for s in (7, 7, 8))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert first.shape == (5, 5, 5)
    contexts = first.view(25, 5)
    assert bool((torch.cdist(contexts, contexts) + torch.eye(25) > 1e-3).all())
    assert not torch.allclose(first, first.transpose(0, 1), atol=1e-2)


@pytest.mark.parametrize("alpha", [0.0, 0.05, 0.5, 0.8, 1.0])
@pytest.mark.parametrize(("vocab_size", "order"), [(2, 0), (3, 2), (16, 1)])
def test_pairs_overlap_by_alpha_in_every_context(vocab_size: int, order: int, alpha: float) -> None:
    target, draft = TabularLM.pair(vocab_size, order, alpha, seed=5)
    assert target.table.shape == draft.table.shape == (vocab_size,) * (order + 1)
    overlap = torch.minimum(target.table, draft.table).sum(-1)
    torch.testing.assert_close(overlap, torch.full_like(overlap, alpha), rtol=0.0, atol=1e-14)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        (1.0, "shape"),
        ([[0.5, 0.5]], "shape"),
        ([], "shape"),
        ([1.5, -0.5], "negative"),
        ([float("nan"), 1.0], "non-finite"),
        ([0.5, 0.4], "sum of 1"),
    ],
)
def test_bad_tables_are_refused(table: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TabularLM(table)


def a_call(ids: tuple[int, ...] = (0,), **options: object) -> torch.Tensor:
    model = TabularLM.random(3, 1, seed=0)
    return model.score(
        torch.tensor([ids]), None, torch.tensor([len(ids)]), model.new_cache(1, 2), rows_of(0), **options
    )


def test_bad_arguments_are_refused() -> None:
    for call, message in (
        (lambda: TabularLM.random(3, 1, seed=0, eos_id=-1), "eos_id"),
        (lambda: TabularLM.random(3, 1, seed=0, eos_id=3), "eos_id"),
        (lambda: TabularLM.random(0, 1, seed=0), "vocab_size"),
        (lambda: TabularLM.random(3, -1, seed=0), "order"),
        (lambda: TabularLM.pair(3, 1, 1.5, seed=0), "alpha"),
        (lambda: TabularLM.pair(1, 1, 0.5, seed=0), "at least 2 ids"),
        (lambda: TabularLM([1.0], max_context=0), "max_context"),
        (lambda: a_call(hidden=(0,)), "hidden"),
        (lambda: a_call(want="some"), "want"),
        (lambda: a_call((-1,)), "outside"),
        (lambda: a_call((3,)), "outside"),
        (lambda: a_call((0, 1, 2)), "capacity"),
        (lambda: TabularLM.random(3, 1, seed=0).new_cache(10, 10, max_cache_bytes=100), "max_cache_bytes"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
