"""Chains whose ids the device finds by itself: they are those of single passes, and a shape of them is one graph."""

from typing import Any

import numpy as np
import pytest
import torch

import drafts
from oracles.graphed import GraphedTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.stats import Stats
from tests.graphed.chain_histories import compare, models
from tests.graphed.histories import PROMPTS, Recorded, pair
from tests.support.models.tiny_models import FAMILIES, small_model


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
        for batch_size in (1, 3) if name == "a model" else (3,):
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
    for width, size in ((1, 3), (1, 3), (2, 3), (1, 2), (2, 1), (1, 1), (1, 2)):
        limits = np.array([size, 1])
        model.device_chains(np.full((2, width), 3), np.array([1, width]), cache, rows, limits)
        made.append((model.counts.passes_outside, model.counts.passes_in_graphs, model.counts.captures, model.uploads))
    # Of one or two ids that stand, and of a chain that is shorter by half at most.
    assert made == [(1, 0, 0, 1), (1, 1, 1, 2), (1, 2, 1, 3), (1, 3, 1, 4), (2, 3, 1, 5), (2, 4, 2, 6), (2, 5, 2, 7)]
    counts = model.counts
    assert (counts.computed_nodes, counts.padded_rows) == (2 * sum((4, 4, 4, 4, 2, 2, 4)), 0)
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
