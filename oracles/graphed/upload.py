"""Bring the integers of a pass to the device, side by side, in a single copy that nothing waits for."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oracles.graphed.buckets import MAX_NODES, ROWS, WIDTHS, Bucket
from specdec.contracts import IntArray
from specdec.transfers import send


@dataclass(frozen=True)
class Call:
    """What a caller asks of a pass, in the caller's shapes; see ``specdec.contracts.Oracle.score``.

    Args:
        tokens: ``[B, N]``, those that attend.
        parents: ``[B, M]`` of the whole tree; None: chains.
        num_nodes: ``[B]``, cached ones included.
        rows, starts: ``[B]`` the cache rows, and the tokens that they hold.
        first: nodes before those of ``tokens``.
        stream: ``[B, N, D]`` that enters the lowest layer; None: the embeddings.
        limits: ``[B]`` tokens that are drafted after the nodes; None: nothing is drafted.
        known: ``[B]`` positions whose features are known, for a head; None for a model, which has no features.
    """

    tokens: Tensor
    parents: Tensor | None
    num_nodes: Tensor
    rows: IntArray
    starts: IntArray
    first: int
    stream: Tensor | None = None
    limits: IntArray | None = None
    known: IntArray | None = None

    def part(self, rows: slice, nodes: slice) -> "Call":
        """Return the call for some rows, and for some of the nodes that attend, counted as ``parents`` are."""
        at = slice(nodes.start - self.first, nodes.stop - self.first)
        return Call(
            self.tokens[rows, at],
            None if self.parents is None else self.parents[rows],
            self.num_nodes[rows],
            self.rows[rows],
            self.starts[rows],
            nodes.start,
            None if self.stream is None else self.stream[rows, at],
            None if self.limits is None else self.limits[rows],
            None if self.known is None else self.known[rows],
        )


@dataclass(frozen=True)
class PassIntegers:
    """The integers of a pass, views of one buffer, and its shape.

    Attributes:
        bucket: the shape.
        places: ``[R]`` the places in the batch of the call's rows, in their order.
        rows: ``[R]`` the cache row of each row of the batch.
        starts: ``[R]`` tokens that it holds.
        firsts: ``[R]`` nodes after them that were scored before.
        num_nodes: ``[R]`` real nodes, those scored before included; 0: the row is padding.
        limits: ``[R]`` tokens that are drafted after them.
        known: ``[R]`` positions whose features are known; of a head.
        tokens: ``[R, W]``.
        parents: ``[R, T]``; None: chains.
    """

    bucket: Bucket
    places: Tensor
    rows: Tensor
    starts: Tensor
    firsts: Tensor
    num_nodes: Tensor
    limits: Tensor
    known: Tensor
    tokens: Tensor
    parents: Tensor | None

    @staticmethod
    def size(bucket: Bucket) -> int:
        """Return how many integers a pass of this shape takes."""
        return bucket.rows * (7 + bucket.width + bucket.total)

    @classmethod
    def of(cls, buffer: Tensor, bucket: Bucket) -> "PassIntegers":
        """Return the views of a buffer ``[size(bucket)]``."""
        rows, width, total = bucket.rows, bucket.width, bucket.total
        columns, tokens, parents = torch.split(buffer, [7 * rows, rows * width, rows * total])
        above = parents.view(rows, total) if total else None
        places, of_cache, starts, firsts, num_nodes, limits, known = columns.view(7, rows).unbind(0)
        return cls(bucket, places, of_cache, starts, firsts, num_nodes, limits, known, tokens.view(rows, width), above)

    def take(self, call: Call, at: Tensor, from_host: bool) -> None:
        """Copy the caller's tensors, those on the host or those on the device, to the batch rows ``at`` ``[B]``."""
        given = [(self.num_nodes, call.num_nodes), (self.tokens[:, : call.tokens.shape[1]], call.tokens)]
        if self.parents is not None and call.parents is not None:
            given.append((self.parents[:, : call.parents.shape[1]], call.parents))
        for field, values in given:
            if (values.device.type == "cpu") == from_host:
                field.index_copy_(0, at, values)


class Upload:
    """Bring the integers of a call to the device together with what was staged for it: see ``specdec.transfers``.

    Args:
        device: of the oracle.

    Attributes:
        count: copies made so far.
    """

    def __init__(self, device: torch.device) -> None:
        self.device, self.count = device, 0
        # Graphs read their integers from here, so it never moves; runs outside of inference mode write to it too.
        largest = Bucket(ROWS[-1], MAX_NODES // ROWS[-1], WIDTHS[-1], whole=False)
        with torch.inference_mode(False):
            self._buffer = torch.zeros(PassIntegers.size(largest), dtype=torch.int64, device=device)

    def __call__(self, call: Call, bucket: Bucket) -> PassIntegers:
        """Return the integers of a call on the device, padded to the shape of a pass.

        What is already on the device is copied within it.
        """
        staged = torch.zeros(PassIntegers.size(bucket), dtype=torch.int64, device="cpu")
        packed, batch = PassIntegers.of(staged, bucket), len(call.rows)
        rows, order = torch.from_numpy(np.ascontiguousarray(call.rows)), torch.arange(bucket.rows, device="cpu")
        at = rows if bucket.whole else order[:batch]
        packed.places[:batch] = at
        packed.rows.copy_(order if bucket.whole else torch.nn.functional.pad(rows, (0, bucket.rows - batch)))
        packed.starts.index_copy_(0, at, torch.from_numpy(call.starts))
        packed.firsts.fill_(call.first)
        for column, given in ((packed.limits, call.limits), (packed.known, call.known)):
            if given is not None:
                column.index_copy_(0, at, torch.from_numpy(given))
        packed.take(call, at, from_host=True)
        self.count += 1
        there = PassIntegers.of(self._place(send(staged, self.device), bucket), bucket)
        there.take(call, there.places[:batch], from_host=False)
        return there

    def _place(self, sent: Tensor, bucket: Bucket) -> Tensor:
        """Return integers on the device, at a fixed address if graphs read them."""
        return self._buffer[: len(sent)].copy_(sent) if bucket.returns else sent
