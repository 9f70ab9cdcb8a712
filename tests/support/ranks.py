"""Processes that share a model, each forked and told its place as ``torchrun`` tells it."""

from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from experiments.studies.processes import free_port
from tests.support.processes import started


def start_ranks(program: Callable[..., int | None], count: int, out: Path, *arguments: Any) -> list[ForkServerProcess]:
    """Return running processes that call ``program(place, ...)``, each with a place of its own below ``out``."""
    port, running = free_port(), []
    for rank in range(count):
        numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
        environment = {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
        running.append(started(program, out / f"{rank}.json", *arguments, environment=environment))
    return running
