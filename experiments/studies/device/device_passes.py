"""Times of passes by width and of whole runs, and whether a device computes what the CPU does."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from operator import ne
from statistics import mean
from typing import Any

import numpy as np
import torch

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.harness.findings.model_shapes import shape_of
from experiments.harness.models import AnyModel
from experiments.harness.rounds import Round, TimedArm, measure
from experiments.studies.device.device_models import LOADED, DeviceOptions, load_modes, random_models
from experiments.studies.limits.limit_timing import pass_arms, random_cache
from oracles.graphed import PassCounts
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import Cache, DraftSource, capability_of
from specdec.prompts import load_prompts
from specdec.stats import Stats
from specdec.theory.limits import pass_cost


def texts(options: DeviceOptions, count: int | None) -> list[str]:
    """Return ``count`` of the prompts (None: all), or all if there are fewer."""
    return [prompt.text for prompt in load_prompts(options.prompts, None, count)]


def filling(prompts: Sequence[str], batch: int) -> list[str]:
    """Return prompts, repeated in their order until a batch is full."""
    return [prompts[number % len(prompts)] for number in range(max(batch, len(prompts)))]


def in_flight(stats: Stats) -> float:
    """Return the rows of a step, mean over a run."""
    return stats.num_steps / max(stats.target_calls, 1)


def agreement(options: DeviceOptions) -> Iterator[dict[str, Any]]:
    """Yield a row for each backend: scores of chains and trees, and greedy texts, against the CPU's, in float32."""
    reference = oracles.load(options.oracle, "float32", "cpu", backend="eager")
    prompts = texts(options, options.num_prompts)
    wanted = SpeculativeDecoder(reference).generate(prompts, options.new_tokens).tokens
    for mode, oracle in load_modes(LOADED, options.oracle, "float32", options.device).items():
        row: dict[str, Any] = {"backend": mode}
        for name, draft in (("plain", None), ("prompt_lookup", PromptLookup(8))):
            found = SpeculativeDecoder(oracle, draft).generate(prompts, options.new_tokens).tokens
            row[f"texts that differ, {name}"] = sum(map(ne, found, wanted))
        for name, is_tree in (("chain", False), ("tree", True)):
            row[f"largest difference, {name}"] = difference(oracle, reference, is_tree)
        yield row


def difference(oracle: AnyModel, reference: AnyModel, is_tree: bool) -> float:
    """Return the largest difference of logits, over the largest logit: three passes on ragged rows."""
    scores = [_scores(model, is_tree) for model in (oracle, reference)]
    return float((scores[0] - scores[1]).abs().max() / scores[1].abs().max())


def _scores(model: AnyModel, is_tree: bool) -> torch.Tensor:
    generator, place = torch.Generator().manual_seed(0), model.device
    cache, rows, size = model.new_cache(3, 128), np.arange(3), 11
    ids = torch.randint(model.vocab_size, (3, 64), generator=generator)
    kept, found = np.array([64, 7, 33]), []
    # Ignored below: that the cache is the model's own cannot be told of a union of models.
    model.score(ids.to(place), None, torch.from_numpy(kept).to(place), cache, rows, "none")  # type: ignore[arg-type]
    cache.commit(rows, None, kept)
    above = ((torch.arange(size) - 1) // 2).expand(3, -1)
    for _ in range(3):
        tokens = torch.randint(model.vocab_size, (3, size), generator=generator).to(place)
        nodes = torch.full((3,), size, device=place)
        parents = above.to(place) if is_tree else None
        logits = model.score(tokens, parents, nodes, cache, rows).logits  # type: ignore[arg-type]
        assert logits is not None
        found.append(logits.cpu())
    return torch.stack(found)


# Sampled, so that texts do not fall into loops, by draws that all arms share; of whole laws and of cut ones in turn.
SAMPLING = [SamplingParams(temperature=0.8, top_p=top_p, ignore_eos=True) for top_p in (1.0, 0.95)]
_RULE = "coupled"


def identity(options: DeviceOptions) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and way to decode: how many texts differ from plain decoding's at batch 1.

    Prompts are repeated if they do not fill the largest batch; each has draws of its own.
    """
    batch = max(options.batch_sizes)
    prompts = filling(texts(options, options.identity_prompts), batch)
    sampling = [SAMPLING[number % len(SAMPLING)] for number in range(len(prompts))]
    draft = oracles.load(options.draft, options.dtype, options.device, backend="graphed")
    arms: dict[str, DraftSource | None] = {
        "plain": None,
        "prompt_lookup": PromptLookup(8),
        "chains of a model": SmallTransformer(draft, 4),
        "trees of a model": SmallTransformer(draft, tree=Kary(2, 3)),
    }
    modes = {name: keywords for name, keywords in LOADED.items() if name != "eager"}
    for mode, oracle in load_modes(modes, options.oracle, options.dtype, options.device).items():
        plain = SpeculativeDecoder(oracle, rule=_RULE)
        wanted = plain.generate(prompts, options.identity_tokens, sampling, batch_size=1).tokens
        for name, source in arms.items():
            decoder = SpeculativeDecoder(oracle, source, _RULE)
            found = decoder.generate(prompts, options.identity_tokens, sampling, batch_size=batch)
            yield {
                "mode": mode,
                "arm": f"{name}, batch {batch}",
                "rows in flight": in_flight(found.stats),
                "tokens": sum(map(len, wanted)),
                "texts": len(wanted),
                "texts that differ": sum(map(ne, found.tokens, wanted)),
                "exactness": found.exactness,
            }


def passes(options: DeviceOptions) -> Iterator[dict[str, Any]]:
    """Yield a row for each shape, batch, context and width: times of a pass by each mode, and t(W) / t(1)."""
    for name in options.shapes:
        models = random_models(name, getattr(torch, options.dtype), options.place)
        for batch, context in product(options.batch_sizes, options.contexts):
            yield from _passes(options, name, models, batch, context)
        del models


def _passes(
    options: DeviceOptions, name: str, models: dict[str, Any], batch: int, context: int
) -> list[dict[str, Any]]:
    """Return the rows of one batch and context; without times if the caches do not fit the memory."""
    try:
        # Graphs first: a new cache of theirs makes room by giving up the memory of the last. Their modes share one.
        caches: dict[Any, Cache] = {}
        arms: list[TimedArm] = []
        for mode in reversed(models):
            cache = _cache(options, models[mode], caches, batch, context)
            arms += pass_arms(models[mode], cache, options.widths, options.repeats, f"{mode} ")
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


def _cache(options: DeviceOptions, model: Any, caches: dict[Any, Cache], batch: int, context: int) -> Cache:
    """Return a filled cache for a model: one that another model has made, if this one can read it.

    Raises:
        ValueError: it does not fit the memory.
    """
    if model.cache_format not in caches:
        caches[model.cache_format] = random_cache(model, batch, context, max(options.widths))
    return caches[model.cache_format]


def decoding(options: DeviceOptions) -> Iterator[dict[str, Any]]:
    """Yield a row for each batch size, mode and source: tokens a second of greedy runs, and where passes ran.

    Prompts are repeated if they do not fill a batch.
    """
    models = load_modes(LOADED, options.oracle, None, options.device)
    for batch in options.batch_sizes:
        arms, prompts = [], filling(texts(options, options.num_prompts), batch)
        for (mode, model), draft in product(models.items(), (None, PromptLookup(8))):
            name = f"{mode}, {'plain' if draft is None else draft.name}"
            decoder = SpeculativeDecoder(model, draft)
            arms.append(TimedArm(name, partial(_time_decoding, decoder, prompts, options.new_tokens, batch)))
        timings = measure(arms, options.rounds, f"decoding, batch {batch}")
        for name in timings.seconds:
            row = {"batch": batch, "arm": name, "tokens/s": 1 / timings.spread(name).median}
            rows_in_flight, in_graphs = map(mean, zip(*timings.facts[name], strict=True))
            yield row | {"rows in flight": rows_in_flight, "share of passes in graphs": in_graphs}


def _time_decoding(decoder: SpeculativeDecoder, prompts: list[str], new_tokens: int, batch: int) -> Round:
    """Time a token of a run; tell the mean rows in flight, and the share of passes in graphs."""
    counts: PassCounts = capability_of(decoder.oracle, "counts") or PassCounts()
    before = replace(counts)
    stats = decoder.generate(prompts, new_tokens, batch_size=batch).stats
    inside, outside = (getattr(counts, name) - getattr(before, name) for name in ("passes_in_graphs", "passes_outside"))
    facts = in_flight(stats), inside / max(inside + outside, 1)
    return Round(stats.total_seconds / stats.num_emitted, facts=facts)
