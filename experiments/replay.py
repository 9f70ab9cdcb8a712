"""Tokens per step by draft length, replayed from one dense record of each source, beside runs with each length.

A prompt lookup and a small transformer are recorded once, at every position of what the oracle writes after the shipped
prompts. Every length policy is then replayed from the record, without a model, and run for comparison. With a
temperature, runs and records are coupled. With --rule standard they are not: replays then tell what runs did on their
way to the recorded outputs (in expectation, and of fixed lengths alone, if drafts are drawn), and the runs beside them
wrote others.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import drafts
import oracles
from experiments.arguments import PROMPTS, command, positive, refusing
from experiments.arms import those_that_fit
from specdec import DraftSource, Entropy, Fixed, Heuristic, Oracle, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import check_vocabulary
from specdec.draft_length import LengthPolicy, Tracked
from specdec.engine import Result
from specdec.prompts import load_prompts
from specdec.report import table
from specdec.traces import DenseRecords, Replay, record_chains, replay

Make = Callable[[LengthPolicy], DraftSource]
_COLUMNS = ("num_drafted", "num_accepted", "num_emitted")


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = argparse.ArgumentParser(
        prog=command(), description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    add = parser.add_argument
    add("--oracle", default="code", help="embedded checkpoint or Hugging Face checkpoint directory (%(default)s)")
    add("--model", default="code-draft", help="the small transformer (%(default)s)")
    add("--num-prompts", type=positive, default=8, help="spread over their kinds (%(default)s)")
    add("--max-new-tokens", type=positive, default=64, help="per prompt (%(default)s)")
    add("--longest", type=positive, default=12, help="tokens of the recorded drafts (%(default)s)")
    add("--temperature", type=float, default=0.0, help="of the requests (%(default)s)")
    add("--rule", choices=("coupled", "standard"), default="coupled", help="of sampled requests (%(default)s)")
    return parser.parse_args(argv)


def policies(longest: int, entropies: bool) -> dict[str, LengthPolicy]:
    """Return the length policies by name; ``entropies``: those that read them too."""
    fixed: dict[str, LengthPolicy] = {f"fixed {k}": Fixed(k) for k in (1, 2, 4, 8, 12) if k <= longest}
    chosen = fixed | {
        "heuristic": Heuristic(min(5, longest), max_draft_tokens=longest),
        "threshold 0.4": Threshold(threshold=0.4, max_draft_tokens=longest),
        "tracked": Threshold(threshold=Tracked(), per_token=True, max_draft_tokens=longest),
    }
    return chosen | ({"entropy": Entropy(max_draft_tokens=longest)} if entropies else {})


def same_steps(replayed: Replay, result: Result) -> bool:
    """Tell whether every step of a replay is the run's; accepted tokens beyond the end of an output are left out."""
    kept = result.records.columns()
    columns = {name: np.asarray(kept[name]) for name in (*_COLUMNS, "request", "num_committed")}
    order = np.lexsort((columns["num_committed"], columns["request"]))
    whole = columns["num_emitted"][order] == columns["num_accepted"][order] + 1
    return replayed.num_steps == len(order) and all(
        np.array_equal(replayed.columns[name], columns[name][order])
        if name != "num_accepted"
        else np.array_equal(replayed.columns[name][whole], columns[name][order][whole])
        for name in _COLUMNS
    )


def rows_of(
    name: str, oracle: Oracle, make: Make, dense: DenseRecords, prompts: Sequence[str], asked: dict[str, Any]
) -> list[dict[str, Any]]:
    """Return a row for each policy: replayed and run."""
    rows = []
    for chosen, policy in policies(len(dense.paths), dense.entropy is not None).items():
        if dense.p is not None and not isinstance(policy, Fixed):
            continue
        began = time.perf_counter()
        replayed = replay(dense, length=policy)
        taken = time.perf_counter() - began
        result = SpeculativeDecoder(oracle, make(policy), asked["rule"]).generate(
            prompts, asked["max_new_tokens"], asked["sampling"]
        )
        rows.append(
            {
                "source": name,
                "length": chosen,
                "tau replayed": round(replayed.block_efficiency or 0.0, 4),
                "tau run": round(result.stats.block_efficiency or 0.0, 4),
                "drafted/step": result.stats.num_drafted / result.stats.num_steps,
                "same steps": ("yes" if same_steps(replayed, result) else "no") if dense.repeats else None,
                "replay s": taken,
                "run s": result.stats.total_seconds,
            }
        )
    return rows


def main(argv: Sequence[str] | None = None) -> int:
    """Record, replay, run, and print the table; return 1 if a replay took other steps than the run."""
    args = parse(argv)
    with refusing("replay"):
        oracle, model = oracles.load(args.oracle), oracles.load(args.model)
        check_vocabulary("--model", model.vocab_size, model.tokenizer, oracle)
        shipped = load_prompts(str(PROMPTS), None, args.num_prompts)
        prompts = [prompt.text for prompt in those_that_fit(oracle, shipped, args.max_new_tokens)]
    asked = {
        "max_new_tokens": args.max_new_tokens,
        "sampling": SamplingParams(temperature=args.temperature),
        "rule": "standard" if args.temperature == 0 else args.rule,
    }
    sources: dict[str, tuple[Make, bool]] = {
        "prompt_lookup": (lambda length: drafts.PromptLookup(length=length), False),
        "small_transformer": (lambda length: drafts.SmallTransformer(model, length=length), True),
    }
    rows: list[dict[str, Any]] = []
    for name, (make, entropies) in sources.items():
        dense = record_chains(oracle, make, prompts, args.longest, entropies=entropies, **asked)
        rows += rows_of(name, oracle, make, dense, prompts, asked)
    print(table(rows, markdown=True))
    return int(any(row["same steps"] == "no" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
