"""Times of passes by width, and of whole runs."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from itertools import product
from statistics import mean
from typing import Any

import numpy as np
import torch

from drafts import PromptLookup
from experiments.bench.oracle.rounds import TimedArm, measure
from experiments.device.device_agreement import filling, in_flight, texts
from experiments.device.device_models import LOADED, Options, load_modes, random_models, seconds_of
from experiments.findings.model_shapes import shape_of
from experiments.limits.limit_timing import random_cache
from oracles.graphed import PassCounts
from specdec import SpeculativeDecoder
from specdec.contracts import Cache, declared
from specdec.theory.limits import pass_cost


def passes(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape, batch, context and width: times of a pass by each mode, and t(W) / t(1)."""
    for name in options.shapes:
        models = random_models(name, getattr(torch, options.dtype), options.place)
        for batch, context in product(options.batch_sizes, options.contexts):
            yield from _passes(options, name, models, batch, context)
        del models


def _passes(options: Options, name: str, models: dict[str, Any], batch: int, context: int) -> list[dict[str, Any]]:
    """Return the rows of one batch and context; without times where the caches do not fit the memory."""
    try:
        # Graphs first: a new cache of theirs makes room by giving up the memory of the last. Their modes share one.
        caches: dict[Any, Cache] = {}
        arms = [
            arm
            for mode in reversed(models)
            for arm in _arms(options, mode, models[mode], _cache(options, models[mode], caches, batch, context))
        ]
    except ValueError as error:
        print(f"{name}, batch {batch} after {context}: {error}", file=sys.stderr)
        arms = []
    timings, rows = measure(arms, options.rounds, f"{name}, batch {batch} after {context}"), []
    for width in options.widths:
        row: dict[str, Any] = {"shape": name, "batch": batch, "context": context, "width": width}
        least = pass_cost(shape_of(models["eager"]), batch, width, context).bytes
        for mode in models:
            seconds, one = (timings.spread(f"{mode} {w}").median if arms else None for w in (width, 1))
            row[f"ms, {mode}"] = seconds and 1e3 * seconds
            row[f"t(W)/t(1), {mode}"] = seconds and one and seconds / one
            row[f"GB/s, {mode}"] = seconds and least / seconds / 1e9
        rows.append(row)
    return rows


def _cache(options: Options, model: Any, caches: dict[Any, Cache], batch: int, context: int) -> Cache:
    """Return a filled cache for a model: one that another has made already, if it can read that.

    Raises:
        ValueError: it does not fit the memory.
    """
    if model.cache_format not in caches:
        caches[model.cache_format] = random_cache(model, batch, context, max(options.widths))
    return caches[model.cache_format]


def _arms(options: Options, mode: str, model: Any, cache: Cache) -> list[TimedArm]:
    """Return an arm for each width, on one cache."""
    arms, rows = [], np.arange(len(cache.lengths))
    for width in options.widths:
        tokens = torch.ones(len(rows), width, dtype=torch.int64, device=options.place)
        nodes = torch.full((len(rows),), width, device=options.place)
        score = partial(model.score, tokens, None, nodes, cache, rows, "all")
        arms.append(TimedArm(f"{mode} {width}", partial(_time_pass, score, options)))
    return arms


def _time_pass(score: Callable[[], object], options: Options) -> tuple[float, None]:
    return seconds_of(score, options.place, options.repeats), None


def decoding(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size, mode and source: tokens a second of greedy runs, and where passes ran.

    Prompts are repeated if they do not fill a batch.
    """
    models = load_modes(LOADED, options.oracle, None, options.device)
    for batch in options.batch_sizes:
        arms, facts = [], dict[str, dict[str, list[float]]]()
        prompts = filling(texts(options, options.num_prompts), batch)
        for (mode, model), draft in product(models.items(), (None, PromptLookup(8))):
            name = f"{mode}, {'plain' if draft is None else draft.name}"
            asked = (prompts, options.new_tokens, batch, facts.setdefault(name, {}))
            arms.append(TimedArm(name, partial(_time_decoding, SpeculativeDecoder(model, draft), *asked)))
        timings = measure(arms, options.rounds, f"decoding, batch {batch}")
        for name in timings.seconds:
            row = {"batch": batch, "arm": name, "tokens/s": 1 / timings.spread(name).median}
            yield row | {fact: mean(values) for fact, values in facts[name].items()}


def _time_decoding(
    decoder: SpeculativeDecoder, prompts: list[str], new_tokens: int, batch: int, facts: dict[str, list[float]]
) -> tuple[float, None]:
    """Return the seconds of a token of a run; append what else is told of it to ``facts``."""
    counts: PassCounts = declared(decoder.oracle, "counts") or PassCounts()
    before = replace(counts)
    stats = decoder.generate(prompts, new_tokens, batch_size=batch).stats
    inside, outside = (getattr(counts, name) - getattr(before, name) for name in ("passes_in_graphs", "passes_outside"))
    facts.setdefault("rows in flight", []).append(in_flight(stats))
    facts.setdefault("share of passes in graphs", []).append(inside / max(inside + outside, 1))
    return stats.total_seconds / stats.num_emitted, None
