"""What oracles and heads of graphed passes have in common: one way to the device, one memory, one thread at a time."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import RLock
from typing import Generic

import torch
from torch import Tensor

from oracles.graphed.graphed_memory import AnyCache, Shelf
from oracles.graphed.graphs import Capture, CudaCapture, Graphs, PassCounts
from oracles.graphed.upload import Upload
from specdec.transfers import HOST


class GraphedScoring(Generic[AnyCache]):
    """Hold what passes of few shapes need, and lend it to one thread at a time.

    Args:
        shelf: makes caches.
        device: where the weights lie.
        max_graphs, new_capture: see ``GraphedTransformer``.

    Attributes:
        counts: what has run in graphs and outside, and how much of it was padding.

    Raises:
        ValueError: ``max_graphs`` is below 1.
    """

    ids_device = HOST

    def __init__(
        self,
        shelf: Shelf[AnyCache],
        device: torch.device,
        max_graphs: int,
        new_capture: Callable[[], Capture] | None,
    ) -> None:
        if new_capture is None and device.type == "cuda" and torch.cuda.is_available():
            new_capture = partial(CudaCapture, device)
        self.counts, self._shelf, self._turn = PassCounts(), shelf, RLock()
        self._upload, self._graphs = Upload(device), Graphs(new_capture, max_graphs, self.counts)

    @property
    def uploads(self) -> int:
        """Passes so far whose integers went to the device, a copy each; ``specdec.transfers.crossings`` counts all."""
        return self._upload.count

    def new_cache(self, num_rows: int, capacity: int, max_cache_bytes: int | None = None) -> AnyCache:
        """Return an empty cache of ``num_rows`` sequences of up to ``capacity`` slots, rounded up.

        Raises:
            ValueError: it would exceed ``max_cache_bytes`` (None: half of the free memory).
            RuntimeError: another thread is in the middle of a call.
        """
        with self._alone():
            return self._shelf.cache(num_rows, capacity, max_cache_bytes)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other threads out meanwhile: their numbers would go where this one's passes read theirs.

        Raises:
            RuntimeError: another thread is inside.
        """
        if not self._turn.acquire(blocking=False):
            raise RuntimeError(
                "another thread is in the middle of a call of this oracle, whose passes read and write one memory: "
                "give each thread an oracle of its own, or load it with backend='eager'"
            )
        try:
            yield
        finally:
            self._turn.release()

    def _check_places(self, cache: AnyCache, stream: Tensor | None = None, **integers: Tensor | None) -> None:
        """Raise ValueError if something lies where a pass cannot read it."""
        places, device = {"cache": cache.memory.slots, "stream": stream, **integers}, self._upload.device
        for name, given in places.items():
            on_host = name in integers and given is not None and given.device.type == "cpu"
            if given is not None and given.device != device and not on_host:
                other = " or the host" if name in integers else ""
                raise ValueError(f"{name} lies on {given.device}, and the oracle on {device}: give it there{other}")
