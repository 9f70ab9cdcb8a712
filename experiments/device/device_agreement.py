"""Whether a device computes what the CPU does, and whether speculation writes plain decoding's tokens on it."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.device.device_models import LOADED, Options, load_modes
from experiments.harness.models import AnyModel
from specdec import Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from specdec.prompts import load_prompts
from specdec.stats import Stats


def texts(options: Options, count: int | None) -> list[str]:
    """Return so many of the prompts (None: all), or those that there are."""
    return [prompt.text for prompt in load_prompts(options.prompts, None, count)]


def filling(prompts: Sequence[str], batch: int) -> list[str]:
    """Return prompts, repeated in their order until a batch is full."""
    return [prompts[number % len(prompts)] for number in range(max(batch, len(prompts)))]


def in_flight(stats: Stats) -> float:
    """Return the rows of a step, mean over a run."""
    return stats.num_steps / max(stats.target_calls, 1)


def agreement(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each backend: scores of chains and trees, and greedy texts, against the CPU's, in float32."""
    reference = oracles.load(options.oracle, "float32", "cpu", backend="eager")
    prompts = texts(options, options.num_prompts)
    wanted = SpeculativeDecoder(reference).generate(prompts, options.new_tokens).tokens
    for mode, oracle in load_modes(LOADED, options.oracle, "float32", options.device).items():
        row: dict[str, Any] = {"backend": mode}
        for name, draft in (("plain", None), ("prompt_lookup", PromptLookup(8))):
            found = SpeculativeDecoder(oracle, draft).generate(prompts, options.new_tokens).tokens
            row[f"texts that differ, {name}"] = sum(map(differ, found, wanted))
        for name, is_tree in (("chain", False), ("tree", True)):
            row[f"largest difference, {name}"] = difference(oracle, reference, is_tree)
        yield row


def differ(first: Sequence[int], second: Sequence[int]) -> bool:
    """Tell whether two texts differ."""
    return list(first) != list(second)


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


def identity(options: Options) -> Iterator[dict[str, Any]]:
    """Yield a row for each mode and way to decode: texts unlike those of plain decoding at batch 1.

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
                "texts that differ": sum(map(differ, found.tokens, wanted)),
                "exactness": found.exactness,
            }
