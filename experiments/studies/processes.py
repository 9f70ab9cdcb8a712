"""Run one model on several processes that share it (tensor parallelism), and compare them with one process.

Each number of processes decodes the same prompts on this machine: plainly, with drafts, and sampled with drafts. The
run fails unless sums over blocks give the bits and tokens of one process, and the bytes sent are those of the formula.
On few cores more processes gain nothing: they are for models that one machine cannot hold.
"""

import hashlib
import json
import os
import socket
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing import get_all_start_methods, get_context
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch
from torch import Tensor
from torch.multiprocessing.spawn import ProcessException, start_processes

import drafts
import oracles
from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.harness.arguments import PROMPTS
from experiments.harness.options import option, parse_options
from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.hf_config import parse_config
from oracles.checkpoints.loading import checkpoint_folder
from oracles.parallel.parallel_transformer import ParallelTransformer, Sums
from oracles.parallel.shares import NUM_BLOCKS, Share
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Scores
from specdec.prompts import load_prompts
from specdec.stats import Table
from specdec.stats.report import show

# Children of a process that has imported everything start in no time.
METHOD = "forkserver" if "forkserver" in get_all_start_methods() else "spawn"
_NUM_DRAFTED = 4
_ARMS = {
    "plain": (False, SamplingParams()),
    "prompt_lookup": (True, SamplingParams()),
    "prompt_lookup, T = 0.8": (True, SamplingParams(temperature=0.8)),
}
_LEGEND = {
    "sums": "blocks: gathered and added in the order of the blocks; reduced: by all_reduce",
    "ms a pass": "of all requests, prompts left out",
    "kB a token": "sent by each process for an emitted token, prompts left out",
    "formula": "the same, computed from the shapes of the model and of every pass",
    "MB": "weights of each process",
    "tokens, bits": "whether the outputs, and the logits of a prompt, are those of the arm's first row",
}
Row = dict[str, Any]


@dataclass(frozen=True)
class ProcessOptions:
    """What was asked for; every process is told."""

    oracle: str = option("code", "embedded name or checkpoint directory")
    counts: tuple[int, ...] = option((1, 2, 4), "numbers of processes")
    prompts: str = option(str(PROMPTS), "JSONL, parquet or text file (the shipped ones)")
    num_prompts: int = option(2, "number of prompts")
    max_new_tokens: int = option(32, "most new tokens per prompt")
    threads: int = option(1, "torch threads of each process")
    timeout: int = option(60, "seconds after which a process counts as gone")


class Traffic:
    """Counts what the passes of an oracle send.

    Attributes:
        steps, prompts: bytes sent by passes with logits and by others, and the same by the formula.
    """

    def __init__(self, oracle: ParallelTransformer) -> None:
        self.reset()
        score = oracle.score

        def counted(tokens: Tensor, *rest: Any, **more: Any) -> Scores:
            before = oracle.ranks.num_bytes_sent
            scores = score(tokens, *rest, **more)
            num_logits = 0 if scores.logits is None else scores.logits[..., 0].numel()
            part = self.steps if num_logits else self.prompts
            part[0] += oracle.ranks.num_bytes_sent - before
            part[1] += oracle.bytes_of_pass(tokens.numel(), num_logits)
            return scores

        oracle.score = counted  # type: ignore[method-assign]

    def reset(self) -> None:
        """Begin again."""
        self.steps, self.prompts = [0, 0], [0, 0]


def decode(oracle: ParallelTransformer, texts: Sequence[str], max_new_tokens: int) -> Iterator[Row]:
    """Return a row for every arm, with a hash of its tokens and of the logits of the first prompt."""
    assert oracle.tokenizer is not None
    traffic = Traffic(oracle)
    ids = torch.tensor([oracle.tokenizer.encode(texts[0]).ids])
    scores = oracle.score(
        ids, None, torch.tensor([ids.shape[1]]), oracle.new_cache(1, ids.shape[1]), np.zeros(1, dtype=np.int64)
    )
    assert scores.logits is not None
    bits = hashlib.sha256(scores.logits.numpy().tobytes()).hexdigest()
    for name, (drafted, sampling) in _ARMS.items():
        draft = drafts.PromptLookup(num_draft_tokens=_NUM_DRAFTED) if drafted else None
        traffic.reset()
        result = SpeculativeDecoder(oracle, draft).generate(texts, max_new_tokens=max_new_tokens, sampling=sampling)
        yield {
            "processes": oracle.ranks.count,
            "sums": oracle.sums,
            "arm": name,
            "seconds": result.stats.seconds_per_call("score"),
            "tokens": result.tokens,
            "steps": traffic.steps,
            "prompts": traffic.prompts,
            "weights": oracle.weight_bytes,
            "bits": bits,
            "claim": result.exactness,
        }


def run_share(rank: int, count: int, port: int, options: ProcessOptions, texts: Sequence[str], out: str) -> None:
    """Be one of several processes; the first one writes the rows, which are the same in all."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "MASTER_PORT": port}
    os.environ.update({name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"})
    torch.set_num_threads(options.threads)
    rows: list[Row] = []
    for sums in get_args(Sums):
        oracle = oracles.load_parallel(options.oracle, device="cpu", sums=sums, timeout=options.timeout)
        rows += decode(oracle, texts, options.max_new_tokens)
    if rank == 0:
        Path(out).write_text(json.dumps(rows), encoding="utf-8")


def free_port() -> int:
    """Return a free port of this machine."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def check_counts(options: ProcessOptions) -> None:
    """Refuse, before anything is measured, a number of processes that cannot share the model.

    Raises:
        ValueError: the number of processes divides no sum into equal parts, or see ``Share``.
    """
    place = checkpoint_folder(options.oracle) / "config.json"
    config = parse_config(read_json(place), str(place)).config
    for count in options.counts:
        Share(config, 0, count, None)
        if NUM_BLOCKS % count:
            raise ValueError(f"--counts {count}: each sum is of {NUM_BLOCKS} blocks; give numbers that divide it")


def measure(count: int, options: ProcessOptions, texts: Sequence[str]) -> list[Row]:
    """Return the rows of ``count`` processes, which decode these texts.

    Raises:
        ValueError: one of them failed; with its error.
    """
    if METHOD == "forkserver":
        get_context(METHOD).set_forkserver_preload([run_share.__module__])
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "rows.json"
        given = (count, free_port(), options, texts, str(out))
        try:
            # Daemons end with this process: else Ctrl-C would wait until they have decoded everything.
            start_processes(run_share, given, count, daemon=True, start_method=METHOD)  # type: ignore[no-untyped-call]
        except ProcessException as error:
            raise ValueError(f"{count} processes: {str(error).strip().splitlines()[-1]}") from error
        rows: list[Row] = json.loads(out.read_text(encoding="utf-8"))
        return rows


def faults_of(rows: Sequence[Row]) -> list[str]:
    """Return the faults: bits or tokens unlike those of the first processes' blocks, bytes unlike the formula's."""
    firsts = {row["arm"]: row for row in reversed(rows) if row["sums"] == "blocks"}
    found = []
    for row in rows:
        where, first = f"{row['processes']} processes, {row['sums']}, {row['arm']}", firsts[row["arm"]]
        for sent, formula in (row["steps"], row["prompts"]):
            if sent != formula:
                found.append(f"{where}: {sent} bytes were sent, the formula says {formula}")
        if row["sums"] == "blocks" and (row["bits"], row["tokens"]) != (first["bits"], first["tokens"]):
            found.append(f"{where}: not the output of {first['processes']}")
    return found


def table_of(rows: Sequence[Row]) -> Table:
    """Return the table."""
    shown = []
    for row in rows:
        first = next(one for one in rows if one["arm"] == row["arm"])
        sent, formula = (f"{size / sum(map(len, row['tokens'])) / 1e3:.1f}" for size in row["steps"])
        shown.append(
            {
                "processes": row["processes"],
                "sums": row["sums"],
                "arm": row["arm"],
                "ms a pass": f"{1e3 * row['seconds']:.1f}",
                "kB a token": sent,
                "formula": formula,
                "MB": f"{row['weights'] / 1e6:.1f}",
                **{name: "same" if row[name] == first[name] else "others" for name in ("tokens", "bits")},
                "claim": row["claim"],
            }
        )
    return Table("One model on several processes", shown, legend=_LEGEND)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every number of processes and print the table; 1 if something is not as it must be."""
    options = parse_options(ProcessOptions, __doc__, argv)
    with refusing("processes"):
        check_counts(options)
        texts = [str(prompt.text) for prompt in load_prompts(options.prompts, None, options.num_prompts)]
        rows = [row for count in options.counts for row in measure(count, options, texts)]
    faults = faults_of(rows)
    show([table_of(rows)])
    if faults:
        print("\n".join(["FAILED:", *faults]), file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    as_program(main)
