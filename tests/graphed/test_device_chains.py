"""Chains whose ids the device finds by itself: they are those of single passes, and a shape of them is one graph."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import drafts
from oracles.graphed import GraphedTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import NEVER, IntArray
from specdec.stats import Stats
from tests.graphed.histories import PROMPTS, VOCAB, Recorded, pair
from tests.support.models import FAMILIES, small_model

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


def test_chains_are_those_of_single_passes():
    for family, num_rows, is_wrong in (
        ("neox", 1, False),
        ("mistral", 3, False),
        ("gpt2", 8, False),
        ("llama", 8, True),
    ):
        oracles = models(is_wrong, **FAMILIES[family])
        assert (compare(oracles, num_rows) > 0) is is_wrong
        assert is_wrong or oracles[1].counts.passes_in_graphs > 5


def rough(**changes: Any) -> Any:
    """Return a model that mostly agrees with ``small_model``, unpacked."""
    model, generator = small_model(dtype=torch.float64, **changes), torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.04 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


SOURCES: dict[str, Any] = {
    "a model": lambda target, model: drafts.SmallTransformer(model, 4),
    "a view": lambda target, model: drafts.Quantized(target, model, 3),
    "a model that is asked now and then": lambda target, model: drafts.Cascade(
        [drafts.PromptLookup(3), drafts.SmallTransformer(model, 3)]
    ),
    "greedily for drawn tokens": lambda target, model: drafts.SmallTransformer(model, 3, temperature=0),
}


def test_runs_draft_what_they_draft_token_by_token():
    """With full acceptance and rollback, rows near the end of their budget and of the model's context."""
    plain = SpeculativeDecoder(pair(max_context=64)[0]).generate(PROMPTS, 100).tokens
    for name, make in SOURCES.items():
        sampling = SamplingParams(temperature=0.9 if name == "greedily for drawn tokens" else 0.0)
        for batch_size in (1, 3):
            found, seen = [], []
            for is_whole in (True, False):
                target = pair(max_context=64, new_capture=Recorded)[1]
                model = GraphedTransformer(
                    rough(max_context=64 if name == "a view" else 40).pack(), new_capture=Recorded
                )
                model.chains_on_device = is_whole
                run = SpeculativeDecoder(target, make(target, model)).generate(
                    PROMPTS, 100, sampling, batch_size=batch_size
                )
                stats: Stats = run.stats
                found.append((run.tokens, stats.num_drafted, stats.accepted_at_position, stats.target_calls))
                seen.append(model)
            assert found[0] == found[1], name
            assert sampling.temperature or found[0][0] == plain
            assert 0 < stats.num_accepted < stats.num_drafted
            assert seen[0].uploads < seen[1].uploads
            assert seen[0].counts.passes_in_graphs > 10


def test_a_shape_of_chains_is_one_graph():
    model = models(False)[1]
    cache, rows, made = model.new_cache(2, 64), np.arange(2), []
    for width, size in ((1, 3), (1, 3), (2, 3), (1, 2), (2, 3), (1, 2), (1, 3)):
        limits = np.array([size, 1])
        model.device_chains(np.full((2, width), 3), np.array([1, width]), cache, rows, limits)
        made.append((model.counts.passes_outside, model.counts.passes_in_graphs, model.counts.captures, model.uploads))
    assert made == [(1, 0, 0, 1), (1, 1, 1, 2), (2, 1, 1, 3), (3, 1, 1, 4), (3, 2, 2, 5), (3, 3, 3, 6), (3, 4, 3, 7)]
    counts = model.counts
    assert (counts.computed_nodes, counts.padded_rows) == (2 * sum((3, 3, 4, 2, 4, 2, 3)), 0)
    one = np.ones(2, dtype=np.int64)
    for wanted, tokens, counts, limits in (
        ("129 wide: score all but the last 128 ids before", np.zeros((2, 129), dtype=np.int64), one, one),
        ("row 0 holds 0 tokens and cannot take 65 more", one[:, None], one, 65 * one),
    ):
        with pytest.raises(ValueError, match=wanted):
            model.device_chains(tokens, counts, cache, rows, limits)
    short = GraphedTransformer(small_model(max_context=20).pack())
    cache = short.new_cache(2, 64)
    short.device_chains(one[:, None], one, cache, rows, 20 * one)
    with pytest.raises(ValueError, match="a row holds 20 tokens; max_context 20 has no position left"):
        short.device_chains(one[:, None], one, cache, rows, 21 * one)
