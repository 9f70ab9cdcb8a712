"""What oracles and heads with graphed passes share: one upload, one memory, one thread at a time."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from threading import RLock
from types import MappingProxyType
from typing import Generic

import torch
from torch import Tensor

from oracles.graphed.buckets import WIDTHS
from oracles.graphed.calls import Calls
from oracles.graphed.graphed_memory import AnyCache, Shelf
from oracles.graphed.graphed_passes import Passes
from oracles.graphed.graphs import Capture, CudaCapture, Graphs, PassCounts
from oracles.graphed.upload import Call, Upload
from oracles.transformer.config import TransformerConfig
from oracles.transformer.pass_parts import check_call
from specdec.contracts import Draft, IntArray
from specdec.transfers import HOST


class GraphedScoring(Generic[AnyCache]):
    """Hold what passes of a few shapes need, and lend it to one thread at a time.

    Args:
        shelf: makes caches.
        passes: of the model or head.
        max_graphs, new_capture: see ``GraphedTransformer``.

    Attributes:
        counts: what has run in graphs and outside, and how much of it was padding.
        graph_options: ``max_graphs`` and ``new_capture``, for the heads of an oracle, which have their own graphs.

    Raises:
        ValueError: ``max_graphs`` is below 1.
    """

    chains_on_device = True
    ids_device: torch.device | None = HOST

    def __init__(
        self,
        shelf: Shelf[AnyCache],
        passes: Passes,
        max_graphs: int,
        new_capture: Callable[[], Capture] | None,
    ) -> None:
        device = shelf.device
        if new_capture is None and device.type == "cuda" and torch.cuda.is_available():
            new_capture = partial(CudaCapture, device)
        self.counts, self._shelf, self._turn = PassCounts(), shelf, RLock()
        self.graph_options = max_graphs, new_capture
        self._upload, self._graphs = Upload(device), Graphs(new_capture, max_graphs, self.counts)
        self._calls = Calls(passes, self._upload, self._graphs)

    @property
    def uploads(self) -> int:
        """Copies of a pass's integers to the device so far; ``specdec.transfers.crossings`` counts all copies."""
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
        """Keep other threads out: their numbers would overwrite those that this thread's passes read.

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

    def _check_places(
        self, cache: AnyCache, floats: Mapping[str, Tensor | None] = MappingProxyType({}), **integers: Tensor | None
    ) -> None:
        """Raise ValueError if a tensor lies where a pass cannot read it; integers may lie on the host."""
        places, device = {"cache": cache.memory.slots, **floats, **integers}, self._upload.device
        for name, given in places.items():
            on_host = name in integers and given is not None and given.device.type == "cpu"
            if given is not None and given.device != device and not on_host:
                other = " or the host" if name in integers else ""
                raise ValueError(f"{name} lies on {given.device}, and the oracle on {device}: give it there{other}")


class GraphedChaining(GraphedScoring[AnyCache]):
    """Also draft whole greedy chains on the device; arguments as in ``GraphedScoring``."""

    config: TransformerConfig

    @torch.no_grad()
    def device_chains(
        self, tokens: IntArray, counts: IntArray, cache: AnyCache, rows: IntArray, limits: IntArray
    ) -> Draft:
        """Follow the likeliest ids after ids ``[B, M]``; see ``specdec.contracts.DeviceChainingOracle.device_chains``.

        All passes of a chain, and what finds its ids between them, are one graph.

        Raises:
            ValueError: more nodes than the widest bucket has, a row without room or a token beyond ``max_context``, a
                cache on another device.
            RuntimeError: another thread is in the middle of a call.

        Cost: one copy and one graph for up to 256 rows: a pass over the given nodes, and one for each further id.
        """
        if tokens.shape[1] > WIDTHS[-1]:
            raise ValueError(f"tokens is {tokens.shape[1]} wide: score all but the last {WIDTHS[-1]} ids before")
        fed = counts + limits - 1
        check_call(max((cache.lengths[rows] + fed).tolist()) - 1, self.config.max_context, "none", (), 0)
        self._check_places(cache)
        with self._alone():
            starts = cache.reserve(rows, fed)
            given, known = torch.from_numpy(tokens), self._known_positions(cache, rows)
            call = Call(given, None, torch.from_numpy(counts), rows, starts, 0, limits=limits, known=known)
            return self._calls.draft(call, cache.memory)

    def _known_positions(self, cache: AnyCache, rows: IntArray) -> IntArray | None:
        """Return how many positions of rows ``[B]`` have known features; None for a model, which has no features."""
        return None
