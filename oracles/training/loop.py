"""The training loop: one optimiser step at a time, resumable at any step with the same bits."""

import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional
from tqdm import tqdm

from oracles.training.recipes import Recipe
from oracles.transformer import Transformer

STATE_FILE = "state.pt"
LOG_FILE = "loss.jsonl"


@dataclass(frozen=True)
class Options:
    """What a run may vary without being another recipe.

    Args:
        out: folder of the resumable state and of the loss curve.
        seed: of the initial weights and of the data order.
        device: where the model trains.
        save_every: steps between two saved states.
        stop_after: stop, saved, once this many steps are done (None: run to the end).
        repeat_share: copies taught from here on (None: as many as the recipe says).
    """

    out: Path
    seed: int = 0
    device: str = "cpu"
    save_every: int = 50
    stop_after: int | None = None
    repeat_share: float | None = None


def build_optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for embeddings and norms, each at its peak rate.

    *Source*: Jordan et al. 2024 (Muon: kellerjordan.github.io/posts/muon); its scaling to AdamW's update size from
    Liu et al. 2025 (arXiv 2502.16982).
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        (matrices if parameter.ndim == 2 and "embed" not in name else others).append(parameter)
    muon = torch.optim.Muon(
        matrices, lr=recipe.matrix_rate, weight_decay=recipe.weight_decay, adjust_lr_fn="match_rms_adamw"
    )
    adamw = torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adamw]


class Task(Protocol):
    """What is trained, and what its loss is."""

    @property
    def model(self) -> nn.Module:
        """Its parameters are trained; those of the hidden matrices with Muon."""

    @property
    def identity(self) -> str:
        """What a resumed run must share beside recipe and seed."""

    def loss(self, rows: Tensor) -> Tensor:
        """Return the loss in nats per token of windows ``[rows, length + 1]``."""


class LanguageModel:
    """A transformer that learns to say what comes next, or what a teacher expects to come next.

    Args:
        recipe: shape, and the weight of the teacher.
        options: seed and device.
        teacher: a model of the same vocabulary to distil, or None.
    """

    def __init__(self, recipe: Recipe, options: Options, teacher: Transformer | None = None) -> None:
        self.model = Transformer(recipe.config, seed=options.seed).to(options.device)
        self.teacher, self.teacher_weight = teacher, recipe.teacher_weight
        self.identity = "language model"

    def loss(self, rows: Tensor) -> Tensor:
        """Return cross entropy, mixed with the divergence from the teacher where there is one."""
        inputs, targets = rows[:, :-1], rows[:, 1:].flatten()
        with torch.autocast(rows.device.type, torch.bfloat16):
            logits = self.model(inputs)
        log_probs = logits.float().flatten(0, 1).log_softmax(-1)
        entropy = functional.nll_loss(log_probs, targets)
        if self.teacher is None:
            return entropy
        with torch.no_grad(), torch.autocast(rows.device.type, torch.bfloat16):
            taught = self.teacher(inputs)
        target_log_probs = taught.float().flatten(0, 1).log_softmax(-1)
        divergence = functional.kl_div(log_probs, target_log_probs, reduction="batchmean", log_target=True)
        return self.teacher_weight * divergence + (1 - self.teacher_weight) * entropy


class Trainer:
    """A training under way: everything that a step changes, and the way to save it.

    Nothing is random after the initial weights but the data order, which the windows derive from seed and step.

    Args:
        recipe: schedule and rates.
        stream: ids of the training texts, ``[S]`` int64.
        options: seed, device and folder.
        task: what is trained, on the options' device.
    """

    def __init__(self, recipe: Recipe, stream: Tensor, options: Options, task: Task) -> None:
        self.recipe, self.stream, self.options, self.task = recipe, stream, options, task
        self.model = task.model
        self.optimisers = build_optimisers(self.model, recipe)
        self.peaks = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.windows = recipe.windows
        if options.repeat_share is not None:
            self.windows = replace(recipe.windows, repeat_share=options.repeat_share)
        self.num_done = 0

    def step(self) -> float:
        """Take one step and return its loss in nats per token."""
        recipe = self.recipe
        rows = self.windows.batch(self.stream, self.options.seed, self.num_done, recipe.num_steps)
        for optimiser, peak in zip(self.optimisers, self.peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * recipe.rate_factor(self.num_done)
        loss = self.task.loss(rows.to(self.options.device))
        self.model.zero_grad()
        torch.autograd.backward(loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.max_grad_norm, error_if_nonfinite=True)
        for optimiser in self.optimisers:
            optimiser.step()
        self.num_done += 1
        return loss.item()

    def _identity(self) -> str:
        """Return what a resumed run must share; its length may change: the schedule follows from step and length."""
        return f"{self.task.identity} {replace(self.recipe, num_steps=0)!r}"

    def save(self) -> None:
        """Write the resumable state in one atomic replacement."""
        state = {
            "num_done": self.num_done,
            "seed": self.options.seed,
            "recipe": self._identity(),
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        partial = self.options.out / (STATE_FILE + ".partial")
        torch.save(state, partial)
        os.replace(partial, self.options.out / STATE_FILE)

    def resume(self) -> None:
        """Load the saved state.

        Raises:
            ValueError: where there is none, or it belongs to another recipe or seed.
        """
        path = self.options.out / STATE_FILE
        if not path.is_file():
            raise ValueError(f"nothing to resume: {path} does not exist; start without --resume")
        state: dict[str, Any] = torch.load(path, map_location=self.options.device, weights_only=True)
        for name, mine in (("recipe", self._identity()), ("seed", self.options.seed)):
            if state[name] != mine:
                raise ValueError(f"{path} was trained with {name} {state[name]}, not {mine}; use another --out")
        self.model.load_state_dict(state["model"])
        for optimiser, content in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(content)
        self.num_done = state["num_done"]


def _kept_log(path: Path, num_done: int) -> list[str]:
    """Return the logged lines of the steps that the resumed state contains."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() and num_done else []
    return [line for line in lines if json.loads(line)["step"] <= num_done]


def _steps(trainer: Trainer) -> Iterator[dict[str, float]]:
    """Take steps to the end, saving on the way, and yield one row of the loss curve after each."""
    options, num_steps = trainer.options, trainer.recipe.num_steps
    last = num_steps if options.stop_after is None else min(num_steps, options.stop_after)
    tokens = trainer.recipe.windows.tokens_per_step
    with tqdm(total=num_steps, initial=trainer.num_done, unit="step", mininterval=5.0) as bar:
        while trainer.num_done < last:
            start = time.perf_counter()
            loss = trainer.step()
            seconds = time.perf_counter() - start
            bar.update()
            bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
            if trainer.num_done % options.save_every == 0 or trainer.num_done == last:
                trainer.save()
            yield {"step": trainer.num_done, "loss": round(loss, 5), "tokens_per_second": round(tokens / seconds)}


def run(trainer: Trainer) -> None:
    """Train to the end of the recipe (or ``stop_after``), with a progress bar and one line of ``loss.jsonl`` a step."""
    path = trainer.options.out / LOG_FILE
    kept = _kept_log(path, trainer.num_done)
    path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    with path.open("a", encoding="utf-8") as log:
        for row in _steps(trainer):
            log.write(json.dumps(row) + "\n")
            log.flush()
