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
    """Return whether this worker writes files and prints; all workers have the same state."""
    return int(os.environ.get("RANK", "0")) == 0


def join() -> None:
    """Meet the other workers, once per process."""
    if count() > 1 and not dist.is_initialized():
        dist.init_process_group("gloo")


def of_first(chosen: str) -> str:
    """Return the first worker's choice, which all must share."""
    told = [chosen]
    if count() > 1:
        dist.broadcast_object_list(told)
    return told[0]


def share(rows: Tensor) -> Tensor:
    """Return this worker's part ``[B / workers, T + 1]`` of a step's rows ``[B, T + 1]``.

    Raises:
        ValueError: the rows cannot be shared evenly.
    """
    if len(rows) % count():
        raise ValueError(f"{count()} workers cannot share {len(rows)} rows evenly; start another number of workers")
    return rows[int(os.environ.get("RANK", "0")) :: count()]


def average(model: nn.Module, loss: Tensor) -> Tensor:
    """Replace every gradient that a worker has by its mean over the workers; return the mean loss, one number ``[]``.

    Cost: one exchange of all gradients; nothing for a worker alone.
    """
    if count() == 1:
        return loss
    learning = [parameter for parameter in model.parameters() if parameter.requires_grad]
    # This worker's rows may not reach a part for which others have a gradient. If no worker has one, it stays None.
    gradients = [torch.zeros_like(one) if one.grad is None else one.grad for one in learning]
    reached = torch.tensor([float(one.grad is not None) for one in learning], device=loss.device)
    packed = torch.cat([loss.detach().view(1), reached, *(gradient.flatten() for gradient in gradients)])
    dist.all_reduce(packed)
    packed /= count()
    mean, reached, *parts = torch.split(packed, [1, len(learning), *(gradient.numel() for gradient in gradients)])
    for one, is_reached, part in zip(learning, reached.tolist(), parts, strict=True):
        if is_reached:
            one.grad = part.view_as(one)
    return mean.squeeze(0)
