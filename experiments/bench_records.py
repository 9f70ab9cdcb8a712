"""What records cost: those of every step, which every run makes, and those of every node, which are asked for.

The embedded oracle decodes the shipped prompts with prompt lookup and with a small transformer. Step records: the time
in which the engine makes a step's record, and that of the columns at the end of the run, spread over its steps, as
shares of a step. Node records: the wall time of recorded runs over that of the same runs without, interleaved in one
process, and what lies on the disk. Figures are medians over rounds.
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
from experiments.arguments import PROMPTS, positive
from specdec import DraftSource, Oracle, SamplingParams, SpeculativeDecoder, StepInfo
from specdec.prompts import load_prompts
from specdec.report import table
from specdec.traces import record_nodes

SAMPLINGS = {
    "greedy": SamplingParams(ignore_eos=True),
    "sampled": SamplingParams(temperature=0.8, top_p=0.95, ignore_eos=True),
}


class _Timed(SpeculativeDecoder):
    """A decoder that sums up the seconds in which it makes records."""

    seconds = 0.0

    def _record(self, *arguments: Any) -> StepInfo:
        began = time.perf_counter()
        info = super()._record(*arguments)
        self.seconds += time.perf_counter() - began
        return info


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--rounds", type=positive, default=7, help="interleaved rounds (%(default)s)")
    add("--num-prompts", type=positive, default=8, help="%(default)s")
    add("--max-new-tokens", type=positive, default=64, help="per request (%(default)s)")
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8], help="rows in flight (%(default)s)")
    add("--threads", type=positive, default=2, help="torch threads (%(default)s)")
    return parser.parse_args(argv)


def measured(
    oracle: Oracle, source: DraftSource, prompts: Sequence[str], sampling: SamplingParams, length: int, batch: int
) -> dict[str, float]:
    """Return the figures of one round."""
    timed = _Timed(oracle, source)
    result = timed.generate(prompts, length, sampling, batch_size=batch)
    calls, total = result.stats.target_calls, result.stats.total_seconds
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
        "ms/step": 1e3 * bare / calls,
        "step record, % of a step": 100 * timed.seconds / total,
        "as columns, % of a step": 100 * spelt_out / total,
        "node records, ms/step": 1e3 * (recorded - bare) / calls,
        "run with / without": recorded / bare,
        "bytes/token": sum(sizes) / result.stats.num_emitted,
    }


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
                    found = measured(oracle, one, prompts, sampling, args.max_new_tokens, batch)
                    samples.setdefault((source, way, batch), []).append(found)
    rows = []
    for (source, way, batch), kept in samples.items():
        medians = {name: float(np.median([one[name] for one in kept])) for name in kept[0]}
        rows.append({"source": source, "sampling": way, "batch": batch, **medians})
    print(table(rows, markdown=True))


if __name__ == "__main__":
    main()
