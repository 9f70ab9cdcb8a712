"""Statistics with one meaning each."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specdec.stats.result_table import cell, count_of
from specdec.theory import expected_tokens

Columns = Mapping[str, NDArray[Any]]  # of a trace, each with one number per row and step

SUM = "sum"  # marks the counts that are sums over columns
_MEMORY = ("cache_bytes", "weight_bytes", "most_pages")


def _ratio(above: float, below: float) -> float | None:
    return above / below if below else None


def _rates(successes: Sequence[int], trials: Sequence[int]) -> dict[int, float | None]:
    return {i: _ratio(s, t) for i, (s, t) in enumerate(zip(successes, trials, strict=True), start=1)}


def _is_full(columns: Columns) -> NDArray[Any]:
    return np.logical_not(columns["shortened"])


@dataclass(frozen=True)
class Stats:
    """What a run, or one request of it, did. Counts and seconds add up; ratios are None if they are undefined.

    Attributes:
        num_requests: requests counted.
        num_steps: verify passes, one per row that takes part.
        target_calls: scoring calls of the oracle after prefill; a batch shares one. For a request: those it was in.
        prefill_calls: scoring calls that covered prompts; for a request: those of all prompts read with its own.
        num_drafted: verified draft nodes.
        num_scouts: nodes scored and handed back, never verified.
        num_accepted: draft tokens kept by verdicts, before truncation.
        num_emitted: tokens produced, after truncation.
        truncated: tokens cut off, by cause ("eos", "stop"). Length never cuts: drafts shrink to the budget.
        num_recovered: tokens drawn at a stop before a leaf.
        num_bonus: tokens drawn at a leaf, the root of an empty draft included.
        num_steps_full: steps whose draft the budget did not shorten.
        num_emitted_full: tokens emitted by them.
        num_draft_passes: sum over calls of the longest path verified (the passes of an autoregressive source, unless a
            shared budget cut its drafts).
        num_scored_nodes: sum over calls of the call's width, root and padding included.
        steps_by_depth: entry d counts the steps whose longest verified path has d nodes.
        tried_at_position: entry i - 1 counts the verdicts on position i (i - 1 accepted, and a child there).
        accepted_at_position: entry i - 1 counts those that kept it.
        tried_at_rank: entry k - 1 counts the verdicts on a k-th sibling, the earlier ones rejected.
        accepted_at_rank: entry k - 1 counts those that kept it.
        drafted_by_source: verified draft nodes by who proposed them.
        tried_by_source: verdicts by who proposed the node: the walk stood at its parent and had rejected its earlier
            siblings, of any source.
        accepted_by_source: accepted tokens by who proposed them.
        stages: name -> counts and times of a stage inside the draft source (see ``StageInfo``); of the run only.
        seconds: wall time by phase: prefill, propose, score, verify, commit, other. A request has its equal share of
            the calls it was in, and of "other" in proportion to that. On CUDA a step's phase is over when the device
            has done all that it was asked to do by then; its work on prompts that was left before a step is in "other".
        device: what the steps made the oracle's device do, by name: "uploads" and "downloads" (those of a drafting
            model there included), "idle_seconds" (from the end of a wait for a copy back to the next copy) and, if the
            oracle counts its passes, "passes_in_graphs", "passes_outside", "computed_nodes", "padded_nodes" (among
            these) and "captures". Of the run only; empty if there is nothing to count.
        first_token_seconds: sum over requests of the time from their arrival (the run's start) to their first token.
        num_first_tokens: requests that have one.
        num_prefix_tokens: tokens of prompts that were in the cache already, with ``prefix_sharing``; of the run only.
        num_draft_prefix_tokens: the same for the models that a source drafts with, all of them together.
        num_evicted_pages: pages whose texts were forgotten because others needed them; of the run only.
        most_pages: the most pages that rows used at a time. None: pages were not shared, or this is a request.
        cache_bytes: payload of the cache. None: not reported.
        weight_bytes: weights of the oracle. None: not reported.
        requests: the same figures for each request; empty for a request and for pooled runs.
    """

    num_requests: int = 0
    num_steps: int = field(default=0, metadata={SUM: lambda columns: np.ones_like(columns["request"])})
    target_calls: int = 0
    prefill_calls: int = 0
    num_drafted: int = field(default=0, metadata={SUM: itemgetter("num_drafted")})
    num_scouts: int = field(default=0, metadata={SUM: itemgetter("num_scouts")})
    num_accepted: int = field(default=0, metadata={SUM: itemgetter("num_accepted")})
    num_emitted: int = field(default=0, metadata={SUM: itemgetter("num_emitted")})
    truncated: Mapping[str, int] = field(default_factory=dict)
    num_recovered: int = field(default=0, metadata={SUM: lambda columns: np.logical_not(columns["stopped_at_leaf"])})
    num_bonus: int = field(default=0, metadata={SUM: itemgetter("stopped_at_leaf")})
    num_steps_full: int = field(default=0, metadata={SUM: _is_full})
    num_emitted_full: int = field(default=0, metadata={SUM: lambda columns: columns["num_emitted"] * _is_full(columns)})
    num_draft_passes: int = 0
    num_scored_nodes: int = 0
    steps_by_depth: tuple[int, ...] = ()
    tried_at_position: tuple[int, ...] = ()
    accepted_at_position: tuple[int, ...] = ()
    tried_at_rank: tuple[int, ...] = ()
    accepted_at_rank: tuple[int, ...] = ()
    drafted_by_source: Mapping[str, int] = field(default_factory=dict)
    tried_by_source: Mapping[str, int] = field(default_factory=dict)
    accepted_by_source: Mapping[str, int] = field(default_factory=dict)
    stages: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    seconds: Mapping[str, float] = field(default_factory=dict)
    device: Mapping[str, float] = field(default_factory=dict)
    first_token_seconds: float = 0.0
    num_first_tokens: int = 0
    num_prefix_tokens: int = 0
    num_draft_prefix_tokens: int = 0
    num_evicted_pages: int = 0
    most_pages: int | None = None
    cache_bytes: int | None = None
    weight_bytes: int | None = None
    requests: tuple["Stats", ...] = ()

    @property
    def num_truncated(self) -> int:
        """Tokens produced and cut off: num_accepted + num_steps - num_emitted."""
        return sum(self.truncated.values())

    @property
    def block_efficiency(self) -> float | None:
        """tau: tokens emitted per verify pass of a row."""
        return _ratio(self.num_emitted, self.num_steps)

    @property
    def block_efficiency_full(self) -> float | None:
        """tau over the steps whose draft the budget did not shorten: what theory predicts."""
        return _ratio(self.num_emitted_full, self.num_steps_full)

    @property
    def acceptance_rate(self) -> float | None:
        """alpha: accepted / (accepted + stops before a leaf), which estimates P(accept given reached)."""
        return _ratio(self.num_accepted, self.num_accepted + self.num_recovered)

    @property
    def draft_utilisation(self) -> float | None:
        """accepted / drafted: how much of the drafted work stands."""
        return _ratio(self.num_accepted, self.num_drafted)

    @property
    def acceptance_by_position(self) -> dict[int, float | None]:
        """Position i (from 1) -> P(accepted >= i given accepted >= i - 1 and drafted >= i)."""
        return _rates(self.accepted_at_position, self.tried_at_position)

    @property
    def survival_by_position(self) -> dict[int, float | None]:
        """Position i (from 1) -> P(accepted >= i given drafted >= i): the token there and all before it stand.

        Papers print it 0-based, as accept_rate@k with k = i - 1.
        """
        reached = [sum(self.steps_by_depth[i:]) for i in range(1, len(self.accepted_at_position) + 1)]
        return _rates(self.accepted_at_position, reached)

    @property
    def verify_rate(self) -> float | None:
        """(accepted + steps) / (drafted + steps): the share of verified nodes, roots too, that a token follows from."""
        return _ratio(self.num_accepted + self.num_steps, self.num_drafted + self.num_steps)

    @property
    def acceptance_by_rank(self) -> dict[int, float | None]:
        """k (from 1) -> P(the k-th sibling is accepted given that the earlier ones were rejected)."""
        return _rates(self.accepted_at_rank, self.tried_at_rank)

    @property
    def acceptance_by_source(self) -> dict[str, float | None]:
        """Source -> accepted / tried: P(its node is accepted given that a verdict was given on it)."""
        return {name: _ratio(self.accepted_by_source[name], tried) for name, tried in self.tried_by_source.items()}

    @property
    def total_seconds(self) -> float:
        """Wall time, prefill included."""
        return sum(self.seconds.values())

    @property
    def tokens_per_second(self) -> float | None:
        """Emitted tokens over wall time, prefill included."""
        return _ratio(self.num_emitted, self.total_seconds)

    @property
    def time_to_first_token(self) -> float | None:
        """Seconds from the run's start to the first token of a request, waiting for a slot included; mean of them."""
        return _ratio(self.first_token_seconds, self.num_first_tokens)

    def seconds_per_call(self, *phases: str) -> float | None:
        """Return the time of some phases per scoring call."""
        return _ratio(sum(self.seconds.get(phase, 0.0) for phase in phases), self.target_calls)

    def width_cost(self, pass_seconds: float) -> float | None:
        """v: mean time of this run's scoring calls over ``pass_seconds``, the time T of a pass of one node."""
        scoring = self.seconds_per_call("score")
        return None if scoring is None else scoring / pass_seconds

    def draft_cost_ratio(self, pass_seconds: float) -> float | None:
        """c: drafting time per drafted depth over ``pass_seconds``, the time T of a pass of one node."""
        return _ratio(self.seconds.get("propose", 0.0), self.num_draft_passes * pass_seconds)

    def theoretical_block_efficiency(self, alpha: float | None = None) -> float | None:
        """Return tau of chains from an acceptance rate alone: expected_tokens(alpha, depth), mean over drafted depths.

        None if nothing was drafted.

        Args:
            alpha: in [0, 1]; None: the run's own, ``acceptance_rate``.
        """
        if self.acceptance_rate is None:
            return None
        alpha = self.acceptance_rate if alpha is None else alpha
        tokens = sum(n * expected_tokens(alpha, depth) for depth, n in enumerate(self.steps_by_depth) if n)
        return _ratio(tokens, self.num_steps)

    def __repr__(self) -> str:
        ratios = {name: getattr(self, name) for name in ("block_efficiency", "acceptance_rate", "tokens_per_second")}
        told = ", ".join(f"{name} {cell(value)}" for name, value in ratios.items() if value is not None)
        return (
            f"Stats({count_of(self.num_emitted, 'token')} in {count_of(self.num_steps, 'step')}{told and f': {told}'})"
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the fields as plain types for JSON, without those of the requests."""
        plain = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "requests"}
        return {name: list(value) if isinstance(value, tuple) else value for name, value in plain.items()}

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "Stats":
        """Return what ``as_dict`` wrote. Raises TypeError for a field that does not exist."""
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in plain.items()}
        return Stats(**values)


def check_pool(stats: Stats) -> None:
    """Assert what must hold between the statistics of a run or of several.

    Raises:
        AssertionError: names the identity and both of its sides.
    """
    tried, accepted = sum(stats.tried_at_position), sum(stats.accepted_at_position)
    tried_at_rank, hits = sum(stats.tried_at_rank), sum(stats.accepted_at_rank)
    identities = {
        "num_emitted + num_truncated = num_accepted + num_steps": (
            stats.num_emitted + stats.num_truncated,
            stats.num_accepted + stats.num_steps,
        ),
        "num_recovered + num_bonus = num_steps": (stats.num_recovered + stats.num_bonus, stats.num_steps),
        "num_accepted = sum over positions": (stats.num_accepted, accepted),
        "num_accepted + num_recovered = verdicts over positions": (stats.num_accepted + stats.num_recovered, tried),
        "num_accepted = sum over ranks": (stats.num_accepted, hits),
        "num_drafted = sum over sources": (stats.num_drafted, sum(stats.drafted_by_source.values())),
        "num_accepted = sum over sources": (stats.num_accepted, sum(stats.accepted_by_source.values())),
        "verdicts over ranks = verdicts over sources": (tried_at_rank, sum(stats.tried_by_source.values())),
        "num_steps = sum over depths": (stats.num_steps, sum(stats.steps_by_depth)),
    }
    for meaning, (left, right) in identities.items():
        if left != right:
            raise AssertionError(f"{meaning}: {left} != {right}")
    if tried_at_rank < tried:
        raise AssertionError(f"a verdict on a position tries at least one sibling: {tried_at_rank} < {tried}")


def _sum_of(values: Sequence[Any]) -> Any:
    """Return the sum of counts, of histograms of any lengths, or of mappings of such."""
    if isinstance(values[0], Mapping):
        keys = dict.fromkeys(key for value in values for key in value)
        return {key: _sum_of([value[key] for value in values if key in value]) for key in keys}
    if isinstance(values[0], tuple):
        size = max(map(len, values))
        return tuple(sum(value[i] for value in values if i < len(value)) for i in range(size))
    return sum(values)


def pool(runs: Sequence[Stats]) -> Stats:
    """Return the statistics of several runs together: counts and seconds add up, memory is the largest of any run.

    Raises:
        AssertionError: an identity between the statistics does not hold.
    """
    if not runs:
        return Stats()
    kept = {f.name: [getattr(run, f.name) for run in runs] for f in fields(Stats) if f.name != "requests"}
    memory: dict[str, Any] = {name: max((b for b in kept.pop(name) if b is not None), default=None) for name in _MEMORY}
    pooled = Stats(**{name: _sum_of(values) for name, values in kept.items()}, **memory)
    check_pool(pooled)
    return pooled
