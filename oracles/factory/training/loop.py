"""The training loop: one optimiser step at a time, resumable at any step with the same bits."""

import json
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from tqdm import tqdm

from oracles.factory.training import workers
from oracles.factory.training.allocator import give_back_freed_memory
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.tasks import Task
from specdec.system import write_whole

STATE_FILE = "state.pt"
PLATEAU_FILE = "plateau.pt"
LOG_FILE = "loss.jsonl"
# Steps after which freed memory is given back: it costs a third of a step.
TRIM_EVERY = 16
# Parts of the names of tables, which have a row for each id.
_TABLES = ("embed", "lm_head", "markov_w")
# Ctrl-C and TERM, which are held back until a step has ended and its state is saved.
_HELD = (signal.SIGINT, signal.SIGTERM)

# Returns further values for a line of the loss curve, given the number of steps done; it may not change the model.
Watch = Callable[[int], Mapping[str, float]]


def build_optimisers(model: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Return Muon for the hidden matrices and AdamW for embeddings, norms and biases, each at its peak rate.

    A kind of which the model has none gets no optimiser.

    *Source*: Jordan et al. 2024 (Muon: kellerjordan.github.io/posts/muon); its scaling to AdamW's update size from
    Liu et al. 2025 (arXiv 2502.16982).
    """
    matrices: list[nn.Parameter] = []
    others: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        is_hidden = parameter.ndim == 2 and not any(part in name for part in _TABLES)
        (matrices if is_hidden else others).append(parameter)
    found: list[torch.optim.Optimizer] = []
    if matrices:
        rate, decay = recipe.matrix_rate, recipe.weight_decay
        found.append(torch.optim.Muon(matrices, lr=rate, weight_decay=decay, adjust_lr_fn="match_rms_adamw"))
    if others:
        found.append(torch.optim.AdamW(others, lr=recipe.other_rate, betas=(0.9, 0.95), weight_decay=0.0))
    return found


class Batches(Protocol):
    """Where the rows of a step come from: a pure function of the step."""

    @property
    def identity(self) -> str:
        """What a resumed run must share."""

    def batch(self, step: int, num_steps: int) -> Tensor:
        """Return the rows ``[B, T + 1]`` int64 of a step in a run of ``num_steps``."""


class CompiledLoss:
    """The loss of a task, compiled once for every shape of rows."""

    def __init__(self, task: Task) -> None:
        self._eager, self._compiled = task.loss, torch.compile(task.loss, dynamic=False)
        self._shapes: set[torch.Size] = set()

    def __call__(self, rows: Tensor) -> Tensor:
        """Return the loss in nats per token of rows ``[B, T + 1]``."""
        if rows.shape not in self._shapes:
            # A model fills its cached tables outside the graph; inside, they would make it compile twice.
            with torch.no_grad():
                self._eager(rows[:1])
            self._shapes.add(rows.shape)
        loss: Tensor = self._compiled(rows)
        return loss


class Trainer:
    """A training run: everything that a step changes, and the way to save it.

    After the initial weights, only the order of the data is random, and the batches derive it from the step.

    Args:
        recipe: schedule and rates.
        batches: what is read.
        task: what is trained.
        out: folder of the resumable state and of the loss curve.
        save_every: steps between two saved states.
        stop_after: stop, saved, after this many steps (None: run to the end).
        compiled: compile the loss with ``torch.compile``: a third faster on long runs, after half a minute.
        arithmetic: settings on which the bits depend but which are in no identity, by name. They are saved too; a
            resumed run must share those in its state.
    """

    def __init__(
        self,
        recipe: Recipe,
        batches: Batches,
        task: Task,
        out: Path,
        save_every: int = 50,
        stop_after: int | None = None,
        compiled: bool = False,
        arithmetic: Mapping[str, str | None] | None = None,
    ) -> None:
        self.recipe, self.batches, self.task, self.model = recipe, batches, task, task.model
        self.out, self.save_every, self.device = out, save_every, next(self.model.parameters()).device
        self.last = recipe.num_steps if stop_after is None else min(recipe.num_steps, stop_after)
        self.optimisers = build_optimisers(self.model, recipe)
        self.peaks = [optimiser.param_groups[0]["lr"] for optimiser in self.optimisers]
        self.arithmetic = dict(arithmetic or {})
        self.num_done, self.num_tokens = 0, 0
        self._loss: Callable[[Tensor], Tensor] = CompiledLoss(task) if compiled else task.loss

    def step(self) -> float:
        """Take one step and return its loss in nats per token.

        Raises:
            ValueError: the rows are too few, or the workers cannot share them.
            RuntimeError: the task's loss raised ValueError, which is its cause.
        """
        recipe = self.recipe
        rows = self.batches.batch(self.num_done, recipe.num_steps)
        self.num_tokens += rows[:, 1:].numel()
        for optimiser, peak in zip(self.optimisers, self.peaks, strict=True):
            optimiser.param_groups[0]["lr"] = peak * recipe.rate_factor(self.num_done)
        loss = self._loss_of(workers.share(rows).to(self.device))
        self.model.zero_grad()
        torch.autograd.backward(loss)
        loss = workers.average(self.model, loss)
        nn.utils.clip_grad_norm_(self.model.parameters(), recipe.max_grad_norm, error_if_nonfinite=True)
        for optimiser in self.optimisers:
            optimiser.step()
        self.num_done += 1
        return loss.item()

    def _loss_of(self, rows: Tensor) -> Tensor:
        try:
            return self._loss(rows)
        except ValueError as error:  # no argument's fault: the author of a task wants to see where it was
            raise RuntimeError("the training went wrong in its own code, at the place above") from error

    def _identity(self) -> str:
        """Return what a resumed run must share; its schedule may change, and follows from the step alone."""
        return f"{self.task.identity}; {self.batches.identity}; {replace(self.recipe, num_steps=0, decay_share=0.0)!r}"

    def save(self) -> None:
        """Write the resumable state in one atomic replacement; keep a second one of the last step at peak rates."""
        if not workers.is_first():
            return
        state = {
            "num_done": self.num_done,
            "num_tokens": self.num_tokens,
            "identity": self._identity(),
            "arithmetic": self.arithmetic,
            "model": self.model.state_dict(),
            "optimisers": [optimiser.state_dict() for optimiser in self.optimisers],
        }
        path = self.out / STATE_FILE
        partial = path.with_suffix(".partial")
        torch.save(state, partial)
        os.replace(partial, path)
        if self.num_done == self.recipe.first_decay:
            shutil.copyfile(path, partial)
            os.replace(partial, self.out / PLATEAU_FILE)

    def resume(self, file: str = STATE_FILE) -> None:
        """Load a saved state: ``STATE_FILE``, or ``PLATEAU_FILE`` to prolong a run that has ended.

        Raises:
            ValueError: there is none, or it belongs to another run.
        """
        path = self.out / file
        if not path.is_file():
            raise ValueError(f"nothing to resume: {path} does not exist; start without it")
        state: dict[str, Any] = torch.load(path, map_location=self.device, weights_only=True)
        if state["identity"] != self._identity():
            raise ValueError(
                f"{path} is of another run: {state['identity']}, not {self._identity()}; use another --out"
            )
        for name, saved in state.get("arithmetic", {}).items():
            if (own := self.arithmetic.get(name)) != saved:
                raise ValueError(f"{path} is of another run: {name} {saved}, not {own}; use another --out")
        if state["num_done"] > self.recipe.num_steps:
            raise ValueError(
                f"{path} has {state['num_done']} steps, and the run is to have {self.recipe.num_steps}: give more"
            )
        try:
            self.model.load_state_dict(state["model"])
        except RuntimeError as error:
            raise ValueError(f"{path} is of another run: {error}; use another --out") from error
        for optimiser, content in zip(self.optimisers, state["optimisers"], strict=True):
            optimiser.load_state_dict(content)
        self.num_done, self.num_tokens = state["num_done"], state["num_tokens"]


def saved_arithmetic(path: Path) -> Mapping[str, str | None]:
    """Return the arithmetic settings in a saved state, by name; empty if there is no state, or it has none.

    Cost: a look into the file; its tensors are not read.
    """
    if not path.is_file():
        return {}
    state: dict[str, Any] = torch.load(path, map_location="cpu", mmap=True, weights_only=True)
    found: Mapping[str, str | None] = state.get("arithmetic", {})
    return found


def _read_log(path: Path, num_done: int) -> list[str]:
    """Return the logged lines of the steps in the resumed state; a last line that was cut off does not count."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1] if path.is_file() and num_done else []
    return [line for line in lines if json.loads(line)["step"] <= num_done]


def _timed_step(trainer: Trainer, bar: Any) -> dict[str, float]:
    """Take a step, move a progress bar, and return a row of the loss curve."""
    start, before = time.perf_counter(), trainer.num_tokens
    loss = trainer.step()
    if trainer.num_done % TRIM_EVERY == 0:
        give_back_freed_memory()
    seconds = time.perf_counter() - start
    bar.update()
    bar.set_postfix(loss=f"{loss:.3f}", refresh=False)
    return {
        "step": trainer.num_done,
        "tokens": trainer.num_tokens,
        "loss": round(loss, 5),
        "tokens_per_second": round((trainer.num_tokens - before) / seconds),
    }


@contextmanager
def hold_signals() -> Iterator[Callable[[], bool]]:
    """Hold the first Ctrl-C or TERM back until the block has ended; then it acts as usual.

    A second signal acts at once. Nothing is held back if there are several workers, which wait for each other, or
    outside the main thread.

    Yields:
        A function that tells whether a signal has come.
    """
    came: list[int] = []
    if workers.count() > 1 or threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    before = {number: signal.getsignal(number) for number in _HELD}

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def hold(number: int, frame: FrameType | None) -> None:
        came.append(number)
        restore()

    for number in _HELD:
        signal.signal(number, hold)
    try:
        yield lambda: bool(came)
    finally:
        restore()
    if came:
        signal.raise_signal(came[0])


def run(trainer: Trainer, watch: Watch | None = None) -> None:
    """Train to the end of the recipe (or ``stop_after``), with a progress bar and a line of ``loss.jsonl`` per step.

    Ctrl-C and TERM let the step end and its state be saved, and then act as usual.

    Args:
        trainer: what is trained.
        watch: returns further values of a line; None: there are none.
    """
    path, writes, recipe = trainer.out / LOG_FILE, workers.is_first(), trainer.recipe
    with hold_signals() as must_stop:
        if writes:
            kept = _read_log(path, trainer.num_done)
            write_whole(path, "".join(line + "\n" for line in kept))
        with tqdm(
            total=recipe.num_steps, initial=trainer.num_done, unit="step", mininterval=5.0, disable=not writes
        ) as bar:
            while trainer.num_done < trainer.last and not must_stop():
                row = _timed_step(trainer, bar)
                if writes:
                    seen = {} if watch is None else watch(trainer.num_done)
                    with path.open("a", encoding="utf-8") as log:
                        log.write(json.dumps({**row, **seen}) + "\n")
                # After its row: a resumed run forgets rows that no state contains, and writes none anew.
                if trainer.num_done % trainer.save_every == 0 or trainer.num_done in (trainer.last, recipe.first_decay):
                    trainer.save()
            if must_stop():
                trainer.save()
                bar.write(f"stopped after step {trainer.num_done}, which is saved: --resume goes on", file=sys.stderr)
