"""Plain greedy decoding: one pass a token, by every program, on the same weights and prompts."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.bench.oracle.benchmark_models import STORAGES, Models
from experiments.bench.oracle.benchmark_parts import PROMPT, BenchOptions, Row, ShapeRounds
from experiments.harness.rounds import Round, TimedArm, time_call
from specdec import Oracle, SamplingParams, SpeculativeDecoder
from specdec.contracts import IntArray

GREEDY = SamplingParams(ignore_eos=True)


def name_of(batch: int, program: str) -> str:
    """Return an arm's name."""
    return f"decode, batch {batch}, {program}"


def mark_nothing() -> None:
    """Ignore a token."""


def decode(model: Oracle, num_new: int, prompts: Tensor, mark: Callable[[], None] = mark_nothing) -> Tensor:
    """Return ``[B, num_new]`` greedy ids by a bare loop of passes, the first of which scores the prompts.

    Args:
        model: scores, on a cache of its own.
        num_new: ids that are added to each prompt.
        prompts: ``[B, P]`` ids.
        mark: is called whenever there is a new id of each row.
    """
    batch, length = prompts.shape
    rows, ones = np.arange(batch), torch.ones(batch, dtype=torch.int64, device=prompts.device)
    cache, made = model.new_cache(batch, length + num_new), []
    tokens, counts = prompts, ones * length
    for _ in range(num_new):
        logits = model.score(tokens, None, counts, cache, rows, "last").logits
        assert logits is not None
        cache.commit(rows, None, np.full(batch, tokens.shape[1]))
        tokens, counts = logits[:, -1].argmax(-1, keepdim=True), ones
        made.append(tokens)
        mark()
    return torch.cat(made, dim=1)


def generate(peer: Any, prompts: Tensor, num_new: int, use_cache: bool = True) -> Tensor:
    """Return ``[B, num_new]`` greedy ids of ``transformers``."""
    ids: Tensor = peer.generate(
        prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=num_new, do_sample=False, pad_token_id=0,
        eos_token_id=None, use_cache=use_cache,
    )  # fmt: skip
    return ids[:, prompts.shape[1] :]


def engine(oracle: Oracle, prompts: Tensor, num_new: int) -> IntArray:
    """Return ``[B, num_new]`` greedy ids of ``SpeculativeDecoder`` without a draft: what a user calls."""
    return np.array(SpeculativeDecoder(oracle).generate(prompts.tolist(), num_new, GREEDY).tokens)


def once(make: Callable[[], IntArray], units: int) -> Round:
    """Return the seconds that making ids ``[B, N]`` takes, over ``units``, and the ids."""
    made: list[IntArray] = []
    seconds = time_call(lambda: made.append(make()))
    return Round(seconds / units, made[0])


def arms(models: Models, options: BenchOptions) -> Iterator[TimedArm]:
    """Yield plain decoding by every program, for every batch size; seconds per pass."""
    for batch in options.batches:
        seed = torch.Generator().manual_seed(batch)
        prompts = torch.randint(models.config.vocab_size, (batch, PROMPT), generator=seed)
        yield from _arms_of(models, prompts, options.new_tokens)


def _arms_of(models: Models, prompts: Tensor, num_new: int) -> Iterator[TimedArm]:
    batch = len(prompts)
    twin = name_of(batch, "native bfloat16")

    def arm(program: str, make: Callable[[], IntArray], strict: bool = True) -> TimedArm:
        name = name_of(batch, program)
        return TimedArm(name, partial(once, make, num_new), None if name == twin else twin, strict)

    for storage in STORAGES:
        yield arm(f"native {storage}", partial(_numpy, decode, models.native(storage), num_new, prompts))
    yield arm("engine, native bfloat16", partial(engine, models.native("bfloat16"), prompts, num_new))
    yield arm("eager float32", partial(_numpy, decode, models.eager, num_new, prompts))
    for storage in STORAGES:
        peer = partial(_numpy, generate, models.peer(storage), prompts, num_new)
        yield arm(f"transformers {storage}", peer, strict=storage == "float32")
    for storage in models.llama_storages if batch == 1 else ():
        other = models.llama_cpp(storage)
        made = partial(one_row, other.decode, prompts[0].numpy(), num_new)
        yield arm(f"llama.cpp {storage}", made, strict=False)


def _numpy(make: Callable[..., Tensor], *given: Any) -> IntArray:
    return make(*given).numpy()


def one_row(make: Callable[[IntArray, int], IntArray], prompt: IntArray, num_new: int) -> IntArray:
    """Return ``[1, num_new]`` ids from what makes ``[num_new]`` of a prompt."""
    return make(prompt, num_new)[None]


def rows(measured: ShapeRounds) -> Iterator[Row]:
    """Yield a row per batch size and program."""
    for batch in measured.options.batches:
        peer = measured.timings.fastest(*(name_of(batch, f"transformers {storage}") for storage in STORAGES))
        prefix = name_of(batch, "")
        for name in (name for name in measured.timings.seconds if name.startswith(prefix)):
            per_second = batch / measured.timings.spread(name).median
            agreement = measured.timings.agreement.get(name)
            cells = {"batch": batch, "program": name.removeprefix(prefix), "tokens/s": f"{per_second:.1f}"}
            other = None if "llama" in name else name_of(batch, f"llama.cpp {name.split()[-1]}")
            ratios = {"transformers": peer, "llama.cpp": other}
            after = {f"speed over {program}": measured.ratio(than, name) for program, than in ratios.items()}
            same = {"ids as native bfloat16": "" if agreement is None else f"{agreement:.1%}"}
            yield {**measured.time_row(name, **cells), **after, **same}


TITLE = "Plain greedy decoding"
NOTE = (
    f"After {PROMPT} tokens; milliseconds a pass, prefill included. native and eager: a bare loop of passes; engine: "
    "`SpeculativeDecoder` without a draft. The faster dtype of `transformers` `generate` counts. Where arithmetic "
    "is bfloat16 it rounds otherwise: after the first other id their texts part, and few later ids agree."
)
