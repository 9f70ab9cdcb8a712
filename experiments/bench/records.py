"""What records cost: those of every step, which every run makes, and those of every node, which are asked for.

The embedded oracle decodes the shipped prompts with prompt lookup and with a small transformer. Step records: the
median time in which the engine makes a step's record beside that of a whole step; a step's share of the end of a run,
when records are worked out and summed up as statistics; and that of the columns, which are made when they are asked
for. Node records: the wall time of recorded runs beside that of the same runs without, interleaved in one process, and
what lies on the disk. Of all figures the least of the rounds is shown.
"""

import argparse
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

import drafts
import oracles
from exactspec.parser import Parser, positive
from experiments.harness.arguments import PROMPTS
from specdec import DraftSource, Oracle, Result, SamplingParams, SpeculativeDecoder, State, StepInfo
from specdec.prompts import load_prompts
from specdec.stats import Table
from specdec.stats.report import show
from specdec.traces import record_nodes

SAMPLINGS = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True),
}


class _Timed(SpeculativeDecoder):
    """A decoder that keeps the seconds of its steps, of the records that they make, and of a run's end."""

    def __init__(self, oracle: Oracle, draft: DraftSource) -> None:
        super().__init__(oracle, draft)
        self.steps: list[float] = []
        self.records: list[float] = []
        self.end = 0.0

    def step(self, state: State) -> tuple[State, StepInfo]:
        began = time.perf_counter()
        made = super().step(state)
        self.steps.append(time.perf_counter() - began)
        return made

    def finish(self, state: State) -> Result:
        began = time.perf_counter()
        made = super().finish(state)
        self.end = time.perf_counter() - began
        return made

    def _record(self, *arguments: Any) -> StepInfo:
        began = time.perf_counter()
        info = super()._record(*arguments)
        self.records.append(time.perf_counter() - began)
        return info


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--rounds", type=positive, default=7, help="interleaved rounds (%(default)s)")
    add("--num-prompts", type=positive, default=8, help="%(default)s")
    add("--max-new-tokens", type=positive, default=64, help="per request (%(default)s)")
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8], help="rows in flight (%(default)s)")
    add("--threads", type=positive, default=2, help="torch threads (%(default)s)")
    return parser.parse_args(argv)


def measure(
    oracle: Oracle, source: DraftSource, prompts: Sequence[str], sampling: SamplingParams, length: int, batch: int
) -> dict[str, float]:
    """Return the figures of one round."""
    timed = _Timed(oracle, source)
    result = timed.generate(prompts, length, sampling, batch_size=batch)
    calls, step = result.stats.target_calls, float(np.median(timed.steps))
    began = time.perf_counter()
    result.records.columns()
    spelt_out = time.perf_counter() - began
    decoder = SpeculativeDecoder(oracle, source)
    began = time.perf_counter()
    decoder.generate(prompts, length, sampling, batch_size=batch)
    bare = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as folder:
        began = time.perf_counter()
        record_nodes(decoder, folder, prompts, length, sampling, batch_size=batch)
        recorded = time.perf_counter() - began
        sizes = [path.stat().st_size for path in Path(folder).glob("nodes-*.parquet")]
    return {
        "ms/step": 1e3 * step,
        "step record, us": 1e6 * float(np.median(timed.records)),
        "at the end, us/step": 1e6 * timed.end / calls,
        "as columns, us/step": 1e6 * spelt_out / calls,
        "bare": bare,
        "recorded": recorded,
        "steps": calls,
        "bytes/token": sum(sizes) / result.stats.num_emitted,
    }


def sum_up(kept: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the least of the figures of several rounds."""
    found = {name: min(one[name] for one in kept) for name in kept[0]}
    step, record, bare, recorded, steps, size = (
        found.pop(name) for name in ("ms/step", "step record, us", "bare", "recorded", "steps", "bytes/token")
    )
    own = {"ms/step": step, "step record, us": record, "% of a step": 0.1 * record / step}
    nodes = {"node records, us/step": 1e6 * (recorded - bare) / steps, "with / without": recorded / bare}
    return own | found | nodes | {"bytes/token": size}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    oracle = oracles.load("code")
    model = oracles.load("code-draft")
    sources: dict[str, DraftSource] = {
        "prompt_lookup": drafts.PromptLookup(8),
        "small_transformer": drafts.SmallTransformer(model, 4),
    }
    prompts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, args.num_prompts)]
    samples: dict[tuple[str, str, int], list[dict[str, float]]] = {}
    for _ in tqdm(range(args.rounds), desc="rounds"):
        for source, one in sources.items():
            for way, sampling in SAMPLINGS.items():
                for batch in args.batch_sizes:
                    found = measure(oracle, one, prompts, sampling, args.max_new_tokens, batch)
                    samples.setdefault((source, way, batch), []).append(found)
    rows = []
    for (source, way, batch), kept in samples.items():
        rows.append({"source": source, "sampling": way, "batch": batch, **sum_up(kept)})
    show([Table("What records cost", rows)])


if __name__ == "__main__":
    main()
