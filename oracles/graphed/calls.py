"""Calls of any size, answered by passes of few shapes."""

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from oracles.graphed.buckets import MAX_NODES, Bucket, Cut, cuts
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import Part, RunPass, Way
from oracles.graphed.graphs import Graphs
from oracles.graphed.tiles import by_tiles
from oracles.graphed.upload import Call, Packed, Upload
from specdec.contracts import Scores, Want


class Calls:
    """Cut calls into passes, run these, and put together what the caller asked for.

    Args:
        run_pass: computes a pass.
        read_out: returns logits ``[R, V]`` of streams ``[R, D]`` after the last layer.
        way: how passes compute.
        upload: its way to the device.
        graphs: run passes; their counts count the padding too.

    Attributes:
        way: as given.
    """

    def __init__(
        self, run_pass: RunPass, read_out: Callable[[Tensor], Tensor], way: Way, upload: Upload, graphs: Graphs
    ) -> None:
        self._run_pass, self._read_out, self.way, self._upload, self._graphs = run_pass, read_out, way, upload, graphs
        self._entering: Tensor | None = None

    def answer(self, call: Call, memory: Memory, part: Part, want: Want) -> Scores:
        """Return the scores of a call; its rows lie in ``memory``, with room for its nodes."""
        width = call.first + call.tokens.shape[1]
        groups = cuts(len(call.rows), width, call.first, call.parents is not None, memory.num_rows)
        scores = [self._group(call, group, memory, part, want) for group in groups]
        return scores[0] if len(scores) == 1 else _below(scores)

    def _group(self, call: Call, group: list[Cut], memory: Memory, part: Part, want: Want) -> Scores:
        """Return the scores of rows that run together, by one pass for each part of their nodes."""
        found: list[list[Tensor]] = []
        for cut in group:
            asked = call.part(cut.rows, cut.nodes)
            packed = self._upload(asked, cut.bucket)
            memory.settle()
            outputs = self._run(asked, packed, cut.bucket, memory, part)
            places, shape = packed.places[: len(asked.rows)], asked.tokens.shape
            wanted = outputs[1:] if want == "none" else outputs
            found.append([_real(output, cut.bucket, places, shape[1]) for output in wanted])
            del outputs, wanted  # memory of graphs, which nothing may hold when they go
        streams = [nodes[0] if len(nodes) == 1 else torch.cat(nodes, dim=1) for nodes in zip(*found, strict=True)]
        if want == "none":
            return Scores(None, tuple(streams))
        last = packed.num_nodes.index_select(0, places) - call.first - 1 if want == "last" else None
        return Scores(self._logits(streams[0], last), tuple(streams[1:]))

    def _run(self, asked: Call, packed: Packed, bucket: Bucket, memory: Memory, part: Part) -> tuple[Tensor, ...]:
        """Return the outputs of one pass, padding included."""
        counts, (num_rows, width) = self._graphs.counts, asked.tokens.shape
        counts.computed_nodes += bucket.nodes
        counts.padded_rows += bucket.rows - num_rows
        counts.padded_nodes += bucket.nodes - num_rows * width
        stream = None if asked.stream is None else self._place(asked.stream, packed, bucket)
        compute = partial(self._run_pass, self.way, memory, bucket, part, packed, stream)
        return self._graphs.run(memory, (bucket, part) if bucket.returns else None, compute)

    def _place(self, stream: Tensor, packed: Packed, bucket: Bucket) -> Tensor:
        """Return ``[R * W, D]`` streams ``[B, N, D]`` in their places, at an address that graphs know."""
        if self._entering is None:
            # Runs outside of inference mode write to it too.
            with torch.inference_mode(False):
                self._entering = stream.new_zeros(MAX_NODES, stream.shape[-1])
        entering = self._entering[: bucket.nodes]
        nodes = entering.view(bucket.rows, bucket.width, -1)[:, : stream.shape[1]]
        nodes.index_copy_(0, packed.places[: len(stream)], stream)
        return entering

    def _logits(self, stream: Tensor, last: Tensor | None) -> Tensor:
        """Return ``[B, N, V]`` logits of streams ``[B, N, D]``, or ``[B, 1, V]`` of the nodes ``last`` ``[B]``."""
        if last is not None:
            stream = stream[torch.arange(len(stream), device=stream.device), last].unsqueeze(1)
        return self.in_tiles(self._read_out)(stream.flatten(0, 1)).view(*stream.shape[:2], -1)

    def in_tiles(self, compute: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return what ``compute`` makes of rows ``[N, X]``, in tiles if passes compute so."""
        return partial(by_tiles, compute) if self.way.in_tiles else compute


def _real(output: Tensor, bucket: Bucket, places: Tensor, width: int) -> Tensor:
    """Return ``[B, N, D]`` the real nodes of an output ``[R * W, D]``, as a copy that no later pass writes to."""
    return output.view(bucket.rows, bucket.width, -1)[:, :width].index_select(0, places)


def _below(scores: list[Scores]) -> Scores:
    """Return the scores of successive rows as one."""
    logits = [part.logits for part in scores if part.logits is not None]
    hidden = tuple(torch.cat(layers) for layers in zip(*(part.hidden for part in scores), strict=True))
    return Scores(torch.cat(logits) if logits else None, hidden)
