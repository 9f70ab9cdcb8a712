"""Check, with a model's own shapes, that its scores do not depend on how passes are cut."""

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import IntArray, Oracle
from specdec.transfers import HOST

_PREFIX, _PATH = 60, 8
# One seed can show equal bits by chance.
SEEDS = range(3)


def has_bitwise_scores(model: Oracle) -> bool:
    """Tell whether passes of different shapes give a path's logits bit for bit alike.

    Paths of three seeds cross a block boundary of the attention. Each is scored in three ways: token by token on its
    own row; as one chain, between two rows of other lengths with differently cut prompts; and in a tree with random
    branches.

    Args:
        model: an oracle; it is not changed.

    Cost: about 600 scored tokens.
    """
    return all(_is_bitwise(model, torch.Generator().manual_seed(seed)) for seed in SEEDS)


def _is_bitwise(model: Oracle, generator: torch.Generator) -> bool:
    length = min(_PREFIX + _PATH, model.max_context)
    ids = torch.randint(model.vocab_size, (3, length), generator=generator, device=HOST).to(model.device)
    path = max(1, min(_PATH, length - 1))
    alone = _token_by_token(model, ids[:1], length - path)
    return bool(
        torch.equal(alone, _between_neighbours(model, ids, length - path))
        and torch.equal(alone, _among_branches(model, ids[0], length - path, generator))
    )


def append_ids(model: Oracle, cache: object, ids: Tensor, rows: IntArray, width: int) -> Tensor:
    """Score and commit ``ids`` ``[B, L]`` in chains of ``width``; return their logits."""
    parts = []
    for chunk in torch.split(ids, width, dim=1):
        kept = np.full(len(rows), chunk.shape[1])
        parts.append(model.score(chunk, None, torch.from_numpy(kept), cache, rows).logits)
        cache.commit(rows, None, kept)  # type: ignore[attr-defined]
    return torch.cat([part for part in parts if part is not None], dim=1)


def _token_by_token(model: Oracle, ids: Tensor, prefix: int) -> Tensor:
    cache, row = model.new_cache(1, ids.shape[1]), np.zeros(1, dtype=np.int64)
    if prefix:
        append_ids(model, cache, ids[:, :prefix], row, prefix)
    return append_ids(model, cache, ids[:, prefix:], row, 1)[0]


def _between_neighbours(model: Oracle, ids: Tensor, prefix: int) -> Tensor:
    cache = model.new_cache(3, ids.shape[1])
    for row, length in enumerate((prefix, prefix // 2, prefix // 3)):
        if length:
            append_ids(model, cache, ids[[row], :length], np.array([row]), 17)
    rows = np.arange(3)
    return append_ids(model, cache, ids[:, prefix:], rows, ids.shape[1])[0]


def _among_branches(model: Oracle, ids: Tensor, prefix: int, generator: torch.Generator) -> Tensor:
    cache, row = model.new_cache(1, len(ids) + len(ids)), np.zeros(1, dtype=np.int64)
    if prefix:
        append_ids(model, cache, ids[None, :prefix], row, 29)
    # The path's nodes have even indices; each is followed by a sibling of its successor.
    path = len(ids) - prefix
    tokens = torch.randint(model.vocab_size, (1, 2 * path), generator=generator, device=HOST).to(ids.device)
    tokens[0, ::2] = ids[prefix:]
    logits = model.score(tokens, comb(path).to(ids.device), torch.tensor([2 * path], device=HOST), cache, row).logits
    assert logits is not None
    return logits[0, ::2]


def comb(depth: int) -> Tensor:
    """Return parents ``[1, 2 * depth]`` of a tree: the even nodes are a path, the odd ones a sibling of each."""
    parents = torch.arange(2 * depth, device=HOST) // 2 * 2
    parents[::2] -= 2
    parents[0] = -1
    return parents.unsqueeze(0)
