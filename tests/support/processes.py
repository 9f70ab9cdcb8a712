"""Processes of their own, forked from one that holds no lock and no thread and has imported what they run."""

import os
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

from tests.support.pages import ROOT

FORKED = get_context("forkserver")
IMPORTED = ("datasets", "matplotlib.pyplot", "experiments.sweep.__main__", "oracles.factory.training.loop", __name__)
FORKED.set_forkserver_preload([*IMPORTED])


def quiet(program: Callable[..., int | None], *arguments: Any, environment: dict[str, str] | None = None) -> None:
    """Run a program in this process, which prints nothing, and end with its status."""
    os.environ.update(environment or {})
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for printed in (sys.stdout, sys.stderr):
        os.dup2(nowhere, printed.fileno())
    sys.exit(program(*arguments))


def started(
    program: Callable[..., int | None], *arguments: Any, environment: dict[str, str] | None = None
) -> ForkServerProcess:
    """Return a running process that calls a function of a module, with more in its environment; see ``quiet``."""
    process = FORKED.Process(target=quiet, args=(program, *arguments), kwargs={"environment": environment})
    process.start()
    return process


def status_of(process: ForkServerProcess, seconds: float = 300) -> int:
    """Wait for the end of a process, and return its status, negative if a signal ended it."""
    process.join(seconds)
    status = process.exitcode
    assert status is not None, f"process {process.pid} still runs after {seconds} s"
    process.close()
    return status


def python(*arguments: str, cwd: Path = ROOT, first: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Return a finished Python that finds our packages, after those of the folder ``first``."""
    path = os.pathsep.join(str(place) for place in (first, ROOT) if place is not None)
    environment = {**os.environ, "PYTHONPATH": path, "COLUMNS": "80"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=300)
