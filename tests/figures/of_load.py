"""The columns of loads: a virtual clock and steps of known costs; latency, goodput and queues; what width predicts."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import drafts
from experiments.load import load_predictions, load_tables, measuring_loads, serving
from experiments.load.load_predictions import LoadPrediction, StepCosts, predictions
from experiments.load.serving import Load, LoadRun, ServedRequest, ServedStep, Window, serve
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder, State, StepInfo
from specdec.theory import WidthCurve
from tests.support.line_mutants import Differences, differences, line_mutants, together
from tests.support.runs.hand_clock import HandClock, clock_of

PROPOSE, VERIFY, COMMIT, PROMPT = 0.25, 0.125, 0.375, 4.0


class _Simulated(SpeculativeDecoder):
    """A decoder whose steps take known times: 4 s a prompt, 1 s and 1 s a row for a pass, and 0.75 s."""

    clock: HandClock

    def step(self, state: State) -> tuple[State, StepInfo]:
        before = {*state.slots.occupants.tolist()}
        state, info = super().step(state)
        score = 1.0 + len(info.requests)
        self.clock.spend(PROMPT * len({*info.requests.tolist()} - before) + score + PROPOSE + VERIFY + COMMIT)
        return state, replace(info, seconds={"propose": PROPOSE, "score": score, "verify": VERIFY, "commit": COMMIT})


def _simulate(length: int, arrivals: Sequence[float]) -> LoadRun:
    """Serve requests of three tokens on two rows; a source that drafts with the oracle itself is always right."""
    oracle = TabularLM.random(4, 2, 0, eos_id=0)
    decoder = _Simulated(oracle, drafts.SmallTransformer(oracle, length) if length else None)
    with clock_of(serving, sleeping=True) as decoder.clock:
        make, sampling = decoder.request, SamplingParams(ignore_eos=True)
        requests = [make(prompt, 3, sampling, (0, i)) for i, prompt in enumerate([[1], [2], [3], [1, 2]])]
        return serve(decoder, requests, arrivals, 2)


def simulated() -> Differences:
    """Two rows, four requests: two wait in the queue, nobody is there before the last one."""
    plain, drafted = (_simulate(length, [0.0, 1.0, 3.0, 40.0]) for length in (0, 2))
    found = {
        "arrivals": [one.arrival for one in plain.requests],
        "seated": [one.seated for one in plain.requests],
        "times": [one.times for one in plain.requests],
        "counts": [one.counts for one in plain.requests],
        "lengths": [len(one.tokens) for one in plain.requests],
        "steps": [(one.rows, one.seated, one.emitted, one.nodes) for one in plain.steps],
        "seconds": [[*one.seconds.values()] for one in plain.steps[1:3]],
        "drafted, times": [one.times for one in drafted.requests],
        "drafted, counts": [one.counts for one in drafted.requests],
        "drafted, steps": [(one.rows, one.seated, one.emitted, one.nodes) for one in drafted.steps],
        "same": [one.tokens for one in drafted.requests],
        "again": LoadRun.from_dict(plain.as_dict()) == plain,
    }
    expected = {
        "arrivals": [0.0, 1.0, 3.0, 40.0],
        # A step of one row takes 2.75 s, of two 3.75 s, and 4 s for each prompt.
        "seated": [0.0, 6.75, 18.25, 40.0],
        "times": [(6.75, 14.5, 18.25), (14.5, 18.25, 26.0), (26.0, 28.75, 31.5), (46.75, 49.5, 52.25)],
        "counts": [(1, 1, 1)] * 4,
        "lengths": [3] * 4,
        "steps": [(1, 1, 1, 1), (2, 1, 2, 2), (2, 0, 2, 2), (2, 1, 2, 2), *[(1, 0, 1, 1)] * 2,
                  (1, 1, 1, 1), *[(1, 0, 1, 1)] * 2],
        "seconds": [[0.25, 3.0, 0.5, 4.0], [0.25, 3.0, 0.5, 0.0]],
        # Two drafted tokens and one more: a request is over with its first step.
        # Both that wait are seated at once: 8 + 3.75 s.
        "drafted, times": [(6.75,), (18.5,), (18.5,), (46.75,)],
        "drafted, counts": [(3,)] * 4,
        "drafted, steps": [(1, 1, 3, 3), (2, 2, 6, 6), (1, 1, 3, 3)],
        "same": [one.tokens for one in plain.requests],
        "again": True,
    }  # fmt: skip
    return differences(found, expected)


def _request(arrival: float, seated: float, *steps: tuple[float, int]) -> ServedRequest:
    counts = tuple(count for _, count in steps)
    return ServedRequest(arrival, seated, tuple(time for time, _ in steps), counts, (7,) * sum(counts))


# Of a window from 10 to 20 s the first request comes too early and the last one too late.
REQUESTS = (
    _request(4.0, 4.0, (6.0, 1), (11.0, 2), (12.0, 2)),
    _request(10.0, 10.0, (11.0, 3), (13.0, 2)),
    _request(12.0, 14.0, (15.0, 1), (16.0, 1), (22.0, 2)),
    _request(16.0, 18.0, (19.0, 1)),
    _request(19.0, 23.0, (24.0, 2), (25.0, 2), (27.0, 1)),
    _request(21.0, 25.0, (26.0, 1)),
)
WINDOW = Window(10.0, 20.0)
LIMITS = {"ttft": 3.0, "tpot": 1.5}


def _load(arm: str = "plain", rate: float = 0.5, requests: Sequence[ServedRequest] = REQUESTS) -> Load:
    return Load(rate, arm, LoadRun(tuple(requests), (), "exact"), WINDOW)


def _quantile(values: Sequence[float], share: float) -> float:
    ordered, at = sorted(values), share * (len(values) - 1)
    low = int(at)
    return ordered[low] + (at - low) * ((ordered + ordered[-1:])[low + 1] - ordered[low])


def latency() -> Differences:
    """Percentiles of four requests that count, one of a single token."""
    row = load_tables.latency_row(_load())
    values = {
        "TTFT": [1.0, 3.0, 3.0, 5.0],
        # 2 s for four tokens, 7 s for three, 3 s for four; the single token has none.
        "TPOT": [0.5, 7 / 3, 0.75],
        "ITL": [2.0, 1.0, 6.0, 1.0, 2.0],
        "E2EL": [3.0, 10.0, 3.0, 8.0],
    }
    expected: dict[str, Any] = {"rate": 0.5, "arm": "plain"}
    for name, own in values.items():
        expected |= {f"{name} P{q}": 1e3 * _quantile(own, q / 100) for q in (50, 95, 99)}
    nobody = load_tables.latency_row(_load(requests=REQUESTS[:1]))
    return together(row=differences(row, expected), nobody=differences({"TTFT": nobody["TTFT P50"]}, {"TTFT": None}))


def served_loads() -> Differences:
    """What a load served: tokens, good requests, rows, and a queue that grows or not."""
    row = load_tables.throughput_row(_load(), LIMITS)
    # In the queue: 12 to 14, 16 to 18 and 19 to 20; around the middle at 15.
    slope = (2 * -2.0 + 2 * 2.0 + 1 * 4.5) / (10.0**3 / 12)
    expected = {
        "rate": 0.5,
        "arm": "plain",
        "requests": 4,
        # Of the first 4, of the second 5, of the third 2, of the fourth 1.
        "tokens/s": 12 / 10,
        # The second, and the fourth, of a single token; the third is slow, the fifth waits too long.
        "goodput": 2 / 10,
        "good": "50%",
        # 2 s, 3 s, 6 s and 1 s within the window.
        "rows": 12 / 10,
        "queue": f"{round(100 * slope / 0.4):+d}%",
        "saturated": None,
    }
    # Ten that arrive a second apart; each waits a fixed time, or longer from one to the next.
    waits = {"grows": [0.5 * i for i in range(10)], "stands": [0.5] * 10, "ends": [0.09 * i for i in range(10)]}
    full = {
        name: _load(requests=[_request(10.5 + i, 10.5 + i + wait, (30.0, 1)) for i, wait in enumerate(own)])
        for name, own in waits.items()
    }
    found = {name: load.is_saturated for name, load in full.items()}
    limited = [REQUESTS[1].keeps({"e2el": bound}) for bound in (3.0, 2.9)]
    found_limits = {"e2el": limited, "words": load_tables.limit_text({"ttft": 0.5, "tpot": 0.0125})}
    return together(
        row=differences(row, expected),
        queue=differences(found, {"grows": True, "stands": False, "ends": False}),
        limits=differences(found_limits, {"e2el": [True, False], "words": "TTFT 500 ms, TPOT 12.5 ms"}),
    )


def _step(rows: int, emitted: int, nodes: int, score: float, seated: int = 0, other: float = 0.0) -> ServedStep:
    seconds = {"propose": 0.125, "score": score, "rest": 0.25, "other": 0.125 + other}
    return ServedStep(rows, seated, emitted, nodes, seconds)


def _runs(arm: str) -> LoadRun:
    """Return three steps of one row and of four, and three that seat two requests; each request has four tokens."""
    tau, nodes = (1, 1) if arm == "plain" else (2, 3)
    steps = [_step(rows, rows * tau, rows * nodes, 1.0 + rows + extra) for rows in (1, 4) for extra in (-0.5, 0.0, 1.0)]
    steps += [_step(2, 9, 99, 99.0, seated=2, other=0.875)] * 3
    return LoadRun(tuple(_request(0.0, 0.0, (9.0, 4)) for _ in range(3)), tuple(steps), "exact")


def _at_once() -> LoadRun:
    """Return requests that end in the step that seats them."""
    return LoadRun((_request(0.0, 0.0, (9.0, 4)),), (_step(1, 4, 4, 2.0, seated=1),) * 3, "exact")


CURVES = (WidthCurve((1, 2, 4), (1.0, 1.0, 1.5), 1), WidthCurve((1, 2, 4), (1.0, 1.5, 3.0), 4))


def _foretold() -> dict[str, LoadPrediction]:
    runs = {arm: [_runs(arm)] for arm in ("plain", "drafted")}
    return predictions({**runs, "at once": [_at_once()]}, CURVES, 4)


def foretold() -> Differences:
    """Steps by rows, the cost of width between them, the capacity, and a queue in balance."""
    made = _foretold()
    plain, drafted = made["plain"], made["drafted"]
    found: dict[str, Any] = {
        "arms": [[*made], [*predictions({"plain": [_at_once()], "drafted": [_runs("drafted")]}, CURVES, 4)]],
        "steps": vars(drafted.steps),
        "prefill": plain.prefill,
        "tokens": plain.num_tokens,
        "v": [drafted.width_cost(rows) for rows in (1, 2.5, 4)],
        "capacity": [plain.capacity, drafted.capacity],
        "tpot": plain.tpot(0.1),
        "beyond": [plain.tpot(0.2), plain.rows(0.2)],
        "drafted": drafted.tpot(0.05),
    }
    # Between one and four rows a step of plain decoding takes 1 + n and 0.5 s beside the pass.
    flow = 0.1 * 4 / (1 - 0.1 * 0.5)
    beside = (0.1 * 0.5 + flow * 2.5) / (1 - flow)
    # Three nodes a row cost 1.25 beside none and 2.25 with four rows: 1.25 + (n - 1) / 3.
    other = 0.0
    for _ in range(200):
        n = 1 + other
        token = ((1 + n) * (1.25 + (n - 1) / 3) + 0.5) / 2 / (1 - 0.05 * 0.5)
        other = 0.05 * (0.5 + 4 * token)
    expected = {
        "arms": [["plain", "drafted"], []],
        "steps": {"rows": (1, 4), "tau": (2.0, 2.0), "nodes": (3.0, 3.0), "score": (2.0, 5.0), "rest": (0.5, 0.5)},
        # A step that seats two: 1 s beside its phases.
        "prefill": 0.5,
        "tokens": 4.0,
        "v": [1.25, 1.75, 2.25],
        "capacity": [1 / (0.5 + 4 * 5.5 / 4), 1 / (0.5 + 4 * (5 * 2.25 + 0.5) / 8)],
        "tpot": (2.5 + beside) / (1 - 0.1 * 0.5),
        "beyond": [None, 4.0],
        "drafted": token,
    }
    return differences(found, expected)


def compared() -> Differences:
    """A load beside its prediction, and up to which rate an arm holds."""
    made, requests = _foretold(), [_request(10.5 + i, 10.5 + i, (11.5 + i, 2), (13.5 + i, 2)) for i in range(10)]
    slow = [_request(10.5 + i, 10.5 + i, (11.5 + i, 1), (14.5 + i, 2)) for i in range(10)]
    late = [_request(10.5 + i, 10.5 + 2 * i, (40.0, 1), (40.5, 1)) for i in range(10)]
    loads = [
        _load("plain", 0.05, slow), _load("drafted", 0.05, requests),
        _load("plain", 0.1, late), _load("drafted", 0.1, requests), _load("plain", 0.2, slow),
    ]  # fmt: skip
    row = load_tables.prediction_row(loads[1], loads[0], made)
    told = {name: load_tables.prediction_row(loads[3], loads[2], made)[name] for name in ("TPOT", "over plain")}
    token, base = made["drafted"].tpot(0.05), made["plain"].tpot(0.05)
    assert token is not None
    assert base is not None
    # Those beside a request, by Little's law: of each 0.5 s for its prompt, and four tokens.
    rows = 1 + 0.05 * (0.5 + 4 * token)
    expected = {
        "rate": 0.05,
        "arm": "drafted",
        "expected rows": rows,
        "tau": 2.0,
        "v": 1.25 + (rows - 1) / 3,
        # Two seconds for three tokens; of plain decoding three for two.
        "TPOT": 2e3 / 3,
        "predicted TPOT": 1e3 * token,
        "over plain": 1.5 / (2 / 3),
        "predicted ratio": base / token,
    }
    capacities = {one["arm"]: one for one in load_tables.capacity_rows(loads, made)}
    held = {f"{arm}, {name}": one[name] for arm, one in capacities.items() for name in ("holds to", "tokens/s")}
    # The middle rate is saturated: what holds beyond it does not count. Tokens within the window: of the first steps
    # those of nine requests, of the second those of seven.
    most = {"plain": (9 * 1 + 6 * 2) / 10, "drafted": (9 * 2 + 7 * 2) / 10}
    expected_held = {
        "plain, holds to": 0.05, "plain, tokens/s": most["plain"],
        "drafted, holds to": 0.1, "drafted, tokens/s": most["drafted"],
    }  # fmt: skip
    words = load_tables.conclusions(loads, {"tpot": 1.2}, made)
    words += load_tables.conclusions([_load("plain", 0.05)], {"ttft": 3.0}, made)
    words += load_tables.conclusions(loads[1:2], {"tpot": 1.2}, {"plain": made["plain"]})
    # Of no arm did three steps have five rows, and of one nothing is foretold.
    narrow = {"plain": replace(made["plain"], batch_size=5)}
    unknown = load_tables.prediction_row(loads[1], loads[0], narrow)
    unknown |= {one["arm"]: one["predicted capacity"] for one in load_tables.capacity_rows(loads[:2], narrow)}
    return together(
        row=differences(row, expected),
        second=differences(told, {"TPOT": 2e3 / 3, "over plain": 0.5 / (2 / 3)}),
        held=differences(held, expected_held),
        capacity=differences(
            {arm: one["predicted capacity"] for arm, one in capacities.items()},
            {arm: made[arm].capacity for arm in capacities},
        ),
        unknown=differences(
            unknown,
            {**expected, "plain": None, "drafted": None}
            | dict.fromkeys(("expected rows", "tau", "v", "predicted TPOT", "predicted ratio")),
        ),
        words=differences(
            dict(zip("01234", words, strict=True)),
            {
                "0": "0.05 requests/s: least mean time per token drafted (predicted: drafted); most goodput drafted "
                "(1); no queue grows.",
                "1": "0.1 requests/s: least mean time per token drafted (predicted: drafted); most goodput of all arms "
                "alike (1); saturated: plain.",
                "2": "0.2 requests/s: least mean time per token plain (predicted: all saturated); no request of any "
                "arm keeps the limit; no queue grows.",
                "3": "0.05 requests/s: least mean time per token plain (predicted: plain); most goodput plain (0.3); "
                "too few requests tell whether queues grow.",
                "4": "0.05 requests/s: least mean time per token drafted; most goodput drafted (1); no queue grows.",
            },
        ),
    )


def timed() -> Differences:
    """What a full batch of plain decoding serves, while all rows are in flight."""
    served = LoadRun((_request(0.0, 0.0, (1.0, 1), (2.0, 1)), _request(0.0, 2.0, (3.0, 2))), (), "exact")
    own: Any = SimpleNamespace(
        arguments={"batch_size": 1}, widths=[1, 2], oracle=None, _serve=lambda arm, times: served
    )
    with patch.object(measuring_loads, "pass_seconds", lambda _, widths, rows: [0.5 * rows, 1.0]):
        found = measuring_loads.Loads._capacity(own)
    # Two tokens in two seconds, two tokens a request.
    return differences(found, {"capacity": 0.5, "widths": [1, 2], "passes": {"1": [0.5, 1.0]}})


STATISTICS = (simulated, latency, served_loads, foretold, compared, timed)
MUTANTS = line_mutants(
    (serving.serve, "arrivals[num_arrived] <= began", "True", simulated, "seated"),
    (serve, "arrivals[num_arrived] - began", "0.5 * arrivals[num_arrived]", simulated, "seated"),
    (serving._Book.note, "append(ended)", "append(began)", simulated, "times"),
    (serving._Book.note, "rows + drafted", "drafted", simulated, "steps"),
    (serving._Book.note, "ended - began - sum(parts.values())", "0.0 * (ended - began)", simulated, "seconds"),
    (Load.requests, "self.window.holds(request.arrival)", "True", latency, "row: TTFT P95"),
    (ServedRequest.ttft, "self.times[0] - self.arrival", "self.times[0] - self.seated", latency, "row: TTFT P95"),
    (ServedRequest.e2el, "self.times[-1] - self.arrival", "self.times[-1] - self.seated", latency, "row: E2EL P95"),
    (ServedRequest.tpot, "sum(self.counts) - 1", "len(self.counts) - 1", latency, "row: TPOT P50"),
    (ServedRequest.itls, "after - before", "after - self.arrival", latency, "row: ITL P50"),
    (Window.holds, "self.begin <= time", "0.0 <= time", latency, "row: TTFT P95"),
    (Load.goodput, "in self.requests", "in self.served.requests", served_loads, "row: goodput"),
    (ServedRequest.keeps, "all(", "any(", served_loads, "row: goodput"),
    (Load.throughput, "if self.window.holds(time)", "if time", served_loads, "row: tokens/s"),
    (Load.rows_in_use, "request.seated", "request.arrival", served_loads, "row: rows"),
    (Window.share, "min(end, self.end)", "end", served_loads, "row: rows"),
    (Load.queue_growth, "min(request.seated, window.end)", "window.end", served_loads, "row: queue"),
    (Load.queue_growth, "**3 / 12", "**2 / 12", served_loads, "row: queue"),
    (Load.is_saturated, "SATURATED * arrived", "2.0 * arrived", served_loads, "queue: grows"),
    (Load.is_saturated, "SATURATED * arrived", "0.0 * arrived", served_loads, "queue: ends"),
    (load_tables.throughput_row, "good / rate", "good", served_loads, "row: good"),
    (StepCosts.of, "if not step.seated", "if step.rows", foretold, "steps"),
    (LoadPrediction.step_seconds, "* self.width_cost(rows)", "", foretold, "capacity"),
    (LoadPrediction.width_cost, "np.interp(rows,", "np.interp(1,", foretold, "v"),
    (LoadPrediction.capacity, "self.prefill + ", "", foretold, "capacity"),
    (LoadPrediction.tpot, "rate >= self.capacity", "rate >= 9", foretold, "beyond"),
    (LoadPrediction._rows, "1 + others", "others", foretold, "tpot"),
    (load_predictions.prefill_seconds, "step.seated for step", "1 for step", foretold, "prefill"),
    (load_tables.prediction_row, "base / measured", "measured / base", compared, "row: over plain"),
    (load_tables.capacity_rows, "takewhile(", "filter(", compared, "held: plain, holds to"),
    (load_tables.conclusions, " and not load.is_saturated", "", compared, "words: 1"),
    (load_tables._most_goodput, "max(goods", "min(goods", compared, "words: 0"),
    (load_tables._queues, "is not None", "is None", compared, "words: 3"),
    (measuring_loads.Loads._capacity, "/ tokens_of([served])", "", timed, "capacity"),
)
