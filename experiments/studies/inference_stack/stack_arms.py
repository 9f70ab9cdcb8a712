"""The arms: functions that make a ``Generate`` for a subject and a batch size; ``stack_registry.py`` lists them."""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from experiments.bench.oracle import decoding
from experiments.studies.inference_stack.static_cache import (
    Meet,
    Pair,
    append,
    copy_in,
    empty_pairs,
    fused_attention,
    in_place,
    next_ids,
    next_ids_uncached,
)
from experiments.studies.inference_stack.subjects import Subject
from oracles.transformer.eager import Transformer
from specdec import SpeculativeDecoder
from specdec.contracts import DraftSource

Mark = Callable[[], None]
# ids [B, P] of prompts, and what to call whenever tokens are there -> ids [B, num_new]
Generate = Callable[[Tensor, Mark], Tensor]
Step = Callable[[Tensor, Tensor], Tensor]


def prepare_compiler() -> None:
    """Let torch compile a function for as many lengths as a text has; it would give up after eight."""
    torch._dynamo.config.recompile_limit = 256
    torch._dynamo.config.accumulated_recompile_limit = 1024


def naive(subject: Subject, batch: int) -> Generate:
    """Score the whole prefix for every token."""
    model = subject.forms.plain

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        ids = prompts
        for _ in range(subject.num_new):
            ids = torch.cat([ids, next_ids_uncached(model, ids, ids.shape[1])], dim=1)
            mark()
        return ids[:, subject.prompt_length :]

    return generate


def _compile(function: Callable[..., Any], **settings: Any) -> Callable[..., Any]:
    made: Callable[..., Any] = torch.compile(function, fullgraph=True, **{"dynamic": False, **settings})
    return made


def _positions(subject: Subject) -> list[Tensor]:
    """Return ``[1]`` for every position, each a tensor of its own."""
    return [torch.tensor([at], device=subject.device) for at in range(subject.prompt_length + subject.num_new)]


def _step(subject: Subject, batch: int, model: Transformer, meet: Meet = fused_attention) -> Step:
    """Return what scores ids ``[B, W]`` at positions ``[W]`` on buffers of its own, and returns the next ones."""
    end = subject.prompt_length + subject.num_new
    pairs = empty_pairs(model, batch, end)

    def step(tokens: Tensor, at: Tensor) -> Tensor:
        return next_ids(model, tokens, at, pairs, in_place, end, meet)[0]

    return step


def _by_steps(subject: Subject, step: Step, prefill: Step | None) -> Generate:
    """Return the loop of steps; without ``prefill`` the prompt goes through ``step`` token by token."""
    length, positions = subject.prompt_length, _positions(subject)
    whole = torch.arange(length, device=subject.device)

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        if prefill is not None:
            made = [prefill(prompts, whole)]
        else:
            made = [step(prompts[:, at : at + 1], positions[at]) for at in range(length)][-1:]
        mark()
        for at in positions[length:-1]:
            made.append(step(made[-1], at))
            mark()
        return torch.cat(made, dim=1)

    return generate


def cache(subject: Subject, batch: int) -> Generate:
    """Keep keys and values; prompts go in token by token."""
    return _by_steps(subject, _step(subject, batch, subject.forms.plain), None)


def prefill(subject: Subject, batch: int, half: bool = False, meet: Meet = fused_attention) -> Generate:
    """Score a prompt in one pass."""
    step = _step(subject, batch, subject.forms.half if half else subject.forms.plain, meet)
    return _by_steps(subject, step, step)


def compile_step(subject: Subject, batch: int, settings: Mapping[str, Any] | None = None) -> Generate:
    """Compile the step; Python drives the loop."""
    step = _compile(_step(subject, batch, subject.forms.plain), **(settings or {}))
    return _by_steps(subject, step, step)


def compile_loop(subject: Subject, batch: int) -> Generate:
    """Compile the whole generation, its loop within the graph."""
    model, length, last = subject.forms.plain, subject.prompt_length, subject.num_new - 1
    whole, end = torch.arange(length, device=subject.device), length + subject.num_new
    pairs = empty_pairs(model, batch, end)

    def goes_on(done: Tensor, *_: Any) -> Tensor:
        return done < last

    def body(done: Tensor, ids: Tensor, made: Tensor, held: list[Pair]) -> tuple[Any, ...]:
        ids, held = next_ids(model, ids, (length + done).view(1), held, copy_in, end)
        return done + 1, ids, made.index_copy(1, (done + 1).view(1), ids), held

    def run(prompts: Tensor) -> Tensor:
        ids, held = next_ids(model, prompts, whole, pairs, copy_in, end)
        done = torch.zeros((), dtype=torch.int64, device=ids.device)
        carried = done, ids, functional.pad(ids, (0, last)), held
        made: Tensor = torch.while_loop(goes_on, body, carried)[2]  # type: ignore[no-untyped-call]
        return made

    return _at_once(_compile(run))


def _at_once(run: Callable[[Tensor], Tensor]) -> Generate:
    """Return a generation that shows nothing until everything is done."""

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        made = run(prompts)
        mark()
        return made

    return generate


def unroll(subject: Subject, batch: int) -> Generate:
    """Compile the whole generation, its steps written out one after the other."""
    step = _step(subject, batch, subject.forms.plain)
    generate = _by_steps(subject, step, step)
    return _at_once(_compile(lambda prompts: generate(prompts, decoding.mark_nothing)))


def pack(subject: Subject, batch: int) -> Generate:
    """Lay the weights out for few rows; Python drives the loop again, since the compiler cannot take these layers."""
    return partial(decoding.decode, subject.forms.eager, subject.num_new)


def native(subject: Subject, batch: int) -> Generate:
    """Make a pass one call of compiled code that reads bfloat16 weights."""
    return partial(decoding.decode, subject.forms.native, subject.num_new)


def speculate(subject: Subject, batch: int, make: Callable[[], DraftSource] | None = None) -> Generate:
    """Decode with ``SpeculativeDecoder``, with drafts or without."""
    decoder = SpeculativeDecoder(subject.oracle, None if make is None else make())

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        state = decoder.start(prompts.tolist(), subject.num_new, decoding.GREEDY)
        while state.has_work:
            state, _ = decoder.step(state)
            mark()
        return torch.tensor(decoder.finish(state).tokens)

    return generate


def growing(subject: Subject, batch: int, settings: Mapping[str, Any] | None = None) -> Generate:
    """Keep a cache that grows by one position every step; compiled if there are settings."""
    model, end = subject.forms.plain, subject.prompt_length + subject.num_new

    def run(tokens: Tensor, at: Tensor, held: list[Pair]) -> tuple[Tensor, list[Pair]]:
        return next_ids(model, tokens, at, held, append, end)

    advance = run if settings is None else _compile(run, **settings)

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        held = empty_pairs(model, batch, 0)

        def step(tokens: Tensor, at: Tensor) -> Tensor:
            nonlocal held
            ids, held = advance(tokens, at, held)
            return ids

        return _by_steps(subject, step, step)(prompts, mark)

    return generate


def naive_compiled_step(subject: Subject, batch: int) -> Generate:
    """Compile a pass over a buffer as long as the whole text; Python drives the loop."""
    model, positions = subject.forms.plain, _positions(subject)

    def step(ids: Tensor, length: Tensor) -> Tensor:
        return ids.index_copy(1, length, next_ids_uncached(model, ids, length))

    compiled = _compile(step)

    def generate(prompts: Tensor, mark: Mark) -> Tensor:
        ids = functional.pad(prompts, (0, subject.num_new))
        for length in positions[subject.prompt_length :]:
            ids = compiled(ids, length)
            mark()
        return ids[:, subject.prompt_length :]

    return generate


def naive_compiled_loop(subject: Subject, batch: int) -> Generate:
    """Compile all of these passes, their loop within the graph."""
    model, first, end = subject.forms.plain, subject.prompt_length, subject.prompt_length + subject.num_new

    def goes_on(length: Tensor, ids: Tensor) -> Tensor:
        return length < end

    def body(length: Tensor, ids: Tensor) -> tuple[Tensor, ...]:
        at = length.view(1)
        return length + 1, ids.index_copy(1, at, next_ids_uncached(model, ids, at))

    def run(prompts: Tensor) -> Tensor:
        length = torch.full((), first, dtype=torch.int64, device=prompts.device)
        carried = length, functional.pad(prompts, (0, end - first))
        ids: Tensor = torch.while_loop(goes_on, body, carried)[1]  # type: ignore[no-untyped-call]
        return ids[:, first:]

    return _at_once(_compile(run))


def transformers(subject: Subject, batch: int, use_cache: bool) -> Generate:
    """Let ``transformers`` generate."""
    model, num_new = subject.forms.peer, subject.num_new
    return _at_once(lambda prompts: decoding.generate(model, prompts, num_new, use_cache))
