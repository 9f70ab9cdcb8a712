"""A run under way, and one step's view of it."""

import time
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import Budget, Cache, Context, DraftSession, IntArray, Randomness
from specdec.engine.slots import Slots
from specdec.requests import FinishReason
from specdec.stats import StatsRecorder
from specdec.warping import BatchWarping, ParameterTable


@dataclass
class State:
    """A run under way: what the next step needs."""

    slots: Slots
    cache: Cache
    session: DraftSession
    params: ParameterTable
    keys: IntArray
    recorder: StatsRecorder
    return_logprobs: bool
    outputs: list[list[int]]
    finish_reasons: list[FinishReason]
    started: float = field(default_factory=time.perf_counter)

    @property
    def has_work(self) -> bool:
        """Whether a request is in flight or waits."""
        return self.slots.has_work


@dataclass(frozen=True)
class Frame:
    """One step's rows and what is handed to the parts about them."""

    rows: IntArray
    requests: IntArray
    context: Context
    warping: BatchWarping
    budget: Budget
    randomness: Randomness

    @property
    def pending(self) -> Tensor:
        """``[B]`` the last committed id of each row, on the host."""
        at = self.context.num_committed - 1
        return torch.from_numpy(self.context.ids[np.arange(len(at)), at])
