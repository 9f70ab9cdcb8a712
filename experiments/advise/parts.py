"""The parts of a step, predicted and measured, and which of them a prediction misses."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from specdec.stats import Stats
from specdec.theory import predicted_speedup

# A prediction that is off by more names the part that it misses.
CLOSE = 0.1


@dataclass(frozen=True)
class Parts:
    """What makes up a speed-up. Times are in T, a pass of plain decoding.

    Args:
        tokens: tau, of a row's step.
        rows: in flight, over plain decoding's.
        drafting: of a step.
        scoring: v, a step's pass.
        rest: what a step takes beside drafting and scoring.
        plain: what a plain step takes beside its pass.
    """

    tokens: float
    rows: float
    drafting: float
    scoring: float
    rest: float
    plain: float

    @staticmethod
    def of(plain: Stats, stats: Stats) -> "Parts":
        """Return the parts that a run had, beside plain decoding of the same prompts; prefill is none of them."""
        once = plain.seconds_per_call("score") or float("nan")
        in_flight = (stats.num_steps / stats.target_calls) / (plain.num_steps / plain.target_calls)
        return Parts(
            stats.block_efficiency or float("nan"),
            in_flight,
            (stats.seconds_per_call("propose") or 0.0) / once,
            stats.width_cost(once) or float("nan"),
            (stats.seconds_per_call("verify", "commit", "other") or 0.0) / once,
            (plain.seconds_per_call("propose", "verify", "commit", "other") or 0.0) / once,
        )

    @property
    def speedup(self) -> float:
        """tau rows (1 + plain) / (scoring + drafting + rest), over plain decoding as it runs."""
        tokens = self.tokens * self.rows
        return predicted_speedup(tokens, self.scoring, self.drafting, self.rest) * (1 + self.plain)


def _in_time(what: str) -> Callable[[float, float, float], str]:
    """Return what says how much longer a part took than predicted."""

    def told(predicted: float, measured: float, once: float) -> str:
        more = "more" if measured > predicted else "less"
        return f"{what} took {1e3 * once * abs(measured - predicted):.2f} ms a step {more} than calibrated"

    return told


_WORDS: dict[str, Callable[[float, float, float], str]] = {
    "tokens": lambda predicted, measured, once: f"tau {measured:.2f} instead of {predicted:.2f}",
    "rows": lambda predicted, measured, once: (
        f"{measured:.2f} of plain decoding's rows in flight instead of {predicted:.2f}"
    ),
    "drafting": _in_time("drafting"),
    "scoring": _in_time("scoring"),
    "rest": _in_time("the rest"),
    "plain": _in_time("plain decoding's rest"),
}


def missing(predicted: Parts, measured: Parts, once: float) -> list[str]:
    """Return what a prediction misses, in words, the largest part first; empty if it is close enough.

    Each part by itself is put right; those that bring the prediction nearer to the measured speed-up are named, until
    what is left is within ``CLOSE``.

    Args:
        predicted, measured: parts of the same arm.
        once: T in seconds, of the measured run.
    """
    away = math.log(predicted.speedup / measured.speedup)

    def share(name: str) -> float:
        """Return how much of the distance goes if a part is put right, both on a log scale."""
        mended = replace(predicted, **{name: getattr(measured, name)})
        return math.log(predicted.speedup / mended.speedup) * math.copysign(1, away)

    found, mended = [], predicted
    for name in sorted(_WORDS, key=share, reverse=True):
        if abs(mended.speedup / measured.speedup - 1) <= CLOSE:
            break
        if share(name) > 0:
            found.append(_WORDS[name](getattr(predicted, name), getattr(measured, name), once))
            mended = replace(mended, **{name: getattr(measured, name)})
    return found
