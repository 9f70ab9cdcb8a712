"""What the study decodes: a model, and prompts of one length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.bench.oracle.benchmark_models import SHAPES, Models
from experiments.harness.arguments import PROMPTS
from experiments.inference_stack.forms import EmbeddedForms, Forms, RandomForms
from oracles.checkpoints.loading import LoadedOracle
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, NUM_HELD_OUT, OPERANDS, OPERATORS, Problem, split
from oracles.factory.arithmetic.tokens import encode
from oracles.native import NativeTransformer, NativeUnavailable
from specdec.contracts import DraftSource
from specdec.prompts import load_prompts

SEED = 10
PROMPT = 64  # ids of a prompt of code, or of random ones


@dataclass(frozen=True)
class Subject:
    """A model and its prompts.

    Attributes:
        name: on the command line.
        forms: of the model.
        device: where they lie.
        num_new: tokens that are written.
        gate: ``[G, P]`` ids of the prompts on which every arm must write what the first one does.
        pool: ``[M, P]`` ids of the prompts that are timed.
        answers: ``[G, num_new]`` ids that are right; None if nobody can say.
        sources: name -> makes what drafts.
    """

    name: str
    forms: Forms
    device: torch.device
    num_new: int
    gate: Tensor
    pool: Tensor
    answers: Tensor | None = None
    sources: Mapping[str, Callable[[], DraftSource]] = field(default_factory=dict)

    @property
    def prompt_length(self) -> int:
        """Ids of a prompt."""
        return self.gate.shape[1]

    @property
    def oracle(self) -> LoadedOracle:
        """The oracle that drafts are verified by: native where it can be had."""
        if self.device.type != "cpu":
            return self.forms.eager
        try:
            NativeTransformer.check()
        except NativeUnavailable:
            return self.forms.eager
        return self.forms.native


def arithmetic(device: torch.device, num_prompts: int, num_gate: int | None) -> Subject:
    """Return three-digit sums and differences with their working: 9 characters to read, 19 to write.

    Raises:
        ValueError: more prompts than there are problems.
    """
    total = len(OPERATORS) * OPERANDS**2
    if num_prompts > total:
        raise ValueError(f"--num-prompts: there are {total:,} problems, not {num_prompts:,}")
    held_out = [Problem.of_number(int(number)) for number in split()[1][:num_gate]]
    numbers = np.random.default_rng(SEED).choice(total, num_prompts, replace=False)

    def draft(length: int) -> DraftSource:
        return SmallTransformer(oracles.load("arithmetic-draft", device=device), length)

    return Subject(
        "arithmetic",
        EmbeddedForms("arithmetic", device),
        device,
        ANSWER_LENGTH,
        gate=encode([problem.prompt for problem in held_out]),
        pool=encode([Problem.of_number(int(number)).prompt for number in numbers]),
        answers=encode([problem.answer for problem in held_out]),
        sources={
            "draft model, 6 ahead": lambda: draft(6),
            "draft model, 18 ahead": lambda: draft(18),
            "prompt lookup": lambda: PromptLookup(4),
        },
    )


def code(device: torch.device, num_prompts: int, num_gate: int | None) -> Subject:
    """Return Python text: the last 64 ids of the shipped prompts, over and over if more are timed."""
    forms = EmbeddedForms("code", device)
    tokenizer = forms.plain.tokenizer
    assert tokenizer is not None
    ids = [tokenizer.encode(prompt.text).ids[-PROMPT:] for prompt in load_prompts(str(PROMPTS), None, None)]
    gate = torch.tensor([row for row in ids if len(row) == PROMPT])[:num_gate]

    def draft() -> DraftSource:
        return SmallTransformer(oracles.load("code-draft", device=device), 4)

    sources = {"draft model, 4 ahead": draft, "prompt lookup": lambda: PromptLookup(8)}
    return Subject("code", forms, device, 32, gate, gate[torch.arange(num_prompts) % len(gate)], sources=sources)


def shape(name: str, device: torch.device, num_prompts: int, num_gate: int | None) -> Subject:
    """Return a shape of random weights and random prompts: speeds only, for its text means nothing."""
    models, num_new = Models(name, None, PROMPT), 16
    seed = torch.Generator().manual_seed(SEED)
    sizes = (min(num_gate or NUM_HELD_OUT, num_prompts), PROMPT), (num_prompts, PROMPT)
    gate, pool = (torch.randint(models.config.vocab_size, size, generator=seed) for size in sizes)
    return Subject(
        name,
        RandomForms(models, device),
        device,
        num_new,
        gate,
        pool,
        sources={"prompt lookup": lambda: PromptLookup(8)},
    )


SUBJECTS = ("arithmetic", "code", *SHAPES)


def subject_named(name: str, device: str, num_prompts: int, num_gate: int | None) -> Subject:
    """Return a subject.

    Args:
        name: one of ``SUBJECTS``.
        device: for the models.
        num_prompts: that are timed.
        num_gate: on which ids are compared; None: all there are.
    """
    named = {"arithmetic": arithmetic, "code": code}
    place = torch.device(device)
    if name in named:
        return named[name](place, num_prompts, num_gate)
    return shape(name, place, num_prompts, num_gate)
