"""CUDA graphs of passes: which exist, when one is made, when they are freed; and counts of passes without them."""

import weakref
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from oracles.graphed.buckets import Bucket

Outputs = tuple[Tensor, ...]
Compute = Callable[[], Outputs]

MOST_GRAPHS = 30


@dataclass
class PassCounts:
    """What a graphed oracle has done since it was made.

    Attributes:
        passes_in_graphs: passes that were replays of a graph; a chain of drafted tokens counts as one.
        passes_outside: passes and chains that ran without a graph.
        computed_nodes: nodes of all passes, padding included.
        padded_rows: rows of padding in all passes.
        padded_nodes: nodes of padding in all passes, including those of padded rows.
        graphs: graphs that exist now.
        captures: graphs made so far.
    """

    passes_in_graphs: int = 0
    passes_outside: int = 0
    computed_nodes: int = 0
    padded_rows: int = 0
    padded_nodes: int = 0
    graphs: int = 0
    captures: int = 0

    def count_nodes(self, shape: tuple[int, ...], bucket: Bucket, passes: int = 1) -> None:
        """Count the nodes of passes for a call's rows and nodes ``[B, N]``."""
        num_rows, width = shape
        self.computed_nodes += passes * bucket.nodes
        self.padded_rows += passes * (bucket.rows - num_rows)
        self.padded_nodes += passes * (bucket.nodes - num_rows * width)


@dataclass(frozen=True)
class Graph:
    """A pass that can be run again on the current contents of its inputs.

    Args:
        replay: runs it.
        outputs: the tensors that it writes, the same every time.
    """

    replay: Callable[[], None]
    outputs: Outputs


class Capture(Protocol):
    """How a pass becomes a graph."""

    def __call__(self, compute: Compute) -> Graph:
        """Return the graph of what ``compute`` does to the device, without doing it."""


class CudaCapture:
    """Capture passes on a stream of their own, into one memory pool.

    Graphs that share a pool run one after the other, and none reads what another has left. They are freed together, and
    this object with them: a graph that is freed takes the matrix library's workspaces of its stream with it (pytorch
    issue 193402), including those of other graphs, and a pool without a graph takes no new one.

    Args:
        device: of the oracle.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Compute) -> Graph:
        """Return the graph of a pass. Cost: a wait for the device, and the pass's launches."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.device(self._device), torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = compute()
        return Graph(graph.replay, outputs)


class Graphs:
    """Run passes; from the second pass of a shape on, by its graph.

    A shape that occurs once pays for no graph, and its pass is the warm-up that a capture needs. If there are too many
    graphs, all are freed at once, and those still in use are made again: single ones cannot be freed safely, see
    ``CudaCapture``.

    Args:
        new_capture: returns a way to make graphs, one for all that exist together; None: there are no graphs.
        most: graphs that may exist, at least 1.
        counts: where passes and graphs are counted.
    """

    def __init__(self, new_capture: Callable[[], Capture] | None, most: int, counts: PassCounts) -> None:
        if most < 1:
            raise ValueError(f"max_graphs is {most}; give at least 1, or load with backend='eager' for none")
        self._new_capture, self._most, self.counts = new_capture, most, counts
        self._capture: Capture | None = None
        self._gone: list[int] = []
        self._met: dict[int, set[Hashable]] = {}
        self._graphs: dict[tuple[int, Hashable], Graph] = {}

    def run(self, memory: object, shape: Hashable | None, compute: Compute) -> Outputs:
        """Return what a pass computes; a graph's outputs are valid until any graph runs, because they share memory.

        Args:
            memory: of the cache. Graphs on it are freed with it.
            shape: all that the pass depends on, except the contents of inputs and the memory; None: no graph is wanted.
            compute: the pass; what it reads lies at the same addresses in every call of one memory and shape.

        Raises:
            RuntimeError: a pass could not be captured.
        """
        self._drop_gone()
        graph = None if shape is None else self._graph(memory, shape, compute)
        if graph is None:
            self.counts.passes_outside += 1
            return compute()
        self.counts.passes_in_graphs += 1
        graph.replay()
        return graph.outputs

    def has(self, memory: object, shape: Hashable) -> bool:
        """Tell whether there is a graph of such a pass."""
        self._drop_gone()
        return (id(memory), shape) in self._graphs

    def _graph(self, memory: object, shape: Hashable, compute: Compute) -> Graph | None:
        """Return the graph of such a pass, which is made now if the pass has run once before; None: it has not."""
        key = (id(memory), shape)
        if key not in self._graphs and self._new_capture is not None and self._was_met(memory, shape):
            self._graphs[key] = self._make(self._new_capture, shape, compute)
            self.counts.graphs = len(self._graphs)
        return self._graphs.get(key)

    def _was_met(self, memory: object, shape: Hashable) -> bool:
        """Tell whether such a pass has run before, and record that one runs now."""
        if id(memory) not in self._met:
            self._met[id(memory)] = set()
            weakref.finalize(memory, self._gone.append, id(memory)).atexit = False
        met = self._met[id(memory)]
        was_met = shape in met
        met.add(shape)
        return was_met

    def _make(self, new_capture: Callable[[], Capture], shape: Hashable, compute: Compute) -> Graph:
        if len(self._graphs) >= self._most:
            self._clear()
        if self._capture is None:
            self._capture = new_capture()
        try:
            graph = self._capture(compute)
        except RuntimeError as error:
            raise RuntimeError(
                f"the pass {shape} could not be captured as a CUDA graph: {error}; load with backend='eager'"
            ) from error
        self.counts.captures += 1
        return graph

    def _drop_gone(self) -> None:
        """Drop the records of memory that is gone; then all graphs go, on other memory too, see ``CudaCapture``.

        Memory may go at any time, even in the middle of a capture, when no graph may be freed.
        """
        while self._gone:
            memory = self._gone.pop()
            del self._met[memory]
            if any(number == memory for number, _ in self._graphs):
                self._clear()

    def _clear(self) -> None:
        self._graphs.clear()
        self._capture = None
        self.counts.graphs = 0
