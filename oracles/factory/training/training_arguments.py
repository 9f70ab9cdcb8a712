"""The command-line options of every training script, and the run that they ask for."""

import argparse
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import torch

from exactspec.parser import natural, positive, refusing
from oracles.checkpoints.placement import check_device, checkpoint_place
from oracles.factory.training import workers
from oracles.factory.training.allocator import keep_freed_memory
from oracles.factory.training.loop import PLATEAU_FILE, STATE_FILE, Batches, Trainer, Watch, run, saved_arithmetic
from oracles.factory.training.precision import PRECISIONS, faster_precision
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.tasks import Task
from specdec.system import hold

# Options on which the bits of a run depend but which are in no identity; a program may lack the last one.
ARITHMETIC = ("precision", "served")


def add_run_arguments(parser: argparse.ArgumentParser, out: Path | None = None, steps: int | None = None) -> None:
    """Add the options of a run, whatever is trained; without a default for ``--out`` it must be given."""
    add = parser.add_argument
    where = "folder for the resumable state and the loss curve" + ("" if out is None else f" ({out})")
    add("--out", type=Path, default=out, required=out is None, help=where)
    add("--resume", action="store_true", help="go on from the state in --out")
    add("--prolong", action="store_true", help="with more --steps, go on from the last step at peak rates in --out")
    add(
        "--seed", type=natural, default=0, help="seed of the initial weights and the data's order (default %(default)s)"
    )
    length = "steps of the run" + (", if not the recipe's" if steps is None else f" ({steps})")
    add("--steps", type=int, default=steps, help=length)
    add("--stop-after", type=int, help="save and stop after this many steps")
    add("--save-every", type=int, default=50, help="steps between saved states (default %(default)s)")
    add("--device", default="cpu", help="device to train on (default %(default)s)")
    add_threads(parser)
    told = "precision of the matrix products, if not the saved run's, or the one in which the device is faster"
    add("--precision", choices=PRECISIONS, help=told)
    add("--compile", action="store_true", help="compile the loss: faster after half a minute; needs a C++ compiler")


def add_threads(parser: argparse.ArgumentParser) -> None:
    """Add ``--threads``, which ``take_threads`` follows."""
    parser.add_argument("--threads", type=positive, help="CPU threads, if not torch's own number")


def take_threads(args: argparse.Namespace) -> None:
    """Have torch compute on as many threads as were asked for."""
    if args.threads is not None:
        torch.set_num_threads(args.threads)


@contextmanager
def training(args: argparse.Namespace, name: str) -> Iterator[None]:
    """Run a training program; no other process may write to its ``--out`` meanwhile.

    When the block begins, the number of threads is set, freed memory is kept and workers have met.

    Args:
        args: of ``add_run_arguments``.
        name: of the program.

    Raises:
        SystemExit: a number of steps is below 1, there is no such device, another process trains in ``--out`` or has
            left a state there that is not asked for; or the block raised OSError or ValueError. It gives the reason.
    """
    with ExitStack() as stack, refusing(name):
        if workers.is_first():
            stack.enter_context(hold(args.out, "--out"))
        _check(args)
        keep_freed_memory()
        workers.join()
        take_threads(args)
        yield


def _check(args: argparse.Namespace) -> None:
    for name in ("steps", "stop_after", "save_every"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give at least 1")
    check_device(checkpoint_place(args.device))
    state = args.out / STATE_FILE
    if _saved_state(args) is None and state.is_file():
        raise ValueError(f"{state} is there: give --resume to go on with it, or another --out")


def _saved_state(args: argparse.Namespace) -> Path | None:
    """Return the state that a run goes on from; None: it begins."""
    return args.out / (PLATEAU_FILE if args.prolong else STATE_FILE) if args.prolong or args.resume else None


def precision(args: argparse.Namespace) -> str:
    """Return, and print, the precision asked for, or the resumed run's, or the one in which the device is faster.

    The first worker chooses for all of them, and ``args`` has the choice from then on.
    """
    if args.precision is None:
        begun = _saved_state(args)
        saved = None if begun is None else saved_arithmetic(begun).get("precision")
        args.precision = saved or workers.of_first(faster_precision(args.device))
    print(f"matrix products in {args.precision}", flush=True)
    return str(args.precision)


def run_training(
    recipe: Recipe, batches: Batches, task: Task, args: argparse.Namespace, watch: Watch | None = None
) -> bool:
    """Train as the arguments say; return whether the run has ended and this worker writes files.

    Args:
        recipe: its number of steps gives way to ``--steps``.
        batches, task: what is read, and what learns from it, in the ``precision`` of the arguments.
        args: of ``add_run_arguments``.
        watch: see ``run``.

    Raises:
        ValueError: there is no state to go on from, or it belongs to another run; see ``Trainer.step`` too.
    """
    asked = recipe if args.steps is None else replace(recipe, num_steps=args.steps)
    numbers = {name: getattr(args, name, None) for name in ARITHMETIC}
    trainer = Trainer(asked, batches, task, args.out, args.save_every, args.stop_after, args.compile, numbers)
    if (begun := _saved_state(args)) is not None:
        trainer.resume(begun.name)
    run(trainer, watch)
    return trainer.num_done >= asked.num_steps and workers.is_first()
