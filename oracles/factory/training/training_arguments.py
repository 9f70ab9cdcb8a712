"""What every training script takes on its command line, and the run that it asks for."""

import argparse
from dataclasses import replace
from pathlib import Path

import torch

from exactspec.parser import positive
from oracles.checkpoints.placement import check_device, checkpoint_place
from oracles.factory.training import workers
from oracles.factory.training.allocator import keep_freed_memory
from oracles.factory.training.loop import PLATEAU_FILE, STATE_FILE, Batches, Trainer, Watch, run
from oracles.factory.training.precision import PRECISIONS, faster_precision
from oracles.factory.training.recipes import Recipe
from oracles.factory.training.tasks import Task


def add_run_arguments(parser: argparse.ArgumentParser, out: Path | None = None, steps: int | None = None) -> None:
    """Add the options of a run, whatever is trained; without a default for ``--out`` it must be given."""
    add = parser.add_argument
    where = "folder of the resumable state and the loss curve" + ("" if out is None else f" ({out})")
    add("--out", type=Path, default=out, required=out is None, help=where)
    add("--resume", action="store_true", help="go on from the state in --out")
    add("--prolong", action="store_true", help="go on with more --steps from the last step at peak rates in --out")
    add("--seed", type=int, default=0, help="of the initial weights and the order of the data (default %(default)s)")
    length = "length of the run" + (", if not the recipe's" if steps is None else f" ({steps})")
    add("--steps", type=int, default=steps, help=length)
    add("--stop-after", type=int, help="stop, saved, when this many steps are done")
    add("--save-every", type=int, default=50, help="steps between saved states (default %(default)s)")
    add("--device", default="cpu", help="where to train (default %(default)s)")
    add("--threads", type=positive, help="CPU threads, if not torch's own number")
    add("--precision", choices=PRECISIONS, help="of the matrix products, if not what the device multiplies faster")
    add("--compile", action="store_true", help="compile the loss: faster after half a minute; needs a C++ compiler")


def start_training(args: argparse.Namespace) -> None:
    """Set the threads, keep freed memory and meet other workers, before anything is computed.

    Raises:
        ValueError: a number of steps is below 1, or there is no such device.
    """
    for name in ("steps", "stop_after", "save_every"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}; give at least 1")
    check_device(checkpoint_place(args.device))
    keep_freed_memory()
    workers.join()
    if args.threads is not None:
        torch.set_num_threads(args.threads)


def precision(args: argparse.Namespace) -> str:
    """Return the precision asked for, or the one in which the device multiplies faster; say which."""
    chosen: str = args.precision or faster_precision(args.device)
    print(f"matrix products in {chosen}", flush=True)
    return chosen


def train_as_asked(
    recipe: Recipe, batches: Batches, task: Task, args: argparse.Namespace, watch: Watch | None = None
) -> bool:
    """Train as the arguments say; return whether the run has ended, and this worker writes files.

    Args:
        recipe: its number of steps gives way to ``--steps``.
        batches, task: what is read, and what learns from it.
        args: of ``add_run_arguments``.
        watch: see ``run``.

    Raises:
        ValueError: there is no state to go on from, or it belongs to another run.
    """
    asked = recipe if args.steps is None else replace(recipe, num_steps=args.steps)
    args.out.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(asked, batches, task, args.out, args.device, args.save_every, args.stop_after, args.compile)
    if args.resume or args.prolong:
        trainer.resume(PLATEAU_FILE if args.prolong else STATE_FILE)
    run(trainer, watch)
    return trainer.may_export
