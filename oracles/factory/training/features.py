"""What a head learns from: an oracle's hidden states and logits over windows of text."""

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from oracles.transformer.eager import Transformer
from specdec.cache import prefill
from specdec.contracts import HostOracle, Needs

# Of windows ``[B, T]`` row by row: the layers' outputs ``[T, D]`` each, and logits ``[T, V]``.
Reader = Callable[[Tensor], Iterator[tuple[list[Tensor], Tensor]]]


def eager_reader(oracle: Transformer, layers: tuple[int, ...]) -> Reader:
    """Return the pass of training: all windows at once, on any device; logits in float32, whatever the context's."""

    def read(windows: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
        streams = oracle.streams(windows)
        for row in range(len(windows)):
            with torch.autocast(windows.device.type, enabled=False):
                logits = oracle.read_out(streams[-1][row])
            yield [streams[layer][row] for layer in layers], logits

    return read


def served_reader(oracle: HostOracle, layers: tuple[int, ...]) -> Reader:
    """Return the pass of serving, whatever its backend and arithmetic: window by window, in float32 at least."""
    rows, needs = np.zeros(1, dtype=np.int64), Needs(logits=True, hidden=layers)

    def read(windows: Tensor) -> Iterator[tuple[list[Tensor], Tensor]]:
        cache = oracle.new_cache(1, windows.shape[1])
        for window in windows.cpu().numpy():
            # The last id of a prompt is pending and is not read.
            scores, _ = prefill(oracle, cache, rows, [np.append(window, 0)], needs)
            assert scores is not None
            assert scores.logits is not None
            yield [layer[0].float() for layer in scores.hidden], scores.logits[0]
            cache.reset(rows)

    return read
