"""Workers: each claims units in a shared folder until all are done, whoever did them."""

import getpass
import json
import os
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from experiments.arguments import fingerprint
from experiments.claims import Held, claimed
from experiments.harness import Plan, run
from experiments.sweep.grid import Grid, Unit
from specdec.whole_file import write_whole

DONE, PRINTED = "done.json", "output.txt"
# Where the workers of a user on this machine hold their cores.
CORES = Path(tempfile.gettempdir()) / f"specdec-cores-{getpass.getuser()}"
# Seconds between two looks at units that others hold.
PAUSE = 0.5


@dataclass(frozen=True)
class Seat:
    """A worker's place on its machine.

    Attributes:
        rank: its number among those that ``torchrun`` started here; 0 without it.
        threads: of torch, for it alone.
        shared: whether other workers may run on its cores, so that times mean nothing.
    """

    rank: int
    threads: int
    shared: bool

    @staticmethod
    @contextmanager
    def taken(threads: int | None) -> "Iterator[Seat]":
        """Give this process cores of its own for the block, if there are so many that no other worker holds.

        Args:
            threads: of a worker; None: an equal share of the cores among those that ``torchrun`` started.
        """
        rank, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
        own = threads or max(len(cores) // count, 1)
        with ExitStack() as stack:
            held = _free_cores(cores, own, stack)
            if len(held) == own and hasattr(os, "sched_setaffinity"):
                os.sched_setaffinity(0, held)
                stack.callback(os.sched_setaffinity, 0, cores)
            torch.set_num_threads(own)
            yield Seat(rank, own, shared=len(held) < own)


def _free_cores(cores: Sequence[int], count: int, stack: ExitStack) -> list[int]:
    """Return cores that no other worker of this user holds, ``count`` of them at most, held until the stack unwinds."""
    held: list[int] = []
    for core in cores:
        if len(held) < count:
            with suppress(Held):
                stack.enter_context(claimed(CORES / str(core)))
                held.append(core)
    return held


class Worker:
    """Does units of a sweep.

    Args:
        grid: of the sweep.
        folder: shared by all workers.
        seat: of this one.
        retry: whether units that failed before this worker began are done again.

    Guarantee: a unit is done by one worker at a time, under the claim on its folder, which ends with the process. What
        a dead worker's unit has measured stands in its journal, where the next one goes on.
    """

    def __init__(self, grid: Grid, folder: Path, seat: Seat, retry: bool) -> None:
        self.grid, self.folder, self.seat, self.retry = grid, folder, seat, retry
        self._began = time.time()
        self._keys: dict[int, str] = {}

    def work(self) -> None:
        """Do units until none is left, waiting for those that others hold."""
        while left := [unit for unit in self.grid.units if not self._is_finished(unit)]:
            if not any(self._try(unit) for unit in left):
                time.sleep(PAUSE)

    def _is_finished(self, unit: Unit) -> bool:
        found = result_of(self.folder, unit)
        if found is None:
            return False
        if found["key"] != self._key(unit):  # of other code, files or threads
            return False
        if found["shared"] and not self.seat.shared:  # without times, which can be had now
            return False
        return found["error"] is None or not self.retry or found["time"] >= self._began

    def _key(self, unit: Unit) -> str:
        """Return a key of what a unit runs, and with what."""
        if unit.number not in self._keys:
            plan = self._plan(unit)
            self._keys[unit.number] = fingerprint(plan.arguments, [plan.name])
        return self._keys[unit.number]

    def _plan(self, unit: Unit) -> Plan:
        """Return what a unit runs; what was measured on shared cores is never gone on with elsewhere."""
        out = self.folder / unit.name / ("shared" if self.seat.shared else "own")
        return self.grid.plan(unit, out, self.seat.threads)

    def _try(self, unit: Unit) -> bool:
        """Do a unit if nobody holds it; return whether it was done here."""
        place = self.folder / unit.name
        try:
            with claimed(place):
                if self._is_finished(unit):
                    return False
                self._do(unit, place)
                return True
        except Held:
            return False

    def _do(self, unit: Unit, place: Path) -> None:
        error = None
        try:
            plan = self._plan(unit)
            with (place / PRINTED).open("w", encoding="utf-8") as printed, redirect_stdout(printed):
                if run(plan):
                    error = f"prompts failed; see {place / PRINTED}"
        except SystemExit as refused:
            error = str(refused)
        except Exception:  # whatever failed is written down, and the other units go on
            error = traceback.format_exc()
        found = {
            "chosen": unit.chosen,
            "key": self._key(unit),
            "error": error,
            "time": time.time(),
            "shared": self.seat.shared,
            "threads": self.seat.threads,
            "worker": os.getpid(),
        }
        write_whole(place / DONE, json.dumps(found) + "\n")


def result_of(folder: Path, unit: Unit) -> dict[str, Any] | None:
    """Return what is known of a unit that was finished; None if it was not."""
    path = folder / unit.name / DONE
    if not path.exists():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def summary_of(folder: Path, unit: Unit) -> dict[str, Any]:
    """Return the summary that a unit's experiment wrote last."""
    path = max((folder / unit.name).glob("*/*/summary.json"), key=lambda path: path.stat().st_mtime)
    summary: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return summary
