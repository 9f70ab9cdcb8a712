"""The parts of a step, predicted and measured, and which of them a prediction misses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from experiments.harness.run_outcome import in_flight
from specdec.stats import Stats
from specdec.theory import predicted_speedup

# A prediction that is off by more names the part that it misses.
CLOSE = 0.1


@dataclass(frozen=True)
class Parts:
    """What makes up a speed-up. Times are in T, a pass of plain decoding.

    Args:
        tokens: tau, the tokens of a row's step.
        rows: in flight, over plain decoding's.
        drafting: of a step.
        scoring: v, a step's pass.
        rest: what a step takes besides drafting and scoring.
        plain: what a plain step takes besides its pass.
        once: T itself, in seconds; 1 if nothing was timed.
    """

    tokens: float
    rows: float
    drafting: float
    scoring: float
    rest: float
    plain: float
    once: float = 1.0

    @staticmethod
    def of(plain: Stats, stats: Stats) -> "Parts":
        """Return the parts of a run, beside plain decoding of the same prompts; prefill is left out."""
        once = plain.seconds_per_call("score") or float("nan")
        return Parts(
            stats.block_efficiency or float("nan"),
            in_flight(plain, stats),
            (stats.seconds_per_call("propose") or 0.0) / once,
            stats.width_cost(once) or float("nan"),
            (stats.seconds_per_call("verify", "commit", "other") or 0.0) / once,
            (plain.seconds_per_call("propose", "verify", "commit", "other") or 0.0) / once,
            once,
        )

    @property
    def speedup(self) -> float:
        """tau rows (1 + plain) / (scoring + drafting + rest), over plain decoding as it runs."""
        tokens = self.tokens * self.rows
        return predicted_speedup(tokens, self.scoring, self.drafting, self.rest) * (1 + self.plain)


# Parts that are times, and what took them.
_TIMES = {
    "drafting": "drafting took {} ms a step",
    "scoring": "scoring took {} ms a step",
    "rest": "the rest took {} ms a step",
    "plain": "plain decoding's rest took {} ms a step",
    "once": "a plain pass took {} ms",
}


def _absolute(parts: Parts) -> dict[str, float]:
    """Return the parts with their times in milliseconds."""
    of_passes = {name: 1e3 * parts.once * getattr(parts, name) for name in _TIMES if name != "once"}
    return {"tokens": parts.tokens, "rows": parts.rows, "once": 1e3 * parts.once, **of_passes}


def _gain(parts: Mapping[str, float]) -> float:
    """Return the logarithm of the speed-up of parts with times in milliseconds."""
    step = parts["drafting"] + parts["scoring"] + parts["rest"]
    return math.log(parts["tokens"] * parts["rows"] * (parts["once"] + parts["plain"]) / step)


def _describe(name: str, predicted: float, measured: float) -> str | None:
    """Return how a part differs from its prediction; None if two decimals do not show it."""
    if name in _TIMES:
        size = f"{abs(measured - predicted):.2f}"
        more = "more" if measured > predicted else "less"
        return None if float(size) == 0 else f"{_TIMES[name].format(size)} {more} than predicted"
    was, found = f"{predicted:.2f}", f"{measured:.2f}"
    what = {"tokens": f"tau {found}", "rows": f"{found} of plain decoding's rows in flight"}[name]
    return None if was == found else f"{what} instead of {was}"


def missing(predicted: Parts, measured: Parts) -> dict[str, str]:
    """Return the parts that a prediction misses, in words by name; empty if it is close enough.

    First comes the part whose correction brings the prediction nearest to the measured speed-up; then the part that
    does so for the prediction corrected so far, too high or too low, and so on until the remaining error is within
    ``CLOSE``. Times are compared in milliseconds, each run's by its own T, and T is a part like the others.

    Args:
        predicted, measured: parts of the same arm.
    """
    mended, true = _absolute(predicted), _absolute(measured)
    words = {name: told for name in mended if (told := _describe(name, mended[name], true[name]))}
    found: dict[str, str] = {}

    def distance(name: str) -> float:
        """Return how far off the prediction is, on a log scale, if one more part is corrected."""
        return abs(_gain({**mended, name: true[name]}) - _gain(true))

    while abs(math.exp(_gain(mended) - _gain(true)) - 1) > CLOSE and len(found) < len(words):
        name = min((name for name in words if name not in found), key=distance)
        found[name] = words[name]
        mended[name] = true[name]
    return found
