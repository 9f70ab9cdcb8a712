"""Times of matrix products by rows, of passes by width, and of whole runs."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
import torch

import oracles
from drafts import PromptLookup
from experiments.bench_oracle.rounds import TimedArm, measure
from experiments.device.agreement import texts
from experiments.device.models import SHAPES, random_models, seconds_of
from experiments.device.options import Options
from experiments.limits.timing import filled_cache
from experiments.model_shapes import shape_of
from oracles.graphed import PassCounts
from oracles.loading import LoadedOracle
from specdec import SpeculativeDecoder
from specdec.limits import pass_cost

ROWS = (1, 2, 4, 8, 16, 32, 64, 128)
SEEDS = 3


def products(options: Options) -> list[dict[str, Any]]:
    """Return a row for each shape and number of rows: a layer's widest product, as it is and padded to 128 rows.

    Bits are kept if each of the first rows is, alone, what it is among all: alone in the product, or in its padding.
    """
    rows = []
    for name, count in product(options.shapes, ROWS):
        config, dtype = SHAPES[name], getattr(torch, options.dtype)
        weight = torch.randn(config.intermediate_size, config.hidden_size, device=options.place).to(dtype)
        row: dict[str, Any] = {"shape": name, "rows": count}
        for kind, among, alone in (("plain", count, 1), ("padded", ROWS[-1], ROWS[-1])):
            x = torch.zeros(among, config.hidden_size, dtype=dtype, device=options.place)
            row[f"bits kept, {kind}"] = all(_keeps_bits(x, weight, count, alone, seed) for seed in range(SEEDS))
            run = partial(torch.nn.functional.linear, x, weight)
            row[f"us, {kind}"] = 1e6 * seconds_of(run, options.place, options.repeats)
        rows.append(row)
    return rows


def _keeps_bits(x: torch.Tensor, weight: torch.Tensor, count: int, alone: int, seed: int) -> bool:
    """Tell whether the first of ``count`` random rows have the bits that each has in a product of ``alone`` rows."""
    x[:count].normal_(generator=torch.Generator(x.device).manual_seed(seed))
    together = torch.nn.functional.linear(x, weight)
    for row in range(min(count, 4)):
        single = x.new_zeros(alone, x.shape[1])
        single[0] = x[row]
        if not torch.equal(torch.nn.functional.linear(single, weight)[0], together[row]):
            return False
    return True


def passes(options: Options) -> list[dict[str, Any]]:
    """Return a row for each shape, batch, context and width: times of a pass eagerly and in graphs, and t(W) / t(1)."""
    rows: list[dict[str, Any]] = []
    for name in options.shapes:
        models = random_models(name, getattr(torch, options.dtype), options.place)
        for batch, context in product(options.batch_sizes, options.contexts):
            rows += _passes(options, name, models, batch, context)
        del models
    return rows


def _passes(options: Options, name: str, models: dict[str, Any], batch: int, context: int) -> list[dict[str, Any]]:
    """Return the rows of one batch and context; without times where the caches do not fit the memory."""
    try:
        # Graphs first: a new cache of theirs makes room by giving up the memory of the last.
        arms = [arm for backend in reversed(models) for arm in _arms(options, backend, models[backend], batch, context)]
    except ValueError as error:
        print(f"{name}, batch {batch} after {context}: {error}", file=sys.stderr)
        arms = []
    timings, rows = measure(arms, options.rounds, f"{name}, batch {batch} after {context}"), []
    for width in options.widths:
        row: dict[str, Any] = {"shape": name, "batch": batch, "context": context, "width": width}
        least = pass_cost(shape_of(models["eager"]), batch, width, context).bytes
        for backend in models:
            seconds, one = (timings.spread(f"{backend} {w}").median if arms else None for w in (width, 1))
            row[f"ms, {backend}"] = seconds and 1e3 * seconds
            row[f"t(W)/t(1), {backend}"] = seconds and one and seconds / one
            row[f"GB/s, {backend}"] = seconds and least / seconds / 1e9
        rows.append(row)
    return rows


def _arms(options: Options, backend: str, model: Any, batch: int, context: int) -> list[TimedArm]:
    """Return an arm for each width, on one cache.

    Raises:
        ValueError: it does not fit the memory.
    """
    cache, rows, arms = filled_cache(model, batch, context, max(options.widths)), np.arange(batch), []
    for width in options.widths:
        tokens = torch.ones(batch, width, dtype=torch.int64, device=options.place)
        nodes = torch.full((batch,), width, device=options.place)
        score = partial(model.score, tokens, None, nodes, cache, rows, "all")
        arms.append(TimedArm(f"{backend} {width}", partial(_timed, score, options)))
    return arms


def _timed(score: Callable[[], object], options: Options) -> tuple[float, None]:
    return seconds_of(score, options.place, options.repeats), None


def decoding(options: Options) -> list[dict[str, Any]]:
    """Return a row for each batch size, backend and source: tokens a second of greedy runs, and where passes ran."""
    prompts, rows = texts(options), []
    graphed = oracles.load(options.oracle, None, options.device, backend="graphed")
    eager = oracles.load(options.oracle, None, options.device, backend="eager")
    models: dict[str, LoadedOracle] = {"eager": eager, "graphed": graphed}
    for batch in options.batch_sizes:
        arms, shares = [], dict[str, list[float]]()
        for (backend, model), draft in product(models.items(), (None, PromptLookup(8))):
            name = f"{backend}, {'plain' if draft is None else draft.name}"
            asked = (prompts, options.new_tokens, batch, shares.setdefault(name, []))
            arms.append(TimedArm(name, partial(_decoded, SpeculativeDecoder(model, draft), *asked)))
        timings = measure(arms, options.rounds, f"decoding, batch {batch}")
        for name in timings.seconds:
            row = {"batch": batch, "arm": name, "tokens/s": 1 / timings.spread(name).median}
            rows.append(row | {"share of passes in graphs": mean(shares[name])})
    return rows


def _decoded(
    decoder: SpeculativeDecoder, prompts: list[str], new_tokens: int, batch: int, shares: list[float]
) -> tuple[float, None]:
    """Return the seconds of a token of a run; append the share of its passes that ran in graphs."""
    counts: PassCounts = getattr(decoder.oracle, "counts", PassCounts())
    before = replace(counts)
    stats = decoder.generate(prompts, new_tokens, batch_size=batch).stats
    inside, outside = (getattr(counts, name) - getattr(before, name) for name in ("passes_in_graphs", "passes_outside"))
    shares.append(inside / max(inside + outside, 1))
    return stats.total_seconds / stats.num_emitted, None
