"""The tables of loads, a line on each rate, and whether the arms of a load did the same work."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

from experiments.harness.arms import PLAIN
from experiments.load.load_predictions import LoadPrediction
from experiments.load.serving import PERCENTILES, Load
from specdec.stats import Table
from specdec.stats.report import Panel, panels

LATENCY = {
    "TTFT": "time to first token, ms: from the arrival, the queue and the prompt's pass included",
    "TPOT": "time per output token after the first one, ms, of each request",
    "ITL": "inter-token latency, ms: between the steps of a request, each of which may emit several tokens",
    "E2EL": "end-to-end latency, ms: from the arrival to the last token",
}
THROUGHPUT = {
    "requests": "that arrived in the time that counts",
    "tokens/s": "emitted in that time, by all rows",
    "goodput": "requests a second that keep the limit",
    "good": "their share of the requests",
    "rows": "mean of the rows in use over that time",
    "queue": "how fast it grows: requests a second, as a share of those that arrive",
    "saturated": "whether the queue grows by more than 10% (-: fewer than 10 requests do not tell)",
}
PREDICTED = {
    "expected rows": "rows in use that a token meets, its own included, as predicted; all rows beyond the capacity",
    "tau": "tokens of a row's step with that many rows, from the arm's steps at all rates, without steps that seat "
    "requests",
    "v": "cost of their width: time of a pass of as many nodes a row over a pass of 1, both timed apart",
    "TPOT": "ms, mean of the requests",
    "over plain": "plain decoding's TPOT at that rate over the arm's",
    "predicted TPOT; predicted ratio": "both from v, tau, and what drafting and the rest take with the expected rows "
    "(-: beyond the capacity, or too few steps)",
}
CAPACITY = {
    "predicted capacity": "requests a second that a full batch serves, by the same parts (-: too few full steps)",
    "holds to": "the highest measured rate up to which the queue never grows",
    "tokens/s": "the most at any rate",
}


def latency_row(load: Load) -> dict[str, Any]:
    """Return the percentiles of a load."""
    cells = {
        f"{name} P{q}": value for name in LATENCY for q, value in zip(PERCENTILES, load.percentiles(name), strict=True)
    }
    return {"rate": load.rate, "arm": load.arm, **cells}


def throughput_row(load: Load, limits: Mapping[str, float]) -> dict[str, Any]:
    """Return what a load served, and how good."""
    arrived = len(load.requests)
    rate = arrived / load.window.seconds
    good = load.goodput(limits)
    return {
        "rate": load.rate,
        "arm": load.arm,
        "requests": arrived,
        "tokens/s": load.throughput,
        "goodput": good,
        "good": f"{good / rate:.0%}",
        "rows": load.rows_in_use,
        "queue": f"{round(100 * load.queue_growth / rate):+d}%",
        "saturated": {True: "yes", False: "no", None: None}[load.is_saturated],
    }


def prediction_row(load: Load, plain: Load, foretold: Mapping[str, LoadPrediction]) -> dict[str, Any]:
    """Return a load's time per token beside the prediction."""
    own, measured, base = foretold.get(load.arm), load.mean_tpot, plain.mean_tpot
    predicted = None if own is None else own.tpot(load.rate)
    base_predicted = None if own is None else foretold[PLAIN].tpot(load.rate)
    return {
        "rate": load.rate,
        "arm": load.arm,
        "expected rows": None if own is None else own.rows(load.rate),
        "tau": None if own is None else own.steps.at("tau", own.rows(load.rate)),
        "v": None if own is None else own.width_cost(own.rows(load.rate)),
        "TPOT": None if measured is None else 1e3 * measured,
        "predicted TPOT": None if predicted is None else 1e3 * predicted,
        "over plain": measured and base and base / measured,
        "predicted ratio": predicted and base_predicted and base_predicted / predicted,
    }


def capacity_rows(loads: Sequence[Load], foretold: Mapping[str, LoadPrediction]) -> list[dict[str, Any]]:
    """Return for each arm up to which rate it holds, measured and predicted."""
    found = []
    for arm in dict.fromkeys(load.arm for load in loads):
        own = sorted((load for load in loads if load.arm == arm), key=lambda load: load.rate)
        told, held = foretold.get(arm), [load.rate for load in takewhile(lambda load: load.is_saturated is False, own)]
        found.append({
            "arm": arm,
            "predicted capacity": told.capacity if told and told.saw_full else None,
            "holds to": held[-1] if held else None,
            "tokens/s": max(load.throughput for load in own),
        })  # fmt: skip
    return found


def conclusions(
    loads: Sequence[Load], limits: Mapping[str, float], foretold: Mapping[str, LoadPrediction]
) -> list[str]:
    """Return for each rate which arms are best, as measured and as predicted."""
    told = []
    for rate in sorted({load.rate for load in loads}):
        own = [load for load in loads if load.rate == rate]
        words = [f"{rate:.3g} requests/s:"]
        if timed := {load.arm: load.mean_tpot for load in own if load.mean_tpot is not None and not load.is_saturated}:
            words.append(f"least mean time per token {_least(timed)}" + _predicted_fastest(rate, timed, foretold))
        words += [_most_goodput({load.arm: load.goodput(limits) for load in own}), _queues(own)]
        told.append(" ".join(words))
    return told


def _most_goodput(goods: Mapping[str, float]) -> str:
    """Return which arms have the most goodput."""
    most = max(goods.values())
    if not most:
        return "no request of any arm keeps the limit;"
    best = [arm for arm, good in goods.items() if good == most]
    arms = "of all arms alike" if len(best) == len(goods) > 1 else ", ".join(best)
    return f"most goodput {arms} ({most:.3g});"


def _queues(loads: Sequence[Load]) -> str:
    """Return whose queues grow at a rate."""
    if grown := [load.arm for load in loads if load.is_saturated]:
        return f"saturated: {', '.join(grown)}."
    known = any(load.is_saturated is not None for load in loads)
    return "no queue grows." if known else "too few requests tell whether queues grow."


def _least(values: Mapping[str, float | None]) -> str:
    """Return the name of the least value that there is."""
    known = {name: value for name, value in values.items() if value is not None}
    return min(known, key=known.__getitem__)


def _predicted_fastest(rate: float, arms: Mapping[str, Any], foretold: Mapping[str, LoadPrediction]) -> str:
    """Return which of some arms was predicted to be the fastest."""
    predicted = {arm: foretold[arm].tpot(rate) for arm in arms if arm in foretold}
    if all(one is None for one in predicted.values()):
        return " (predicted: all saturated);" if predicted else ";"
    return f" (predicted: {_least(predicted)});"


def tables(loads: Sequence[Load], limits: Mapping[str, float], foretold: Mapping[str, LoadPrediction]) -> list[Table]:
    """Return the tables of all loads."""
    plain = {load.rate: load for load in loads if load.arm == PLAIN}
    served = [throughput_row(load, limits) for load in loads]
    compared = [prediction_row(load, plain[load.rate], foretold) for load in loads]
    legend = {", ".join(f"{name} P{q}" for q in PERCENTILES): told for name, told in LATENCY.items()}
    latency = Table("Latency by request rate", [latency_row(load) for load in loads], legend=legend)
    return [
        replace(latency, brief=("rate", "arm", "TTFT P99", "TPOT P50", "E2EL P99")),
        Table("Throughput and goodput", served, f"Limit: {limit_text(limits)}.", legend=THROUGHPUT),
        Table("Time per token beside the prediction", compared, legend=PREDICTED),
        Table("Up to which rate an arm holds", capacity_rows(loads, foretold), legend=CAPACITY),
    ]


def limit_text(limits: Mapping[str, float]) -> str:
    """Return limits, which are in seconds, in words."""
    return ", ".join(f"{name.upper()} {1e3 * limit:g} ms" for name, limit in limits.items())


def draw(path: Path, loads: Sequence[Load], limits: Mapping[str, float]) -> None:
    """Write the picture: P99 of the time to first token and per token, and goodput, by rate, a line an arm."""

    def of(value: Any) -> dict[str, list[tuple[float, float]]]:
        points: dict[str, list[tuple[float, float]]] = {}
        for load in sorted(loads, key=lambda load: load.rate):
            if (found := value(load)) is not None:
                points.setdefault(load.arm, []).append((load.rate, found))
        return points

    series = {
        "TTFT, P99, ms": (of(lambda load: load.percentiles("TTFT")[-1]), True),
        "TPOT, P99, ms": (of(lambda load: load.percentiles("TPOT")[-1]), False),
        f"goodput, requests/s ({limit_text(limits)})": (of(lambda load: load.goodput(limits)), False),
    }
    panels(path, [Panel("request rate, requests/s", up, one, one, log_across=False, log_up=log)
                  for up, (one, log) in series.items()])  # fmt: skip


def differing(loads: Sequence[Load], repeats_plain: bool) -> dict[str, int]:
    """Return arm -> how many outputs are not plain decoding's of that rate; not as long, if they need not repeat it."""
    plain = {load.rate: [request.tokens for request in load.served.requests] for load in loads if load.arm == PLAIN}
    found: dict[str, int] = {}
    for load in loads:
        pairs = zip((request.tokens for request in load.served.requests), plain[load.rate], strict=True)
        unlike = sum(a != b if repeats_plain else len(a) != len(b) for a, b in pairs)
        found[load.arm] = found.get(load.arm, 0) + unlike
    return found


def describe_outputs(loads: Sequence[Load], repeats_plain: bool) -> str:
    """Return a sentence on the outputs.

    Args:
        loads: of all arms and rates.
        repeats_plain: whether outputs must be plain decoding's, as greedy and coupled ones must.
    """
    unlike = differing(loads, repeats_plain)
    total = sum(len(load.served.requests) for load in loads if load.arm != PLAIN)
    what = "are plain decoding's, token for token" if repeats_plain else "are as long as plain decoding's"
    said = f"{total - sum(unlike.values()):,} of {total:,} outputs, of {len(unlike) - 1} arms, {what}"
    others = [f"{arm} {count}" for arm, count in unlike.items() if count]
    return f"{said} (the others: {', '.join(others)})." if others else f"{said}."


def problems_of_work(loads: Sequence[Load], repeats_plain: bool) -> list[str]:
    """Return a line for each arm that should have done plain decoding's work and did not.

    Arms that are exact up to numerics may write other ids; lossy arms may write others, but as many.
    """
    claims = {load.arm: load.served.claim for load in loads}
    what = "plain decoding's" if repeats_plain else "as long as plain decoding's"
    unlike = differing(loads, repeats_plain)
    counts = {arm: count for arm, count in unlike.items() if count and (claims[arm] == "exact" or not repeats_plain)}
    return [f"{arm}: outputs that are not {what}: {count}" for arm, count in counts.items()]
