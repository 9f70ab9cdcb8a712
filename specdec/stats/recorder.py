"""Statistics with one meaning each, reduced from the steps of a run, and the identities that hold between them.

The engine's side of it::

    recorder = StatsRecorder(num_requests)
    recorder.add_prefill(seconds, requests)              # after every prefill pass over these requests
    recorder.infos.append(info)                          # after every step
    recorder.elapsed.append(elapsed)                     # its end, in seconds from the run's start
    stats = recorder.finish(total_seconds, cache_bytes=..., weight_bytes=...)
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from specdec.contracts import PHASES, IntArray, StepInfo, sum_of_stages
from specdec.stats.reduction import Reduction
from specdec.stats.stats import Stats, pool
from specdec.stats.trace import Array, Trace, check_trace


class StatsRecorder:
    """Collect the steps of a run; adding is an append, everything else happens once at the end.

    Args:
        num_requests: requests at the run's start; those that never take a step are counted too.

    Attributes:
        infos: the steps so far.
        elapsed: seconds from the run's start to the end of each.
        arrivals: seconds from the run's start to when each request came.
    """

    def __init__(self, num_requests: int) -> None:
        self.arrivals = [0.0] * num_requests
        self.infos: list[StepInfo] = []
        self.elapsed: list[float] = []
        self._prefills: list[tuple[float, IntArray, int]] = []

    def add_prefill(self, seconds: float, requests: IntArray, calls: int = 1) -> None:
        """Take in scoring calls that covered prompts.

        Args:
            seconds: wall time of all of them together.
            requests: ``[R]`` indices, in the run, of the requests whose prompts they were.
            calls: how many they were.
        """
        self._prefills.append((seconds, requests, calls))

    def finish(
        self,
        total_seconds: float,
        cache_bytes: int | None = None,
        weight_bytes: int | None = None,
        device: Mapping[str, float] | None = None,
        prefixes: Mapping[str, Any] | None = None,
    ) -> Stats:
        """Return the statistics of the run.

        Args:
            total_seconds: wall time of the run.
            cache_bytes: payload of the cache (all caches together, at their largest).
            weight_bytes: weights of the oracle.
            device: see ``Stats``.
            prefixes: figures of shared prefixes by their names, see ``Stats``; None: they are not shared.

        Raises:
            AssertionError: an identity between the statistics does not hold; the message has the numbers.

        Cost: O(rows x steps x width), vectorised.
        """
        trace = Trace.of(self.infos)
        check_trace(trace)
        seconds = self._seconds(total_seconds)
        requests = self._requests(trace, seconds)
        run = replace(self._run(trace, requests), cache_bytes=cache_bytes, weight_bytes=weight_bytes, seconds=seconds)
        return replace(run, **(prefixes or {}), device=device or {}, requests=tuple(requests))

    def _seconds(self, total_seconds: float) -> dict[str, float]:
        """Return the wall time of the run by phase."""
        measured = {"prefill": sum(seconds for seconds, _, _ in self._prefills)}
        measured |= {phase: sum(info.seconds.get(phase, 0.0) for info in self.infos) for phase in PHASES}
        together = sum(measured.values())
        if together > total_seconds * (1 + 1e-9):
            raise AssertionError(f"the phases took {together} s together, the run only {total_seconds} s")
        return {**measured, "other": max(0.0, total_seconds - together)}

    def _run(self, trace: Trace, requests: Sequence[Stats]) -> Stats:
        """Return the sums over the requests, with what they share: calls, and the stages within them."""
        # Without requests there are no steps either: causes and depths that never came.
        return replace(
            pool(requests or [Stats(**Reduction(trace, 1).fields({})[0])]),
            target_calls=len(self.infos),
            prefill_calls=sum(calls for _, _, calls in self._prefills),
            num_draft_passes=sum(int(info.draft_depth.max(initial=0)) for info in self.infos),
            num_scored_nodes=sum(info.num_nodes for info in self.infos),
            stages=self._stages(),
        )

    def _stages(self) -> dict[str, dict[str, float]]:
        stages = (asdict(stage) for stage in sum_of_stages(stage for info in self.infos for stage in info.stages))
        return {stage.pop("name"): stage for stage in stages}

    def _requests(self, trace: Trace, seconds: Mapping[str, float]) -> list[Stats]:
        n, columns = len(self.arrivals), trace.columns
        reduction, first = Reduction(trace, n), self._first_tokens(trace)
        calls, prefill = self._prefill_shares()
        extra = {
            "num_requests": np.ones(n, dtype=np.int64),
            "target_calls": reduction.sum(np.ones_like(columns["request"])),
            "prefill_calls": calls,
            "num_draft_passes": reduction.sum(columns["draft_depth"]),
            "num_scored_nodes": reduction.sum(columns["num_nodes"]),
            "first_token_seconds": np.nan_to_num(first),
            "num_first_tokens": (~np.isnan(first)).astype(np.int64),
        }
        # "other" belongs to no call: a request has a share in proportion to what was measured.
        share = seconds["other"] / max(sum(seconds.values()) - seconds["other"], 1e-12)
        parts = []
        for kept, own in zip(reduction.fields(extra), prefill.tolist(), strict=True):
            measured = {"prefill": own, **kept.pop("seconds")}
            parts.append(Stats(**kept, seconds={**measured, "other": share * sum(measured.values())}))
        return parts

    def _first_tokens(self, trace: Trace) -> Array:
        """Return ``[num_requests]`` seconds from arrival to first token, NaN for requests without one."""
        first = np.full(len(self.arrivals), np.nan)
        requests, at = np.unique(trace.columns["request"], return_index=True)
        first[requests] = np.asarray(self.elapsed, dtype=np.float64)[trace.columns["step"][at]]
        return first - self.arrivals

    def _prefill_shares(self) -> tuple[IntArray, Array]:
        """Return each request's prefill calls and its equal share of their time."""
        calls, seconds = np.zeros(len(self.arrivals), dtype=np.int64), np.zeros(len(self.arrivals))
        for taken, requests, number in self._prefills:
            calls[requests] += number
            seconds[requests] += taken / len(requests)
        return calls, seconds
