"""Random calls, and random histories of ragged rows, given to several oracles at once."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles import Transformer
from oracles.graphed import Graph, GraphedTransformer
from tests.support.models.scoring import path_to, random_tree
from tests.support.models.tiny_models import small_model

VOCAB = 23
PROMPTS = [[1, 2, 3, 1, 2, 3, 1, 2], [5], [4, 4, 5, 4, 4, 5, 4], [7, 8, 9]]


class Recorded:
    """Make graphs that compute again from the very tensors that the captured pass read."""

    def __init__(self) -> None:
        self.made = 0

    def __call__(self, compute: Callable[[], tuple[torch.Tensor, ...]]) -> Graph:
        self.made += 1
        nothing = {True: float("nan"), False: -1}
        outputs = tuple(torch.full_like(x, nothing[x.is_floating_point()]) for x in compute())

        def replay() -> None:
            with torch.no_grad():
                for output, new in zip(outputs, compute(), strict=True):
                    output.copy_(new)

        return Graph(replay, outputs)


def pair(
    dtype: torch.dtype = torch.float64, new_capture=None, **changes: Any
) -> tuple[Transformer, GraphedTransformer]:
    """Return an eager oracle and a graphed one of the same weights."""
    eager, model = (small_model(dtype=dtype, **changes).pack() for _ in range(2))
    return eager, GraphedTransformer(model, new_capture=new_capture)


def close(found: Tensor, wanted: Tensor) -> None:
    """Fail if scores of float64 models differ by more than rounding."""
    torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)


@dataclass
class Asked:
    """One scoring call: its arguments, and whether it is a tree."""

    tokens: Tensor
    parents: Tensor | None
    num_nodes: Tensor
    rows: np.ndarray
    given: dict[str, Any] = field(default_factory=dict)

    def of(self, oracle: Any, cache: Any) -> Any:
        """Return the oracle's scores."""
        return oracle.score(self.tokens, self.parents, self.num_nodes, cache, self.rows, **self.given)

    def real(self, values: Tensor) -> Tensor:
        """Return the scores of real nodes ``[num, X]``."""
        return values[torch.arange(values.shape[1]) < self.num_nodes.unsqueeze(1)]


def asked(num_rows: int, size: int, tree: bool, rows: np.ndarray, generator: torch.Generator, **given: Any) -> Asked:
    """Return a call of random nodes; the first row's are all real."""
    nodes = torch.randint(1, size + 1, (num_rows,), generator=generator)
    nodes[0] = size
    parents = random_tree(num_rows, size, generator) if tree else None
    return Asked(torch.randint(VOCAB, (num_rows, size), generator=generator), parents, nodes, rows, given)


def fill(models: list[Any], caches: list[Any], lengths: list[int], generator: torch.Generator) -> None:
    """Put random prompts of these lengths into the rows of all caches."""
    for row, length in enumerate(lengths):
        if length:
            ids, at, kept = torch.randint(VOCAB, (1, length), generator=generator), np.array([row]), np.array([length])
            for model, cache in zip(models, caches, strict=True):
                model.score(ids, None, torch.tensor([length]), cache, at, "none")
                cache.commit(at, None, kept)


def history(models: list[Any], num_rows: int, steps: int, seed: int) -> Iterator[tuple[Asked, list[Any]]]:
    """Yield calls on ragged rows that grow, roll back and begin anew, and each model's scores of them."""
    generator, chance = torch.Generator().manual_seed(seed), np.random.default_rng(seed)
    caches = [model.new_cache(num_rows, 250) for model in models]
    fill(models, caches, chance.integers(0, 90, num_rows).tolist(), generator)
    for _ in range(steps):
        rows = chance.permutation(num_rows)[: chance.integers(1, num_rows + 1)]
        call = asked(len(rows), int(chance.integers(1, 14)), chance.random() < 0.6, rows, generator)
        call.given["want"] = str(chance.choice(["all", "last"]))
        yield call, [call.of(model, cache) for model, cache in zip(models, caches, strict=True)]
        path, kept = _accepted(call, chance)
        for cache in caches:
            cache.commit(rows, None if call.parents is None else path, kept)
            cache.truncate(rows[:1], np.maximum(cache.lengths[rows[:1]] - int(kept[0]) // 2, 0))
        full = np.flatnonzero(caches[0].lengths > 200)
        for cache in caches:
            cache.reset(full)


def _accepted(call: Asked, chance: np.random.Generator) -> tuple[Tensor, np.ndarray]:
    """Return a path of each row that is kept, and its length."""
    path, kept = torch.zeros_like(call.tokens), np.zeros(len(call.rows), dtype=np.int64)
    for b, count in enumerate(call.num_nodes.tolist()):
        node = int(chance.integers(0, count))
        own = list(range(node + 1)) if call.parents is None else path_to(call.parents[b], node)
        path[b, : len(own)], kept[b] = torch.tensor(own), len(own)
    return path, kept
