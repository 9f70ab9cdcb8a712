"""The processes that share one model: what they send each other, and how they notice that one of them is gone."""

import os
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from hashlib import blake2b

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import _get_default_store

from specdec.transfers import HOST

# Bytes of the hash that is compared at every pass.
HASH_BYTES = 8
# Seconds for which the first process waits until all others have read who is gone.
PATIENCE = 5.0
# Under this name, and those of its group, the first process that misses another one writes down which.
_LOST = "specdec-lost-rank"


class RankLost(RuntimeError):
    """A process is gone, or did not answer in time; the message has its number."""


class RanksDisagree(RuntimeError):
    """Processes were about to score different nodes; the message says which of them."""


class Ranks:
    """The processes that share a model; one that was started alone is all of them.

    Args:
        group: of ``torch.distributed``; None: this process is alone.
        timeout: seconds after which a silent process counts as gone, for messages.

    Attributes:
        rank: this process's number among them, from 0.
        count: number of these processes.
        num_bytes_sent: by this process since the model was loaded. A sum by ``all_reduce`` counts as in a ring.
    """

    def __init__(self, group: dist.ProcessGroup | None, timeout: float) -> None:
        self.group, self.timeout, self.num_bytes_sent = group, timeout, 0
        self.rank = 0 if group is None else dist.get_rank(group)
        self.count = 1 if group is None else dist.get_world_size(group)
        # Their numbers among all processes.
        self.members = [0] if group is None else dist.get_process_group_ranks(group)
        self._num_passes = 0
        self._lost: RankLost | None = None

    @classmethod
    def join(cls, mesh: DeviceMesh | None, device: torch.device, timeout: float) -> "Ranks":
        """Meet the other processes: those that ``torchrun`` started, those that met before by hand, or a mesh's.

        Args:
            mesh: of one dimension; None: all processes of ``torch.distributed`` if it was initialised before, else all
                that the environment names.
            device: of the model; processes meet by NCCL on CUDA, else by gloo.
            timeout: see ``oracles.load_parallel``.

        Raises:
            ValueError: the mesh has more dimensions, or the timeout is not positive.
        """
        if not timeout > 0:
            raise ValueError(f"timeout is {timeout}; give seconds, more than 0")
        if mesh is not None:
            if mesh.ndim != 1:
                raise ValueError(f"mesh has {mesh.ndim} dimensions; give one of them, such as mesh['tensor']")
            return cls(mesh.get_group(), timeout)
        if not dist.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) == 1:
                return cls(None, timeout)
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, timeout=timedelta(seconds=timeout))
        return cls(dist.group.WORLD, timeout)

    @property
    def is_first(self) -> bool:
        """Whether this process is the one that prints and writes."""
        return self.rank == 0

    def gather(self, own: Tensor, shapes: Sequence[Sequence[int]] | None = None) -> list[Tensor]:
        """Return the tensors ``[...]`` of all processes in order; ``shapes`` are theirs (None: all as this one's).

        Raises:
            RankLost: a process is gone, or silent for too long.
        """
        if not self._has_others():
            return [own]
        own = own.contiguous()
        got = [own.new_empty(own.shape if shapes is None else shapes[rank]) for rank in range(self.count)]
        got[self.rank] = own
        others = [rank for rank in range(self.count) if rank != self.rank]
        ways = [(dist.irecv, got[rank], rank) for rank in others] + [(dist.isend, own, rank) for rank in others]
        try:
            pairs = [dist.P2POp(way, tensor, self.members[rank], self.group) for way, tensor, rank in ways]
            for work in dist.batch_isend_irecv(pairs):
                work.wait()
        except RuntimeError as error:
            raise self._find_lost(error) from error
        self.num_bytes_sent += own.nbytes * len(others)
        return got

    def add(self, own: Tensor) -> Tensor:
        """Return the sum of a tensor ``[...]`` over all processes, in the order that the library chooses.

        All have the same shape; ``own`` is overwritten.

        Raises:
            RankLost: see ``gather``.
        """
        if not self._has_others():
            return own
        try:
            dist.all_reduce(own, group=self.group)
        except RuntimeError as error:
            raise self._find_lost(error) from error
        self.num_bytes_sent += own.nbytes * 2 * (self.count - 1) // self.count
        return own

    def agree(self, facts: bytes, device: torch.device) -> None:
        """Compare a hash of what every process is about to score.

        Raises:
            RanksDisagree: the hashes differ.
            RankLost: see ``gather``.
        """
        self._num_passes += 1
        if not self._has_others():
            return
        number = int.from_bytes(blake2b(facts, digest_size=HASH_BYTES).digest(), "little", signed=True)
        hashes = [int(part) for part in self.gather(torch.tensor([number], device=device))]
        most, _ = Counter(hashes).most_common(1)[0]
        if wrong := [self.members[rank] for rank, found in enumerate(hashes) if found != most]:
            raise RanksDisagree(
                f"pass {self._num_passes}: rank {', '.join(map(str, wrong))} of {dist.get_world_size()} scores other "
                "nodes than the rest: give all processes the same prompts, seeds, options and files, and no choice by "
                "the clock"
            )

    def all_say(self, holds: bool, device: torch.device) -> bool:
        """Tell whether something holds on all processes."""
        return all(bool(part) for part in self.gather(torch.tensor([int(holds)], device=device)))

    def _has_others(self) -> bool:
        """Tell whether there are other processes.

        Raises:
            RankLost: one of them was found to be gone.
        """
        if self._lost is not None:
            raise self._lost
        return self.count > 1

    def _find_lost(self, error: RuntimeError) -> RankLost:
        """Return an error that names the process that is gone: all others name the one that was missed first."""
        closed = [rank for rank in self.members if rank != dist.get_rank() and self._is_closed(rank)]
        try:
            first = self._write_down(str(closed[0]) if closed else "?")
        except RuntimeError:  # the store is gone with the process that keeps it
            first = str(closed[0] if closed else 0)
        self._lost = RankLost(
            f"rank {first} of {dist.get_world_size()} is gone: it ended, was killed, or was silent for "
            f"{self.timeout:g} s, so this one ends too; its own messages say why ({str(error).splitlines()[0]})"
        )
        return self._lost

    def _write_down(self, lost: str) -> str:
        """Return who was missed first, and leave; the process that keeps the store stays until the others know."""
        store, keeps_store = _get_default_store(), dist.get_rank() == 0
        key = f"{_LOST} of {self.members}"
        first: str = store.compare_set(key, "", lost).decode()
        self._close()
        ends = time.monotonic() + PATIENCE
        num_told = store.add(f"{key}: told", 1)
        while keeps_store and num_told < self.count - 1 and time.monotonic() < ends:
            time.sleep(0.01)
            num_told = store.add(f"{key}: told", 0)
        return first

    def _close(self) -> None:
        """Close gloo's connections by letting time run out: this tells processes that wait for this one in a sum."""
        if dist.get_backend(self.group) != "gloo":
            return
        for rank in self.members:
            if rank != dist.get_rank():
                with suppress(RuntimeError):
                    dist.irecv(torch.zeros(1, device=HOST), rank, self.group).wait(timedelta(milliseconds=1))  # type: ignore[union-attr]

    def _is_closed(self, rank: int) -> bool:
        """Tell whether the connection to a process is closed; only gloo says so."""
        if dist.get_backend(self.group) != "gloo":
            return False
        try:
            dist.isend(torch.zeros(1, device=HOST), rank, self.group)
        except RuntimeError:
            return True
        return False
