"""The columns of benchmarks: an engine without a model, batches that are served, interleaved rounds, bits per byte."""

import lzma
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from experiments.bench import engine as bench_engine
from experiments.bench.engine import Cost, TimedOracle
from experiments.bench.oracle import benchmark_parts, benchmark_passes, decoding
from experiments.bench.oracle.benchmark_parts import ShapeRounds
from experiments.harness import rounds
from experiments.harness.rounds import Spread, TimedArm, Timings
from experiments.load import serving as load_serving
from experiments.load.serving import LoadRun, ServedRequest, ServedStep
from experiments.studies import batching
from experiments.studies.batching import ServingOptions, lock_step_tokens, row_of, serve_all
from oracles.factory.evaluation import commands, loops, ngrams
from oracles.factory.evaluation.agreement import Agreement
from oracles.factory.training import held_out
from specdec import SamplingParams
from tests.support.line_mutants import Differences, differences, line_mutants, together
from tests.support.models.counting import letters
from tests.support.runs.hand_clock import HandClock, clock_of


class _Engine:
    """A decoder of three steps whose times are known: 2 s to start, 1 s a step, 4 s more to seat, 3 s to finish.

    Each step has a pass of 10 s.
    """

    def __init__(self, oracle: Any, clock: HandClock) -> None:
        self.oracle, self.clock, self.left = oracle, clock, 3

    @property
    def has_work(self) -> bool:
        return self.left > 0

    def start(self, *_: Any) -> "_Engine":
        self.clock.spend(2.0)
        return self

    def step(self, _: Any) -> tuple["_Engine", None]:
        self.clock.spend(1.0 + 4.0 * (self.left == 3))
        self.oracle.score()
        self.left -= 1
        return self, None

    def finish(self, _: Any) -> Any:
        self.clock.spend(3.0)
        return SimpleNamespace(stats=SimpleNamespace(target_calls=3))


def overhead() -> Differences:
    """What a run of two prompts costs outside of its passes."""
    with (
        clock_of(bench_engine) as clock,
        patch.object(bench_engine, "SpeculativeDecoder", lambda oracle, _: _Engine(oracle, clock)),
    ):
        oracle: Any = SimpleNamespace(score=lambda: clock.spend(10.0))
        found = bench_engine.cost(TimedOracle(oracle), ["a", "b"], SamplingParams(), 8)
    measured = [Cost(step, step / 2) for step in (0.001, 0.004, 0.009)]
    row = bench_engine.row("greedy", 64, measured, 0.002)
    expected = {
        "step": 1.0,
        # Start, first step and end: 2, 1 + 4 and 3 s for two requests.
        "request": 10.0 / 2,
        "row": {
            "sampling": "greedy",
            "batch": 64,
            "ms a step outside the oracle (median; quartiles)": "4.000 (2.500 to 6.500)",
            "of batch 8": "2.00",
            "ms a request, start and end": "2.000",
        },
    }
    return differences({**vars(found), "row": row}, expected)


class _Served:
    """Requests that wait, and those in rows."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.counts: list[int] = []
        self.queue: list[list[int]] = []
        self.waiting: list[int] = []
        self.rows: list[int] = []

    def add(self, request: Any) -> int:
        self.waiting.append(len(self.queue))
        self.queue.append([*request.emitted])
        self.counts.append(sum(request.emitted))
        return self.waiting[-1]

    @property
    def has_work(self) -> bool:
        return bool(self.rows or self.waiting)


class _Serving:
    """A decoder of steps of one second, whose requests emit as many tokens as a list says."""

    def __init__(self, emitted: Sequence[Sequence[int]], clock: HandClock) -> None:
        self.emitted, self.clock = emitted, clock

    def request(self, prompt: Any, _n: int, _s: Any, _seed: Any, _stop: Any) -> Any:
        return SimpleNamespace(max_length=9, emitted=self.emitted[prompt[0]])

    def start(self, _: Sequence[Any], *, batch_size: int, max_length: int) -> _Served:
        return _Served(batch_size)

    def step(self, state: _Served) -> tuple[_Served, Any]:
        while len(state.rows) < state.size and state.waiting:
            state.rows.append(state.waiting.pop(0))
        self.clock.spend(1.0)
        rows, none = np.array(state.rows), np.zeros(len(state.rows), dtype=np.int64)
        made = np.array([state.queue[row].pop(0) for row in state.rows])
        state.rows = [row for row in state.rows if state.queue[row]]
        seconds = dict.fromkeys(("propose", "score", "verify", "commit"), 0.0)
        told = {"requests": rows, "num_emitted": made, "num_drafted": none, "num_scouts": none, "seconds": seconds}
        return state, SimpleNamespace(**told)

    def finish(self, state: _Served) -> Any:
        tokens = [[0] * count for count in state.counts]
        return SimpleNamespace(tokens=tokens, exactness="exact")


def serving() -> Differences:
    """Latencies, first tokens and rows in use of three requests on two rows, in both ways."""
    options, emitted = ServingOptions(2, 9, 0, SamplingParams(), ()), [[2, 1, 1], [1], [3, 2]]
    found: dict[str, Any] = {}
    for way in ("static", "continuous"):
        with clock_of(batching, load_serving) as clock:
            decoder: Any = _Serving(emitted, clock)
            seconds, ids, served = serve_all(decoder, [[0], [1], [2]], options, way == "static")
        assert ids is not None
        sums = [sum(getattr(step, name) for step in served.steps) for name in ("rows", "emitted")]
        found |= {
            f"{way}, latency": [one.e2el for one in served.requests],
            f"{way}, first": [one.ttft for one in served.requests],
            f"{way}, counts": (len(served.steps), *sums, lock_step_tokens(served)),
            f"{way}, seconds": seconds,
            f"{way}, tokens": (ids >= 0).sum(1).tolist(),
        }
    expected = {
        # A batch of the first two takes three steps, that of the third two.
        "static, latency": [3.0, 1.0, 5.0],
        "static, first": [1.0, 1.0, 4.0],
        # In lock-step: 1 of both rows, then 1, 1, 3 and 2 of one.
        "static, counts": (5, 6, 10, 2 + 1 + 1 + 3 + 2),
        "static, seconds": 5.0,
        "static, tokens": [4, 1, 5],
        # The third request follows the second into its row.
        "continuous, latency": [3.0, 1.0, 3.0],
        "continuous, first": [1.0, 1.0, 2.0],
        "continuous, counts": (3, 6, 10, 2 + 2 + 2),
        "continuous, seconds": 3.0,
        "continuous, tokens": [4, 1, 5],
    }
    return differences(found, expected)


def served_rows() -> Differences:
    """A row of the table of batches, of four rows and three rounds."""
    # Twenty tokens in ten steps of three rows each; all steps but the first and last of a request are left out.
    steps = (ServedStep(3, 0, 6, 3, {}),) * 10
    runs = [
        LoadRun(
            (
                ServedRequest(0.0, 0.0, (1.0, latency), (4, 1), (0,) * 5),
                ServedRequest(0.0, 0.0, (first, 2 * latency), (2, 3), (0,) * 5),
            ),
            steps,
            "exact",
        )
        for latency, first in ((1.5, 2.0), (2.0, 3.0), (5.0, 1.0))
    ]
    found = row_of("drafted", "static", [2.0, 3.0, 6.0], runs, 4)
    expected = {
        "batch": 4,
        "arm": "drafted",
        "batches": "static",
        "tokens/s": "20 (10 .. 30)",
        # 1.5, 2, 3, 4, 5 and 10; the 95th percentile lies at 4.75 of five steps.
        "latency s": 3.5,
        "95 %": 5 + 0.75 * 5,
        "first s": 9 / 6,
        "rows in use": "75%",
        "tau": 2.0,
        # Of the last run: both at 1 s, then one at 5 and one at 10.
        "tau, lock-step": (2 * 2 + 1 + 3) / 30,
    }
    return differences(found, expected)


def _spread(values: Sequence[float]) -> str:
    low, middle, high = sorted(values)
    return f"{middle:.2f} ({low:.2f} .. {high:.2f})"


def _measured(seconds: dict[str, list[float]], **options: Any) -> ShapeRounds:
    timings = Timings(seconds, dict.fromkeys([*seconds][:2], 0.75))
    return ShapeRounds("10m", 2, SimpleNamespace(**options), timings)  # type: ignore[arg-type]


def _cells(rows: Sequence[Any], name: str, *columns: str) -> dict[str, Any]:
    return {f"{row[name]}, {column}": str(row[column]) for row in rows for column in columns}


def decoded() -> Differences:
    """Tokens a second, and the speed over the faster dtype of ``transformers``."""
    seconds = {
        "native bfloat16": [0.1, 0.4, 0.2],
        "transformers bfloat16": [0.5, 0.9, 0.6],
        "transformers float32": [0.4, 0.3, 1.0],
    }
    named = {decoding.name_of(4, program): values for program, values in seconds.items()}
    made = _measured(named, batches=(4,))
    found = _cells(decoding.rows(made), "program", "tokens/s", "speed over transformers", "median ms", "range")
    expected = {}
    for program, values in seconds.items():
        expected |= {
            f"{program}, tokens/s": f"{4 / sorted(values)[1]:.1f}",
            f"{program}, speed over transformers": _spread(
                [a / b for a, b in zip(seconds["transformers float32"], values, strict=True)]
            ),
            f"{program}, median ms": f"{1e3 * sorted(values)[1]:.3f}",
            f"{program}, range": f"{1e3 * min(values):.3f} .. {1e3 * max(values):.3f}",
        }
    same = [row["ids as native bfloat16"] for row in decoding.rows(made)]
    found["ids"] = same
    return differences(found, expected | {"ids": ["75.0%", "75.0%", ""]})


def passed() -> Differences:
    """Passes over one of a single node, and beside llama.cpp's of as many nodes in the same dtype."""
    ours, theirs = "native float32", "llama.cpp float32"
    seconds = {
        benchmark_passes.name_of(ours, 1): [1.0, 2.0, 4.0],
        benchmark_passes.name_of(ours, 8): [3.0, 4.0, 4.0],
        benchmark_passes.name_of(theirs, 8): [6.0, 8.0, 12.0],
        benchmark_passes.name_of("llama.cpp bfloat16", 8): [1.0, 1.0, 1.0],
    }
    rows = {(row["program"], row["nodes"]): row for row in benchmark_passes.rows(_measured(seconds))}
    found = {"rows": [*rows]}
    found |= {name: [str(row[name]) for row in rows.values()] for name in ("over a pass of 1", "speed over llama.cpp")}
    expected = {
        "rows": [(ours, 1), (ours, 8), ("llama.cpp bfloat16", 8), (theirs, 8)],
        "over a pass of 1": ["1.00 (1.00 .. 1.00)", _spread([3.0, 2.0, 1.0]), "None", "None"],
        "speed over llama.cpp": ["None", _spread([2.0, 2.0, 3.0]), "None", "None"],
    }
    return differences(found, expected)


@contextmanager
def _silent() -> Iterator[None]:
    with patch.object(rounds, "tqdm", lambda values, desc: values):
        yield


def interleaved() -> Differences:
    """Rounds: a first one that no time counts of, another arm first in each, the lowest agreement of all of them."""
    order: list[str] = []
    made = {"a": [9.0, 1.0, 2.0, 6.0], "b": [9.0, 2.0, 4.0, 4.0]}
    ids = {"a": [[1, 2, 3, 4]] * 4, "b": [[1, 2, 3, 0], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]}

    def run(name: str) -> rounds.Round:
        number = order.count(name)
        order.append(name)
        return rounds.Round(made[name][number], np.array(ids[name][number]), number)

    arms = [TimedArm("a", lambda: run("a")), TimedArm("b", lambda: run("b"), "a", strict=False)]
    with clock_of(rounds) as clock, _silent():
        timings = rounds.measure(arms, 3)
        # The first call warms up; its time does not count.
        lasts = [50.0, 3.0, 1.0, 2.0, 9.0]
        undone = [100.0] * 9
        median = rounds.median_seconds(
            lambda: clock.spend(lasts.pop(0)), 4, lambda: clock.spend(undone.pop()), budget=1e9
        )
        once = decoding.once(lambda: clock.spend(6.0) or np.array([1]), 3)  # type: ignore[func-returns-value]
    found = {
        "order": "".join(order),
        "seconds": timings.seconds,
        "agreement": timings.agreement,
        "ratio": str(timings.ratio("a", "b")),
        "fastest": (timings.fastest("a", "b", "c"), timings.fastest("c")),
        "repeated": median,
        "undone": 9 - len(undone),
        "once": (once.seconds, once.ids.tolist()),  # type: ignore[union-attr]
        "facts": timings.facts,
    }
    expected = {
        "order": "ab" + "ab" + "ba" + "ab",
        "seconds": {"a": [1.0, 2.0, 6.0], "b": [2.0, 4.0, 4.0]},
        "agreement": {"b": 0.75},
        "ratio": "0.50 (0.50 .. 1.50)",
        "fastest": ("a", None),
        "repeated": 2.5,
        "undone": 5,
        "once": (2.0, [1]),
        "facts": {"a": [1, 2, 3], "b": [1, 2, 3]},
    }
    return differences(found, expected)


def compressed() -> Differences:
    """Bits per byte of texts whose letters take two bytes; loops; how far drafts agree."""
    texts, tokenizer = ["ééaé", "aé"], letters(("a", "é"))
    packed = 8 * len(lzma.compress("ééaéaé".encode(), preset=9 | lzma.PRESET_EXTREME)) / (2 * 4 + 2)
    laws = SimpleNamespace(order=2, states=lambda recent: recent, laws=lambda states: np.full((len(states), 2), 0.25))
    target = np.log(np.array([[[0.5, 0.25, 0.25], [0.2, 0.7, 0.1]]]))
    draft = np.log(np.array([[[0.4, 0.4, 0.2], [0.6, 0.3, 0.1]]]))
    agreed = Agreement.between(*map(torch.from_numpy, (target, draft)))
    told = commands._columns(_both(agreed), _both(Agreement(4, 1.0, 3.0)), has_loops=True)
    model: Any = SimpleNamespace(config=SimpleNamespace(max_context=2))
    with (
        # Two bits for each prediction that no window before has made.
        patch.object(held_out, "_nats", lambda _, rows, known: rows[:, 1 + known :].numel() * math.log(4)),
        patch.object(held_out, "end_of_text_id", lambda _: 0),
        patch.object(held_out, "tqdm", lambda texts, **_: texts),
    ):
        bits = held_out.bits_per_byte(model, tokenizer, texts)
    found = {
        "bits": bits,
        "xz": ngrams.xz_bits_per_byte(texts),
        # Six ids of two bits each, ten bytes.
        "n-grams": ngrams.ngram_bits_per_byte(laws, tokenizer, texts),  # type: ignore[arg-type]
        "loops": loops.loop_columns([[1, 2, 1, 2, 1, 2, 3, 4], [5, 6]]),
        "agreement": vars(agreed),
        "columns": [*told.values()],
    }
    expected = {
        "bits": 12 / 10,
        "xz": packed,
        "n-grams": 12 / 10,
        "loops": {"texts": "2", "tokens": "10", "tokens in loops": "60.00%", "texts with a loop": "50.0%"},
        "agreement": {"num_tokens": 2, "same_best": 1, "overlap": 0.85 + 0.6},
        "columns": [1.45 / 2, 1 / 4, 1.45 / 2, 1 / 4],
    }
    return together(
        agreement=differences(found.pop("agreement"), expected.pop("agreement")), texts=differences(found, expected)
    )


def _both(one: Agreement) -> Any:
    return SimpleNamespace(all=one, unlooped=one)


STATISTICS = (overhead, serving, served_rows, decoded, passed, interleaved, compressed)
MUTANTS = line_mutants(
    (bench_engine.cost, "oracle.seconds = 0.0\n    while", "while", overhead, "step"),
    (bench_engine.row, "cost.request for", "cost.step for", overhead, "row"),
    (lock_step_tokens, "len(own) * min(own)", "min(own)", serving, "static, counts"),
    (serve_all, "options.batch_size, began)", "options.batch_size)", serving, "static, latency"),
    (row_of, "rows / len(last.steps) / batch_size", "rows / len(last.steps) / 8", served_rows, "rows in use"),
    (Timings.fastest, "min(ran", "max(ran", decoded, "native bfloat16, speed over transformers"),
    (decoding.rows, "spread(name).median", "spread(name).low", decoded, "native bfloat16, tokens/s"),
    (Timings.ratio, "a / b for a, b in pairs", "min(self.seconds[above]) / b for a, b in pairs", interleaved, "ratio"),
    (Spread.of, "statistics.median(values)", "statistics.fmean(values)", decoded, "native bfloat16, median ms"),
    (
        benchmark_parts.ShapeRounds.time_row,
        "spread.median * 1e3",
        "spread.low * 1e3",
        decoded,
        "native bfloat16, median ms",
    ),
    (benchmark_passes.rows, "name_of(program, 1))", "name_of(program, 8))", passed, "over a pass of 1"),
    (benchmark_passes.rows, "program.split()[-1]", "'bfloat16'", passed, "speed over llama.cpp"),
    (rounds.measure, "shift = number % max(len(arms), 1)", "shift = 0", interleaved, "order"),
    (
        rounds._compare,
        "min(agreement.get(arm.name, 1.0), float(equal.mean()))",
        "float(equal.mean())",
        interleaved,
        "agreement",
    ),
    (rounds.median_seconds, "times[1:]", "times", interleaved, "repeated"),
    (decoding.once, "seconds / units", "seconds", interleaved, "once"),
    (ngrams.xz_bits_per_byte, "/ len(data)", '/ len("".join(texts))', compressed, "texts: xz"),
    (held_out.bits_per_byte, "len(text.encode())", "len(text)", compressed, "texts: bits"),
    (held_out._windows, "stride if start else 0", "0", compressed, "texts: bits"),
    (ngrams.ngram_bits_per_byte, "len(text.encode())", "len(text)", compressed, "texts: n-grams"),
    (loops.loop_columns, "bool(mask.any())", "bool(mask.all())", compressed, "texts: loops"),
    (
        Agreement.between,
        "torch.minimum(target, draft)",
        "torch.maximum(target, draft)",
        compressed,
        "agreement: overlap",
    ),
    (commands._columns, "greedy.all.share_same", "own.all.share_same", compressed, "texts: columns"),
)
