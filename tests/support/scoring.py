"""Random trees, their paths, and texts scored chunk by chunk."""

import numpy as np
import torch


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
