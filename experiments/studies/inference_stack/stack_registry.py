"""Which arms there are: a line each."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

from experiments.studies.inference_stack import stack_arms as arms
from experiments.studies.inference_stack.static_cache import explicit
from experiments.studies.inference_stack.subjects import Subject


@dataclass(frozen=True)
class StackArm:
    """One way to write the same ids.

    Attributes:
        build: makes it for a subject and a batch size.
        idea: what it does, or adds to the arm before.
        weight_bytes: of a stored weight; None: as the subject's oracle has them.
        on_cpu_only: whether another device cannot run it.
    """

    build: Callable[[Subject, int], arms.Generate]
    idea: str
    weight_bytes: int | None = 4
    on_cpu_only: bool = False


NAIVE = "naive"
# Each adds its idea to the one before.
STACK = {
    NAIVE: StackArm(arms.naive, "every token scores the whole prefix, eager"),
    "cache": StackArm(arms.cache, "keys and values are kept; prompts go in token by token"),
    "prefill": StackArm(arms.prefill, "prompts in one pass"),
    "compiled step": StackArm(arms.compile_step, "torch.compile of the step; Python drives the loop"),
    "compiled loop": StackArm(arms.compile_loop, "torch.compile of the generation, its loop within the graph"),
    "unrolled": StackArm(arms.unroll, "torch.compile of the generation, its steps written out"),
    "packed weights": StackArm(arms.pack, "oneDNN layers laid out for few rows; eager again", on_cpu_only=True),
    "native pass": StackArm(arms.native, "a pass is one call that reads weights as stored", None, on_cpu_only=True),
}
SIDE = {
    "naive, compiled step": StackArm(arms.naive_compiled_step, "torch.compile of a pass over the whole buffer"),
    "naive, compiled loop": StackArm(arms.naive_compiled_loop, "all of these passes, their loop within the graph"),
    "transformers, no cache": StackArm(partial(arms.transformers, use_cache=False), "generate(use_cache=False)"),
    "transformers": StackArm(partial(arms.transformers, use_cache=True), "generate()"),
    "engine": StackArm(arms.speculate, "SpeculativeDecoder without a draft", None),
}
_FUSED, _EXPLICIT = "scaled_dot_product_attention", "matmul, mask, softmax, matmul"
_UNFUSED: dict[str, Any] = {"options": {"fallback_by_default": True}}
ABLATIONS = {
    "attention: fused, float32": StackArm(arms.prefill, _FUSED),
    "attention: explicit, float32": StackArm(partial(arms.prefill, meet=explicit), _EXPLICIT),
    "attention: fused, bfloat16": StackArm(partial(arms.prefill, half=True), _FUSED, 2),
    "attention: explicit, bfloat16": StackArm(partial(arms.prefill, half=True, meet=explicit), _EXPLICIT, 2),
    "fusion: on": StackArm(arms.compile_step, "torch.compile generates kernels and fuses what it can"),
    "fusion: off": StackArm(partial(arms.compile_step, settings=_UNFUSED), "torch's own kernel for every operation"),
    "cache: static, eager": StackArm(arms.prefill, "buffers of the whole length"),
    "cache: growing, eager": StackArm(arms.growing, "positions so far only, copied every step"),
    "cache: static, compiled": StackArm(arms.compile_step, "compiled twice: for prompts and for steps"),
    "cache: growing, compiled": StackArm(partial(arms.growing, settings={}), "compiled anew for every length"),
    "cache: growing, dynamic": StackArm(
        partial(arms.growing, settings={"dynamic": True}), "compiled for lengths that vary"
    ),
}


def drafting(subject: Subject) -> dict[str, StackArm]:
    """Return an arm for every draft source of a subject; all but the first stand beside one another."""
    return {
        name: StackArm(partial(arms.speculate, make=make), "drafts, verified by the pass before", None)
        for name, make in subject.sources.items()
    }


GROUPS: dict[str, Callable[[Subject], dict[str, StackArm]]] = {
    "stack": lambda subject: {**STACK, **drafting(subject)},
    "side": lambda subject: SIDE,
    "ablations": lambda subject: ABLATIONS,
}


def arms_of(subject: Subject, groups: Iterable[str] = tuple(GROUPS)) -> dict[str, StackArm]:
    """Return the arms of some groups that can run on a subject's device."""
    found = {name: arm for group in groups for name, arm in GROUPS[group](subject).items()}
    return {name: arm for name, arm in found.items() if subject.device.type == "cpu" or not arm.on_cpu_only}
