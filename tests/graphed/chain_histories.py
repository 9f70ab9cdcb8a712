"""Random histories of chains: a device drafts them by itself, and an oracle pass by pass."""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.graphed import GraphedTransformer
from specdec.contracts import NEVER, IntArray
from tests.graphed.histories import VOCAB, Recorded
from tests.support.models.tiny_models import small_model

WRONG = 5  # after this id and those below it some models give NaN


def models(is_wrong: bool, device: str = "cpu", **changes: Any) -> list[Any]:
    """Return an eager oracle and a graphed one, on a device, of the same weights; with graphs or NaN after some ids.

    Graphs of the host run their passes when they are made, so that NaN would stand in slots that are still to come.
    """
    made = [small_model(dtype=torch.float64, **changes) for _ in range(2)]
    for model in made:
        with torch.no_grad():
            model.model.embed_tokens.weight[: (WRONG + 1) * is_wrong] = float("nan")
    new_capture = Recorded if device == "cpu" and not is_wrong else None
    return [made[0].pack(), GraphedTransformer(made[1].to(device).pack(), new_capture=new_capture)]


def single_passes(
    oracle: Any, tokens: IntArray, counts: IntArray, cache: Any, rows: IntArray, limits: IntArray
) -> tuple[Tensor, Tensor]:
    """Return ids and ``undefined`` of chains, a call for each id; what was read stands in the cache."""
    ids = torch.zeros(len(rows), limits.max(), dtype=torch.int64)
    undefined = torch.full((len(rows), 1), NEVER)
    fed, sizes = torch.from_numpy(tokens), counts
    for depth in range(limits.max()):
        live = np.flatnonzero(limits > depth)
        if depth:
            fed, sizes = ids[:, depth - 1 : depth], np.ones_like(counts)
        given = fed[live], None, torch.from_numpy(sizes[live]), cache, rows[live], "last"
        logits = oracle.score(*given).logits[:, 0].cpu()
        cache.commit(rows[live], None, sizes[live])
        ids[live, depth] = logits.argmax(-1)
        is_wrong = np.zeros(len(rows), dtype=bool)
        is_wrong[live] = logits.isnan().any(-1)
        undefined[is_wrong & (undefined[:, 0].numpy() == NEVER)] = depth
    return ids, undefined


def _ids(chance: np.random.Generator, *shape: int) -> IntArray:
    return chance.integers(WRONG + 1, VOCAB, shape)


def compare(oracles: list[Any], num_rows: int) -> int:
    """Have the second oracle draft chains as the first does, pass by pass; return how many rows were undefined.

    Rows are ragged, with limits of their own, and cut back at random; shapes are met again and again.
    """
    chance, every, caches, earlier, found = np.random.default_rng(num_rows), np.arange(num_rows), [], [], 0
    prompts, lengths = _ids(chance, num_rows, 60), chance.integers(1, 61, num_rows)
    for oracle in oracles:
        caches.append(oracle.new_cache(num_rows, 120))
        oracle.score(torch.from_numpy(prompts), None, torch.from_numpy(lengths), caches[-1], every, "none")
        caches[-1].commit(every, None, lengths)
    for _ in range(25):
        rows = chance.permutation(num_rows)[: chance.integers(1, num_rows + 1)]
        counts, limits = chance.integers(1, 3, len(rows)), chance.integers(1, 5, len(rows))
        tokens = _ids(chance, len(rows), counts.max() + chance.integers(3))
        ids, undefined = single_passes(oracles[0], tokens, counts, caches[0], rows, limits)
        draft, fed = oracles[1].device_chains(tokens, counts, caches[1], rows, limits), counts + limits - 1
        caches[1].commit(rows, None, fed)
        earlier.append((draft.tokens, ids))
        assert torch.equal(draft.tokens.cpu(), ids)
        assert draft.num_nodes.tolist() == limits.tolist()
        assert torch.equal(draft.undefined.cpu(), undefined)
        is_left = (caches[0].lengths[rows] > 100) | (undefined[:, 0].numpy() < NEVER)
        kept = caches[0].lengths[rows] - np.minimum(fed, chance.integers(0, 5, len(rows)))
        for cache in caches:
            cache.truncate(rows, kept)
            cache.reset(rows[is_left])
        found += int((undefined < NEVER).sum())
    assert all(torch.equal(tokens.cpu(), ids) for tokens, ids in earlier), "a later chain wrote into an earlier one"
    return found
