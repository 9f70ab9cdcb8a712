"""Calls of any size, answered by passes of a few shapes."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor

from oracles.graphed.buckets import MAX_NODES, Bucket, PassSlice, cuts
from oracles.graphed.graphed_chains import drafts_of, run_chain
from oracles.graphed.graphed_memory import Memory
from oracles.graphed.graphed_passes import Passes, PassPart
from oracles.graphed.graphs import Graphs
from oracles.graphed.upload import Call, PassIntegers, Upload
from oracles.transformer.pass_parts import wanted_logits
from specdec.contracts import Draft, Scores, Want

RunChain = Callable[[Passes, Memory, int, PassIntegers], tuple[Tensor]]
"""See ``run_chain``."""

# Ids that a chain reads before the first that it drafts: one, or two after a chain that was wholly accepted.
_CAUGHT_UP = 2


class Calls:
    """Cut calls into passes, run these, and assemble what the caller asked for.

    Args:
        passes: of the model.
        upload: brings integers to the device.
        graphs: run passes; their counts count the padding too.

    Attributes:
        passes: as given.
    """

    def __init__(self, passes: Passes, upload: Upload, graphs: Graphs) -> None:
        self.passes, self._upload, self._graphs = passes, upload, graphs
        self._entering: Tensor | None = None

    def answer(self, call: Call, memory: Memory, part: PassPart, want: Want) -> Scores:
        """Return the scores of a call; its rows lie in ``memory``, with room for its nodes."""
        width = call.first + call.tokens.shape[1]
        groups = cuts(len(call.rows), width, call.first, call.parents is not None, memory.num_rows)
        scores = [self._group(call, group, memory, part, want) for group in groups]
        return scores[0] if len(scores) == 1 else _below(scores)

    def draft(self, call: Call, memory: Memory, run: RunChain = run_chain, further: int = 1) -> Draft:
        """Return chains that follow the nodes of a call, with as many tokens as the limits say, at least 1.

        Args:
            call, memory: see ``answer``.
            run: finds the chains.
            further: passes, of one node in each row, that it runs for each token after the first.
        """
        assert call.limits is not None
        num_rows, width = call.tokens.shape
        size, groups = int(call.limits.max()), cuts(num_rows, width, 0, False, memory.num_rows)
        parts = [(call.part(cut.rows, cut.nodes), cut.bucket) for (cut,) in groups]
        found = [self._chain(*part, size, memory, run, further) for part in parts]
        return drafts_of(found[0] if len(found) == 1 else torch.cat(found))

    def _chain(self, asked: Call, bucket: Bucket, size: int, memory: Memory, run: RunChain, further: int) -> Tensor:
        """Return what ``run`` finds in the rows of a call, ``[B, 2 + size]``, in memory that is the caller's."""
        bucket = replace(bucket, width=max(bucket.width, _CAUGHT_UP))
        # A row at its limit is padding, so the graph of a longer chain will do: its rest is cheaper than a capture.
        longer = (other for other in range(size, 2 * size + 1) if self._graphs.has(memory, (bucket, other)))
        length = next(longer, size)
        packed = self._upload(asked, bucket)
        memory.settle()
        counts = self._graphs.counts
        counts.count_nodes(asked.tokens.shape, bucket)
        counts.count_nodes((len(asked.rows), 1), replace(bucket, width=1), further * (length - 1))
        compute = partial(run, self.passes, memory, length, packed)
        (found,) = self._graphs.run(memory, (bucket, length), compute)
        return found[:, : 2 + size].index_select(0, packed.places[: len(asked.rows)])

    def _group(self, call: Call, group: list[PassSlice], memory: Memory, part: PassPart, want: Want) -> Scores:
        """Return the scores of rows that run together, by one pass for each part of their nodes."""
        found: list[list[Tensor]] = []
        for cut in group:
            asked = call.part(cut.rows, cut.nodes)
            packed = self._upload(asked, cut.bucket)
            memory.settle()
            outputs = self._run(asked, packed, memory, part)
            places, shape = packed.places[: len(asked.rows)], asked.tokens.shape
            wanted = outputs[1:] if want == "none" else outputs
            found.append([_real(output, cut.bucket, places, shape[1]) for output in wanted])
            del outputs, wanted  # memory of graphs, to which nothing may refer when they are freed
        streams = [nodes[0] if len(nodes) == 1 else torch.cat(nodes, dim=1) for nodes in zip(*found, strict=True)]
        if want == "none":
            return Scores(None, tuple(streams))
        counts = packed.num_nodes.index_select(0, places) - call.first if want == "last" else asked.num_nodes
        logits = wanted_logits(self.passes.read_out, streams[0].flatten(0, 1), counts, want)
        return Scores(logits, tuple(streams[1:]))

    def _run(self, asked: Call, packed: PassIntegers, memory: Memory, part: PassPart) -> tuple[Tensor, ...]:
        """Return the outputs of one pass, padding included."""
        bucket = packed.bucket
        self._graphs.counts.count_nodes(asked.tokens.shape, bucket)
        stream = None if asked.stream is None else self._place(asked.stream, packed)
        compute = partial(self.passes.run, memory, part, packed, stream)
        return self._graphs.run(memory, (bucket, part) if bucket.returns else None, compute)

    def _place(self, stream: Tensor, packed: PassIntegers) -> Tensor:
        """Return ``[R * W, D]`` streams ``[B, N, D]`` in their places, at an address that graphs know."""
        if self._entering is None:
            # Runs outside of inference mode write to it too.
            with torch.inference_mode(False):
                self._entering = stream.new_zeros(MAX_NODES, stream.shape[-1])
        entering = self._entering[: packed.bucket.nodes]
        nodes = entering.view(packed.bucket.rows, packed.bucket.width, -1)[:, : stream.shape[1]]
        nodes.index_copy_(0, packed.places[: len(stream)], stream)
        return entering


def _real(output: Tensor, bucket: Bucket, places: Tensor, width: int) -> Tensor:
    """Return ``[B, N, D]`` the real nodes of an output ``[R * W, D]``, as a copy that no later pass writes to."""
    return output.view(bucket.rows, bucket.width, -1)[:, :width].index_select(0, places)


def _below(scores: list[Scores]) -> Scores:
    """Return the scores of successive rows as one."""
    logits = [part.logits for part in scores if part.logits is not None]
    hidden = tuple(torch.cat(layers) for layers in zip(*(part.hidden for part in scores), strict=True))
    return Scores(torch.cat(logits) if logits else None, hidden)
