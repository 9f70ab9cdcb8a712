"""What a step costs outside the oracle, by batch size: drafting, warping, verdict, draws and bookkeeping.

The embedded oracle decodes the shipped prompts with prompt lookup; its own passes are measured and left out. Rounds of
the batch sizes are interleaved in one process; a figure is the median over rounds of the milliseconds a step.
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tqdm import tqdm

import oracles
from drafts import PromptLookup
from experiments.arguments import PROMPTS
from specdec import SamplingParams, SpeculativeDecoder
from specdec.prompts import load_prompts

BATCHES = (1, 8, 64)
SAMPLINGS = {"greedy": SamplingParams(), "sampled, top-p 0.95": SamplingParams(temperature=0.8, top_p=0.95)}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--rounds", type=int, default=9, help="interleaved rounds (default %(default)s)")
    parser.add_argument("--max-new-tokens", type=int, default=32, help="per request (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="torch threads (default %(default)s)")
    return parser.parse_args(argv)


def step_milliseconds(
    decoder: SpeculativeDecoder, prompts: Sequence[str], sampling: SamplingParams, length: int
) -> float:
    """Return the milliseconds a step spends outside the oracle, prefill left out."""
    sampling = replace(sampling, ignore_eos=True)
    stats = decoder.generate(prompts, max_new_tokens=length, sampling=sampling).stats
    outside = sum(stats.seconds[phase] for phase in ("propose", "verify", "commit"))
    return 1e3 * outside / stats.target_calls


def main(argv: Sequence[str] | None = None) -> None:
    """Measure and print the table."""
    args = parse(argv)
    torch.set_num_threads(args.threads)
    decoder = SpeculativeDecoder(oracles.load("code"), PromptLookup(num_draft_tokens=8))
    prompts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, max(BATCHES))]
    samples: dict[tuple[str, int], list[float]] = {}
    for _ in tqdm(range(args.rounds), desc="rounds"):
        for name, sampling in SAMPLINGS.items():
            for batch in BATCHES:
                ms = step_milliseconds(decoder, prompts[:batch], sampling, args.max_new_tokens)
                samples.setdefault((name, batch), []).append(ms)
    print("| sampling | batch | ms a step outside the oracle (median; quartiles) | of batch 8 |")
    print("| --- | ---: | ---: | ---: |")
    for (name, batch), values in samples.items():
        low, middle, high = np.percentile(values, [25, 50, 75])
        ratio = middle / np.median(samples[name, 8])
        print(f"| {name} | {batch} | {middle:.3f} ({low:.3f} to {high:.3f}) | {ratio:.2f} |")


if __name__ == "__main__":
    main()
