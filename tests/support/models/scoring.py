"""Random trees, their paths, and texts scored chunk by chunk."""

from collections.abc import Mapping

import numpy as np
import torch

from specdec.contracts import Oracle
from tests.reference.transformer import logits_after


def append(model, cache, row: int, ids: torch.Tensor, width: int = 64) -> torch.Tensor:
    """Score and commit ``ids`` on one row in chunks; return the logits of every one."""
    rows, parts = np.array([row]), []
    for chunk in ids.split(width):
        scores = model.score(chunk[None], None, torch.tensor([len(chunk)]), cache, rows)
        cache.commit(rows, None, np.array([len(chunk)]))
        parts.append(scores.logits[0])
    return torch.cat(parts)


def random_tree(batch: int, size: int, generator: torch.Generator) -> torch.Tensor:
    """Return parents ``[B, size]`` of random recursive trees."""
    parents = torch.full((batch, size), -1)
    for node in range(1, size):
        parents[:, node] = torch.randint(max(0, node - 4), node, (batch,), generator=generator)
    return parents


def path_to(parents: torch.Tensor, node: int) -> list[int]:
    path: list[int] = []
    while node >= 0:
        path.append(node)
        node = int(parents[node])
    return path[::-1]


def nodes_unlike_their_paths(model: Oracle) -> list[tuple[int, int]]:
    """Return (row, node) of two ragged trees whose logits have other bits than those of its path as a chain, alone."""
    generator = torch.Generator().manual_seed(7)
    ids = torch.randint(23, (60,), generator=generator)
    tokens, parents = torch.randint(23, (2, 30), generator=generator), random_tree(2, 30, generator)
    cache = model.new_cache(3, 128)
    append(model, cache, 0, ids, width=17)
    append(model, cache, 1, ids[:9], width=1)
    logits = model.score(tokens, parents, torch.tensor([30, 12]), cache, np.array([0, 1])).logits
    found = []
    for row, node in ((0, 0), (0, 13), (0, 29), (1, 11)):
        path = path_to(parents[row], node)
        again = model.new_cache(1, 128)
        append(model, again, 0, ids[: (60, 9)[row]], width=64)
        if not torch.equal(logits[row][path], append(model, again, 0, tokens[row, path], width=1)):
            found.append((row, node))
    return found


def assert_nodes_score_as_the_reference(
    model: Oracle, weights: Mapping[str, torch.Tensor], close: float, step: int = 1
) -> None:
    """Fail unless nodes of trees after two ragged rows score as the slow reference scores their own sequences.

    Args:
        model: of the weights, packed.
        weights: by the names of an unpacked model.
        close: how far a logit may be off.
        step: of so many nodes one is looked at.
    """
    generator = torch.Generator().manual_seed(1)
    ids, cache, lengths = torch.randint(23, (2, 7), generator=generator), model.new_cache(2, 40), (7, 4)
    for row, length in enumerate(lengths):
        append(model, cache, row, ids[row, :length], width=3)
    tokens, parents = torch.randint(23, (2, 9), generator=generator), random_tree(2, 9, generator)
    logits = model.score(tokens, parents, torch.tensor([9, 9]), cache, np.arange(2)).logits
    for row, length in enumerate(lengths):
        for node in range(0, 9, step):
            sequence = ids[row, :length].tolist() + tokens[row, path_to(parents[row], node)].tolist()
            expected = logits_after(weights, model.config, sequence)
            torch.testing.assert_close(logits[row, node].double(), expected, rtol=close, atol=close)
