"""Measure what drafts gain at the positions where a JSON schema leaves no choice, or little.

``python -m experiments.studies.json_answers`` asks the published chat model for JSON under four schemas, with short and
long keys and enumerations, each with and without free spaces. Every answer is decoded by plain masked decoding, and
with drafts of forced ids, of nearly forced ids, and of forced ids with a lookup for the rest.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import drafts
from exactspec.ending import as_program
from exactspec.parser import Parser, positive
from experiments.harness import running
from experiments.harness.arguments import add_placement
from experiments.harness.arms import PLAIN, EngineArm, units_of
from experiments.harness.draw_checks import texts_in
from experiments.harness.models import load_oracle
from experiments.harness.run_outcome import Outcome
from experiments.harness.thread_check import take_threads
from specdec import SamplingParams
from specdec.contracts import DraftSource, IntArray, Oracle
from specdec.grammars import make_grammars
from specdec.prompts import NamedPrompt
from specdec.stats import Table
from specdec.stats.report import provenance, show
from specdec.system import hold, write_whole

THINGS = ("a red fox", "the city of Lisbon", "a wooden chair", "the planet Mars", "a violin", "an apple tree")
SHORT = {"n": ["a", "b", "c"], "c": ["red", "blue", "tan"], "s": ["big", "tiny"], "k": ["x", "y", "z"]}
LONG = {
    "general_category_of_the_thing": ["living_creature", "place_on_a_map", "manufactured_object"],
    "predominant_colour_of_its_surface": ["reddish_or_orange", "bluish_or_greenish", "neither_of_these"],
    "approximate_size_compared_with_a_person": ["considerably_larger", "roughly_as_large", "considerably_smaller"],
    "frequency_of_encountering_one": ["practically_every_day", "a_few_times_a_year", "practically_never"],
}
RULE = "sample_and_match"
Asked = dict[str, Any]


def schema_of(keys: Mapping[str, Sequence[str]], is_flexible: bool) -> Asked:
    """Return a schema of an object with these keys, whose values are enumerations, and a name and a number."""
    properties: Asked = {key: {"enum": list(values)} for key, values in keys.items()}
    properties |= {"name": {"type": "string", "maxLength": 24}, "number": {"type": "integer", "maximum": 999}}
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
        "x-guidance": {"whitespace_flexible": is_flexible},
    }


def schemas() -> dict[str, Asked]:
    """Return the schemas by name."""
    sizes, spaces = {"short": SHORT, "long": LONG}, {"compact": False, "flexible": True}
    return {f"{size}, {space}": schema_of(sizes[size], spaces[space]) for size, space in product(sizes, spaces)}


def arms(near: int) -> dict[str, DraftSource | None]:
    """Return the ways of drafting; ``near``: ids that a nearly forced position allows at most."""
    return {
        PLAIN: None,
        "forced": drafts.Forced(),
        f"up to {near} ids": drafts.Forced(max_ids=near),
        "forced, else a lookup": drafts.Cascade([drafts.Forced(), drafts.PromptLookup(3)]),
    }


def counts_of_choices(oracle: Oracle, sampling: SamplingParams, outputs: Sequence[Sequence[int]]) -> IntArray:
    """Return ``[S]`` how many ids the grammar allows at each position of some outputs, one after the other."""
    counts = []
    for output in outputs:
        (grammar,) = make_grammars(oracle, [sampling.constraint], [0])
        assert grammar is not None
        ids = np.array(output, dtype=np.int64)
        masks = [grammar.allowed_ids(ids[:at]) for at in range(len(ids))]
        counts += [0 if mask is None else int(mask.sum()) for mask in masks]
    return np.array(counts)


def measure(oracle: Oracle, schema: Asked, options: Any) -> tuple[Outcome, IntArray]:
    """Return what each arm did under a schema, and the counts of allowed ids along plain decoding's answers.

    Args:
        oracle: shared by all arms.
        schema: of JSON, that the answers obey.
        options: of the command line.

    Returns:
        The outcome, and ``[S]`` of ``counts_of_choices``.
    """
    sampling = SamplingParams(json_schema=schema)
    ways = [EngineArm(name, oracle, source, sampling, RULE) for name, source in arms(options.near).items()]
    asked = [f"Describe {thing} as JSON." for thing in THINGS[: options.num_prompts]]
    prompts = [NamedPrompt(text, "answer", text, ({"role": "user", "content": text},)) for text in asked]
    units = units_of(prompts, 1)
    running.warm_up(ways, units[0])
    entries = [running.measure(unit, ways, options.max_new_tokens, options.repeats) for unit in units]
    outcome = Outcome([way.name for way in ways], entries)
    outputs = [texts_in(columns, 1)[0] for columns in outcome.records(PLAIN)]
    return outcome, counts_of_choices(oracle, sampling, outputs)


def rows_of(name: str, outcome: Outcome, counts: IntArray, near: int) -> list[Asked]:
    """Return the rows of a table for one schema.

    Args:
        name: of the schema.
        outcome: of the arms under it.
        counts: ``[S]`` of ``counts_of_choices``.
        near: the most ids that a nearly forced position allows.
    """
    forced, few = (counts == 1).mean(), ((counts > 1) & (counts <= near)).mean()
    return [
        {
            "schema": name,
            "arm": arm,
            "forced": f"{forced:.0%}",
            "nearly": f"{few:.0%}",
            "tau": f"{outcome.block_efficiency(arm).value:.2f}",
            "speed-up": str(outcome.decoding_speedup(arm)),
            "differ": outcome.check_results(arm).count(False),
        }
        for arm in outcome.arms
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Print a table of the schemas and arms, and write it if a folder is named; return 1 if an exact text differs.

    Raises:
        SystemExit: the arguments cannot be run; with the reason.
    """
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--oracle", default="smollm2", help="embedded or published name, folder or GGUF file (smollm2)")
    add(
        "--num-prompts", type=int, default=len(THINGS), choices=range(1, len(THINGS) + 1), help="answers per schema (6)"
    )
    add("--max-new-tokens", type=positive, default=200, help="most new tokens of an answer (200)")
    add("--near", type=positive, default=4, help="most ids that a nearly forced position allows (4)")
    add("--repeats", type=positive, default=3, help="times that every arm decodes every answer (3)")
    add("--out", type=Path, help="folder for json_answers.json")
    add_placement(parser)
    options = parser.parse_args(argv)
    take_threads(options.threads)
    with ExitStack() as stack:
        try:
            if options.out is not None:
                stack.enter_context(hold(options.out, "--out"))
            oracle = load_oracle(vars(options))
            measured = {name: measure(oracle, one, options) for name, one in tqdm(schemas().items(), disable=None)}
        except (ImportError, ValueError) as error:
            raise SystemExit(f"json_answers: {error}") from error
        rows = [row for name, (found, counts) in measured.items() for row in rows_of(name, found, counts, options.near)]
        legend = {
            "forced, nearly": f"share of positions whose mask has one id, or up to {options.near}",
            "tau": "tokens a pass of the oracle",
            "speed-up": "plain decoding's time over the arm's, prefill left out",
            "differ": "answers that are not plain decoding's",
        }
        note = f"Greedy, batch 1, {options.num_prompts} answers a schema, {oracle.backend}; {len(rows)} rows."
        show([Table("Forced positions of JSON answers", rows, note, legend=legend)])
        if options.out is not None:
            about = provenance(vars(options), oracle.device, oracle.backend)
            text = json.dumps({"provenance": about, "rows": rows}, indent=1)
            write_whole(options.out / "json_answers.json", text + "\n")
    if problems := [f"{name}: {one}" for name, (found, _) in measured.items() for one in found.problems()]:
        print("\n".join(["FAILED:", *problems]), file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    as_program(main)
