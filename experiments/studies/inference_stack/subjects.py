"""What the study decodes: a model in the forms that the arms need, and prompts of one length."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import oracles
from drafts import PromptLookup, SmallTransformer
from experiments.bench.oracle.benchmark_models import SHAPES, Models, native_of, with_weights
from experiments.harness.arguments import PROMPTS
from experiments.harness.conversations import AUTO, as_conversations
from experiments.harness.models import path_of
from experiments.peers.with_transformers import llama_of, load_peer
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.placement import WeightType, check_device, checkpoint_place
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, NUM_HELD_OUT, OPERANDS, OPERATORS, Problem, split
from oracles.factory.arithmetic.tokens import encode
from oracles.native import NativeTransformer, NativeUnavailable
from oracles.transformer.eager import Transformer
from specdec.contracts import DraftSource
from specdec.prompts import load_prompts
from specdec.requests import encode_prompt


def traceable(model: Transformer) -> Transformer:
    """Return a model for inference after computing what a compiler cannot trace: the angles of its positions."""
    model.model.rotary.rows(torch.zeros(1, dtype=torch.int64, device=model.device), model.max_context, model.dtype)
    return model.eval().requires_grad_(False)


@dataclass
class Forms:
    """The forms of a model, each made when first asked for.

    Attributes:
        make_trainable: as it trains, in the dtype of that name.
        make_eager: the eager oracle in float32; on a CPU its layers are laid out for few rows.
        make_native: the native oracle, weights as they are stored; on a CPU only.
        make_peer: ``transformers``' model, in float32.
    """

    make_trainable: Callable[[str], Transformer]
    make_eager: Callable[[], Transformer]
    make_native: Callable[[], NativeTransformer]
    make_peer: Callable[[], Any]

    @cached_property
    def plain(self) -> Transformer:
        """Float32, as it trains: torch's own linear layers."""
        return traceable(self.make_trainable("float32"))

    @cached_property
    def half(self) -> Transformer:
        """The same in bfloat16."""
        return traceable(self.make_trainable("bfloat16"))

    @cached_property
    def eager(self) -> Transformer:
        """The eager oracle."""
        return self.make_eager()

    @cached_property
    def native(self) -> NativeTransformer:
        """The native oracle."""
        return self.make_native()

    @cached_property
    def peer(self) -> Any:
        """``transformers``' model."""
        return self.make_peer()


def forms_of(name: str, device: torch.device) -> Forms:
    """Return the forms of an embedded checkpoint or a published model."""
    return Forms(
        lambda dtype: oracles.load_trainable(name, dtype, device),
        lambda: oracles.load(name, "float32", device, backend="eager"),
        lambda: oracles.load(name, backend="native"),
        lambda: load_peer(path_of(name), torch.float32, device),
    )


def random_forms(models: Models, device: torch.device) -> Forms:
    """Return the forms of a shape with random weights, which bfloat16 holds exactly."""
    parts = models.config, models.state

    def trainable(dtype: str) -> Transformer:
        return with_weights(*parts, dtype).to(device)

    return Forms(
        trainable,
        lambda: traceable(trainable("float32")).pack(),
        lambda: native_of(*parts, "bfloat16"),
        lambda: llama_of(*parts, torch.float32).to(device),
    )


# Name -> makes what drafts.
Sources = Mapping[str, Callable[[], DraftSource]]
SEED = 10
PROMPT = 64  # ids of a prompt of text, or of random ones


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
        sources: what drafts.
    """

    name: str
    forms: Forms
    device: torch.device
    num_new: int
    gate: Tensor
    pool: Tensor
    answers: Tensor | None = None
    sources: Sources = field(default_factory=dict)

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


def _draft_model(name: str, device: torch.device, weights: WeightType | None = None) -> LoadedOracle:
    """Return a model that drafts for ``Subject.oracle``, and computes as it does: native where it can be had."""
    if device.type == "cpu":
        return oracles.load(name, device=device, weights=weights)
    return oracles.load(name, device=device, backend="eager")


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
        return SmallTransformer(_draft_model("arithmetic-draft", device), length)

    return Subject(
        "arithmetic",
        forms_of("arithmetic", device),
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
    """Return Python text, after the shipped prompts."""
    drafts: Sources = {
        "draft model, 4 ahead": lambda: SmallTransformer(_draft_model("code-draft", device), 4),
        "prompt lookup": lambda: PromptLookup(8),
    }
    return _text("code", PROMPTS, device, num_prompts, num_gate, drafts)


def smollm2(device: torch.device, num_prompts: int, num_gate: int | None) -> Subject:
    """Return a published chat model's answers in the shipped conversations."""
    drafts: Sources = {
        "draft model, 3 ahead": lambda: SmallTransformer(_draft_model("smol-draft", device, "q4_0-int8"), 3),
        "prompt lookup": lambda: PromptLookup(3),
    }
    return _text("smollm2", PROMPTS.with_name("conversations.jsonl"), device, num_prompts, num_gate, drafts)


# A model's own chat template, if it has one.
_OWN_TEMPLATE = {"template": AUTO, "template_arg": (), "system": None}


def _text(
    name: str,
    prompts: Path,
    device: torch.device,
    num_prompts: int,
    num_gate: int | None,
    sources: Sources,
) -> Subject:
    """Return what a model writes after the last 64 ids of a file's prompts, which are repeated if more are timed."""
    forms = forms_of(name, device)
    asked = as_conversations(load_prompts(str(prompts)), forms.plain, _OWN_TEMPLATE)
    ids = [encode_prompt(forms.plain, prompt.start, prompt.name)[-PROMPT:] for prompt in asked]
    gate = torch.tensor(np.stack([row for row in ids if len(row) == PROMPT]))[:num_gate]
    return Subject(name, forms, device, 32, gate, gate[torch.arange(num_prompts) % len(gate)], sources=sources)


def shape(name: str, device: torch.device, num_prompts: int, num_gate: int | None) -> Subject:
    """Return a shape of random weights and random prompts: speeds only, for its text means nothing."""
    models, num_new = Models(name, None, PROMPT), 16
    seed = torch.Generator().manual_seed(SEED)
    sizes = (min(num_gate or NUM_HELD_OUT, num_prompts), PROMPT), (num_prompts, PROMPT)
    gate, pool = (torch.randint(models.config.vocab_size, size, generator=seed) for size in sizes)
    return Subject(
        name,
        random_forms(models, device),
        device,
        num_new,
        gate,
        pool,
        sources={"prompt lookup": lambda: PromptLookup(8)},
    )


_NAMED = {"arithmetic": arithmetic, "code": code, "smollm2": smollm2}
SUBJECTS = (*_NAMED, *SHAPES)


def build_subject(name: str, device: str, num_prompts: int, num_gate: int | None) -> Subject:
    """Return a subject.

    Args:
        name: one of ``SUBJECTS``.
        device: for the models.
        num_prompts: that are timed.
        num_gate: on which ids are compared; None: all there are.

    Raises:
        ValueError: there is no such device; more prompts than there are problems; a published model that was not
            fetched.
    """
    place = checkpoint_place(device)
    check_device(place)
    if name in _NAMED:
        return _NAMED[name](place, num_prompts, num_gate)
    return shape(name, place, num_prompts, num_gate)
