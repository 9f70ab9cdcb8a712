"""Workers: each claims units in a shared folder until all are done, whoever did them."""

import atexit
import getpass
import json
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stdout, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

from experiments.harness.arguments import fingerprint
from experiments.harness.running import run
from experiments.harness.study import Plan
from experiments.sweep.grid import Grid, GridPoint
from specdec.system import FolderInUse, hold, own_folder, private_folder, read_object, write_whole

DONE, PRINTED = "done.json", "output.txt"
# Where the workers of a user, who need not have a name, hold their cores and devices on this machine.
_USER = os.geteuid() if hasattr(os, "geteuid") else getpass.getuser()
HELD = Path(tempfile.gettempdir()) / f"specdec-held-{_USER}"
# Seconds between two looks at what others hold.
PAUSE = 0.5


@dataclass(frozen=True)
class Seat:
    """A worker's place on its machine.

    Attributes:
        rank: its number among those that ``torchrun`` started here; 0 without it.
        threads: of torch, each on a core.
        cores: those that it may run on.
    """

    rank: int
    threads: int
    cores: tuple[int, ...]

    @staticmethod
    def here(threads: int | None) -> "Seat":
        """Return the place of this process.

        Args:
            threads: of a worker; None: an equal share of the cores among those that ``torchrun`` started.

        Raises:
            ValueError: there are fewer cores.
        """
        rank, count = int(os.environ.get("LOCAL_RANK", "0")), int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
        cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [*range(os.cpu_count() or 1)]
        own = threads or max(len(cores) // count, 1)
        if own > len(cores):
            raise ValueError(f"--threads: {own}, and a worker may run on {len(cores)} cores here; give as many at most")
        return Seat(rank, own, tuple(cores))

    @contextmanager
    def take(self) -> Iterator[bool]:
        """Give this process as many cores as it has threads for the block, and tell whether so many are free.

        No other worker of this user on this machine runs on them: times would mean nothing.
        """
        with ExitStack() as stack:
            held = _free_cores(self.cores, self.threads, stack)
            if held and hasattr(os, "sched_setaffinity"):
                stack.callback(_move, os.sched_getaffinity(0))
                _move(held)
            torch.set_num_threads(self.threads)
            yield bool(held)


def _free_cores(cores: Sequence[int], count: int, stack: ExitStack) -> list[int]:
    """Return ``count`` cores that no other worker of this user holds, held until the stack unwinds; [] if too few.

    One worker at a time looks, or two could wait for each other with half of their cores each.
    """
    held: list[int] = []
    place = hold_folder()
    with ExitStack() as found, suppress(FolderInUse), hold(place / "choice", "--out"):
        for core in cores:
            with suppress(FolderInUse):
                found.enter_context(hold(place / f"core-{core}", "--out"))
                held.append(core)
            if len(held) == count:
                stack.push(found.pop_all())
                return held
    return []


def hold_folder() -> Path:
    """Return where the workers of this user hold cores and devices: HELD, if nobody else can write there."""
    try:
        return own_folder(HELD)
    except OSError as error:
        return _alone(str(error))


@cache
def _alone(reason: str) -> Path:
    """Return a private folder, which goes with this process; say that other workers do not see it."""
    stack = ExitStack()
    atexit.register(stack.close)
    print(f"other workers do not see which cores and devices this one holds: {reason}", file=sys.stderr, flush=True)
    return stack.enter_context(private_folder())


def _move(cores: Iterable[int]) -> None:
    """Have this process run on these cores: all of its threads, because torch's keep those that they began with."""
    tasks = Path("/proc/self/task")
    for thread in [int(path.name) for path in tasks.iterdir()] if tasks.is_dir() else [0]:
        with suppress(ProcessLookupError):  # it has ended
            os.sched_setaffinity(thread, cores)


def _device(name: str) -> Path | None:
    """Return what a worker holds while a unit runs on a device; None for the CPU, whose cores it holds."""
    kind, _, index = name.partition(":")
    if kind == "cpu":
        return None
    number = int(index) if index.isdigit() else 0
    visible = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    return hold_folder() / f"{kind}-{visible[number] if number < len(visible) and visible[number] else number}"


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
        self._told: set[bool] = set()

    def work(self) -> None:
        """Do units until none is left, waiting for cores, devices and units that others hold.

        Raises:
            ValueError: another worker does them with other code, files or threads meanwhile.
        """
        while True:
            with self.seat.take() as seated:
                while seated and any(self._try(unit) for unit in self._open_units()):
                    pass
            if not (left := self._open_units()):
                return
            self._tell(seated, len(left))
            time.sleep(PAUSE)

    def _tell(self, seated: bool, count: int) -> None:
        """Print, once of cores and once of units, what this worker waits for."""
        if seated in self._told:
            return
        self._told.add(seated)
        cores = f"{self.seat.threads} of the cores {[*self.seat.cores]}: other workers hold too many, in {HELD}"
        units = f"{count} units: other workers hold them, in {self.folder}, or their device, in {HELD}"
        print(f"waiting for {units if seated else cores}", file=sys.stderr, flush=True)

    def _open_units(self) -> list[GridPoint]:
        return [unit for unit in self.grid.units if not self._is_finished(unit)]

    def _is_finished(self, unit: GridPoint) -> bool:
        found = result_of(self.folder, unit)
        if found is None:
            return False
        if found["key"] != self._key(unit):  # of other code, files or threads
            if found["time"] >= self._began:
                raise ValueError(
                    f"another worker just did {unit.name} with other code, files or threads, so that each would do the "
                    "other's units again: give all the same checkout, packages and --threads"
                )
            return False
        return found["error"] is None or not self.retry or found["time"] >= self._began

    def _key(self, unit: GridPoint) -> str:
        """Return a key of what a unit runs, and with what."""
        if unit.number not in self._keys:
            plan = self._plan(unit)
            self._keys[unit.number] = fingerprint(plan.arguments, [plan.name])
        return self._keys[unit.number]

    def _plan(self, unit: GridPoint) -> Plan:
        """Return what a unit runs."""
        return self.grid.plan(unit, self.folder / unit.name, self.seat.threads)

    def _try(self, unit: GridPoint) -> bool:
        """Do a unit if nobody holds it, or its device; return whether it was done here."""
        place, device = self.folder / unit.name, _device(self._plan(unit).arguments["device"])
        try:
            with hold(place, "--out"), nullcontext() if device is None else hold(device, "--out"):
                if self._is_finished(unit):
                    return False
                self._do(unit, place)
                return True
        except FolderInUse:
            return False

    def _do(self, unit: GridPoint, place: Path) -> None:
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
            "threads": self.seat.threads,
            "worker": os.getpid(),
        }
        write_whole(place / DONE, json.dumps(found) + "\n")


def result_of(folder: Path, unit: GridPoint) -> dict[str, Any] | None:
    """Return what is known of a unit that was finished; None if it was not.

    Raises:
        ValueError: its file is damaged.
    """
    path = folder / unit.name / DONE
    if not path.exists():
        return None
    return read_object(path, ("key", "error", "time"), "delete it: its unit is done again")


def run_of(folder: Path, unit: GridPoint) -> Path:
    """Return the folder that the experiment of a unit that ended well wrote last."""
    return max((folder / unit.name).glob("*/summary.json"), key=lambda path: path.stat().st_mtime).parent


def summary_of(folder: Path, unit: GridPoint) -> dict[str, Any]:
    """Return the summary in the folder of ``run_of``."""
    summary: dict[str, Any] = json.loads((run_of(folder, unit) / "summary.json").read_text(encoding="utf-8"))
    return summary
