"""What a run costs outside the oracle, by batch size: a step, and what a request adds at its start and end.

The embedded oracle decodes the shipped prompts with prompt lookup. A step's cost is its wall time without the calls of
``Oracle.score``: drafting, warping, verdict, draws and bookkeeping. The start covers tokenizing prompts, allocating the
cache, and the first step, which seats the requests; the end covers working out records and statistics. Rounds of the
batch sizes are interleaved in one process. Each begins with an untimed run, since a dozen steps are slower after a run
of another batch size. A figure is the median over rounds.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import torch
from tqdm import tqdm

import oracles
from drafts import PromptLookup
from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from experiments.harness.arguments import PROMPTS
from specdec import Oracle, SamplingParams, Scores, SpeculativeDecoder
from specdec.prompts import load_prompts
from specdec.stats import Table
from specdec.stats.report import show

BATCHES = (1, 8, 64)
SAMPLINGS = {"greedy": SamplingParams(), "sampled, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95)}
NUM_DRAFTED = 8
ENOUGH = NUM_DRAFTED + 2  # a step emits one token more than it drafts


class TimedOracle:
    """An oracle whose calls of ``score`` are timed; ``seconds`` sums them up."""

    def __init__(self, oracle: Oracle) -> None:
        self._oracle, self.seconds = oracle, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._oracle, name)

    def score(self, *args: Any, **named: Any) -> Scores:
        """Return the oracle's scores."""
        began = time.perf_counter()
        scores = self._oracle.score(*args, **named)
        self.seconds += time.perf_counter() - began
        return scores


@dataclass(frozen=True)
class Cost:
    """What a round measured.

    Attributes:
        step: seconds of a step outside the oracle, the first one apart.
        request: seconds of start, first step and end outside the oracle, for each request.
    """

    step: float
    request: float


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = Parser(__doc__)
    parser.add_argument("--rounds", type=positive, default=9, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=positive, default=64, help="per request (default %(default)s)")
    parser.add_argument("--threads", type=positive, default=2, help="torch threads (default %(default)s)")
    args = parser.parse_args(argv)
    if args.max_new_tokens < ENOUGH:
        parser.error(f"--max-new-tokens must be {ENOUGH} or more, so that there are steps after the first one")
    return args


def cost(oracle: TimedOracle, prompts: Sequence[str], sampling: SamplingParams, length: int) -> Cost:
    """Return what a run costs outside the oracle."""
    decoder = SpeculativeDecoder(cast(Oracle, oracle), PromptLookup(num_draft_tokens=NUM_DRAFTED))
    began = time.perf_counter()
    state = decoder.start(prompts, length, replace(sampling, ignore_eos=True))
    oracle.seconds = 0.0
    state, _ = decoder.step(state)
    seated, scored = time.perf_counter(), oracle.seconds
    oracle.seconds = 0.0
    while state.has_work:
        state, _ = decoder.step(state)
    stepped = time.perf_counter()
    num_steps = decoder.finish(state).stats.target_calls
    steps, ends = stepped - seated - oracle.seconds, seated - began - scored + time.perf_counter() - stepped
    return Cost(steps / (num_steps - 1), ends / len(prompts))


def row(sampling: str, batch: int, costs: Sequence[Cost], at_eight: float) -> dict[str, object]:
    """Return a row of the table; ``at_eight``: the seconds of a step at batch 8."""
    low, middle, high = np.percentile([1e3 * cost.step for cost in costs], [25, 50, 75])
    return {
        "sampling": sampling,
        "batch": batch,
        "ms a step outside the oracle (median; quartiles)": f"{middle:.3f} ({low:.3f} to {high:.3f})",
        "of batch 8": f"{middle / 1e3 / at_eight:.2f}",
        "ms a request, start and end": f"{1e3 * np.median([cost.request for cost in costs]):.3f}",
    }


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    oracle = TimedOracle(oracles.load("code"))
    prompts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, max(BATCHES))]
    measured: dict[tuple[str, int], list[Cost]] = {}
    for _ in tqdm(range(args.rounds), desc="rounds"):
        for name, sampling in SAMPLINGS.items():
            for batch in BATCHES:
                for _warm_up in range(2):
                    found = cost(oracle, prompts[:batch], sampling, args.max_new_tokens)
                measured.setdefault((name, batch), []).append(found)
    at_eight = {name: float(np.median([cost.step for cost in measured[name, 8]])) for name in SAMPLINGS}
    rows = [row(name, batch, costs, at_eight[name]) for (name, batch), costs in measured.items()]
    show([Table("Steps outside the oracle", rows)])


if __name__ == "__main__":
    as_program(main)
