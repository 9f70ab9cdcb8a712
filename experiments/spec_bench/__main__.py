"""Spec-Bench's tables: the speed-up of every strategy by task, decoding alone and end to end, with intervals.

``python -m experiments.spec_bench --file question.jsonl`` asks the questions of Spec-Bench (Xia et al. 2024, arXiv
2401.07851), or those of any file of prompts. Every turn of a conversation is decoded, each after plain decoding's
answer to the one before. Each arm's answers are written to a file that Spec-Bench's speed.py and equal.py read.
"""

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.harness.arguments import paired_parser, prompts_of
from experiments.harness.conversations import AUTO
from experiments.harness.models import HF, needing_a_model
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import comparing, comparing_plan, run
from experiments.harness.turns import add_seeds, seeds_of
from experiments.spec_bench.spec_bench_tables import tables_of, write_answers
from oracles.checkpoints.loading import load_tokenizer
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats.report import Shown


def choose(arguments: Mapping[str, Any]) -> list[NamedPrompt]:
    """Return the questions that the arguments ask for.

    Raises:
        ValueError: two options say how many; or as of ``load_prompts``.
    """
    count, most = arguments["per_category"], arguments["num_prompts"]
    if count is not None and most is not None:
        raise ValueError("--per-category and --num-prompts both say how many questions are asked; give one of them")
    prompts = load_prompts(prompts_of(arguments), arguments["column"], most)
    return prompts if count is None else first_of_each(prompts, count)


def first_of_each(prompts: Sequence[NamedPrompt], count: int) -> list[NamedPrompt]:
    """Return the first ``count`` prompts of each kind, in their order."""
    taken: dict[str, int] = {}
    found = []
    for prompt in prompts:
        taken[prompt.kind] = taken.get(prompt.kind, 0) + 1
        if taken[prompt.kind] <= count:
            found.append(prompt)
    return found


def report_answers(arguments: Mapping[str, Any], outcome: Outcome, folder: Path) -> list[Shown]:
    """Write the answer files of a run into its folder, and say where they lie, or why there are none."""
    if arguments["batch_size"] > 1:
        return ["No answer files: Spec-Bench asks one question at a time, and a batch has one wall time."]
    oracle = arguments["oracle"].removeprefix(HF)
    try:
        tokenizer = load_tokenizer(oracle)
    except ValueError as error:
        return [f"No answer files: {error}"]
    chat = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["provenance"]["chat"]
    written = write_answers(outcome, folder, tokenizer, chat["stop_strings"], Path(oracle).name)
    return [f"Answers, a file an arm, for Spec-Bench's speed.py and equal.py: {written}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables after those of all experiments, and write the answers."""
    own = paired_parser(__doc__, num_prompts=None, max_new_tokens=512, usual_prompts="must be given")
    parser = comparing(own)
    add = parser.add_argument
    add("--file", dest="prompts", help="question.jsonl; the same as --prompts")
    add("--per-category", type=positive, metavar="N", help="the first N questions of each category of the file (all)")
    add_seeds(parser)
    parser.set_defaults(prompts=None, turns=AUTO)
    arguments = needing_a_model(vars(parser.parse_args(argv)), "spec_bench")
    if arguments["prompts"] is None:
        parser.error("--file: give Spec-Bench's question.jsonl, or another file of prompts")
    with refusing("spec_bench"):
        arguments["seed"] = seeds_of(arguments)[0]
    tables = partial(tables_of, per_category=arguments["per_category"])
    report = partial(report_answers, arguments)
    return run(comparing_plan("spec_bench", arguments), tables=tables, report=report, choose=choose)


if __name__ == "__main__":
    as_program(main)
