"""Several processes that train one model: each reads a part of every step, and they average what they learn.

Start them with ``torchrun --nproc-per-node N -m oracles.factory.train ... --threads 1``; a process alone is one worker.
Threads wait for each other at every operation, workers once a step, so workers suffer less from other work.
"""

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn


def count() -> int:
    """Return the number of workers."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def is_first() -> bool:
    """Return whether this worker writes files and prints; its state is everybody's."""
    return int(os.environ.get("RANK", "0")) == 0


def join() -> None:
    """Meet the other workers, once per process."""
    if count() > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")


def share(rows: Tensor) -> Tensor:
    """Return this worker's part of a step's rows.

    Raises:
        ValueError: the rows cannot be shared evenly.
    """
    if len(rows) % count():
        raise ValueError(f"{count()} workers cannot share {len(rows)} rows evenly; start another number of workers")
    return rows[int(os.environ.get("RANK", "0")) :: count()]


def average(model: nn.Module, loss: Tensor) -> Tensor:
    """Replace every gradient by its mean over the workers; return the mean loss.

    Cost: one exchange of all gradients; nothing for a worker alone.
    """
    if count() == 1:
        return loss
    gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
    packed = torch.cat([loss.detach().view(1), *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(packed)
    packed /= count()
    mean, *parts = torch.split(packed, [1, *(gradient.numel() for gradient in gradients)])
    for gradient, part in zip(gradients, parts, strict=True):
        gradient.copy_(part.view_as(gradient))
    return mean.squeeze(0)
