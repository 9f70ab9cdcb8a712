"""Drafts by views of fewer bits: what they change (nothing), how often they are right, what they cost."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial

import numpy as np

from drafts import Quantized
from experiments.bench.oracle.rounds import TimedArm, measure
from experiments.findings.model_shapes import shape_of
from experiments.findings.reasons import reason
from experiments.inference_stack.stack_arms import GREEDY
from experiments.inference_stack.stack_results import Found
from experiments.inference_stack.subjects import Subject
from experiments.precision.precision_arms import ORACLE, Made
from specdec import SpeculativeDecoder
from specdec.contracts import IntArray
from specdec.stats import Stats, pool

PLAIN = "plain"


@dataclass
class DraftArm:
    """A decoder under the clock.

    Args:
        decoder: the float32 oracle's.
        bytes_read: of weights, by a pass of what drafts; None without drafts.
    """

    decoder: SpeculativeDecoder
    bytes_read: float | None = None
    stats: list[Stats] = field(default_factory=list)

    def run(self, subject: Subject, batch: int) -> tuple[float, IntArray]:
        """Decode the prompts of the gate once; return the seconds of it, and the ids ``[G, num_new]``."""
        result = self.decoder.generate(subject.gate.tolist(), subject.num_new, GREEDY, batch_size=batch)
        self.stats.append(result.stats)
        return result.stats.total_seconds, np.array(result.tokens)


def draft_arms(subject: Subject, made: Made, views: Sequence[str], lengths: Sequence[int]) -> dict[str, DraftArm]:
    """Return plain decoding, and drafts of every length by every view."""
    oracle = made.oracle(ORACLE, subject.name)
    arms = {PLAIN: DraftArm(SpeculativeDecoder(oracle))}
    for view in views:
        model = made.oracle(view, subject.name)
        for length in lengths:
            decoder = SpeculativeDecoder(oracle, Quantized(oracle, model, length))
            arms[f"{view}, {length} ahead"] = DraftArm(decoder, shape_of(model).weight_bytes)
    return arms


def measure_drafts(arms: Mapping[str, DraftArm], subject: Subject, batch: int, rounds: int) -> dict[str, Found]:
    """Return what every arm did in interleaved rounds: seconds, why, and what a pass of its drafts reads.

    Raises:
        AssertionError: drafts changed a token.
    """
    for arm in arms.values():
        arm.stats.clear()
    timed = [
        TimedArm(name, partial(arm.run, subject, batch), None if name == PLAIN else PLAIN) for name, arm in arms.items()
    ]
    timings = measure(timed, rounds, f"drafts, {subject.name}, batch {batch}")
    plain = pool(arms[PLAIN].stats[-rounds:])
    return {
        name: {
            "seconds": timings.seconds[name],
            "speedup": asdict(timings.ratio(PLAIN, name)),
            "bytes_read": arm.bytes_read,
            "why": None if name == PLAIN else reason(plain, pool(arm.stats[-rounds:])),
        }
        for name, arm in arms.items()
    }
