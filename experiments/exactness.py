"""Prove that no strategy changes the output: by law on tables, by tokens on every prompt, at batch 1 and 8.

Laws: the real engine's output law is enumerated and compared with the oracle's. Tokens: greedy and coupled outputs of
every strategy, rule and batch size are compared with those of plain decoding at batch 1.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import number_in, positive, refusing
from experiments.harness.arguments import add_choice, add_strategies, common_parser
from experiments.harness.arms import PLAIN, problems_of, without_problems
from experiments.harness.building import build_named
from experiments.harness.journal import Piece
from experiments.harness.rule_choice import add_filters, sampling_of
from experiments.harness.study import Plan, Study
from experiments.harness.tiny import tiny_strategies
from experiments.strategies import AS_SHIPPED
from specdec import RULES, DraftSource, Oracle, Result, SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless, compare_runs
from specdec.prompts import NamedPrompt
from specdec.stats import Table
from specdec.stats.report import show

LOSSLESS_RULES = tuple(name for name, rule in RULES.items() if rule.lossless and not rule.coupled)


@dataclass(frozen=True)
class Case:
    """One decoder to compare with plain decoding at batch 1."""

    mode: str
    arm: str
    rule: str
    batch: int


def _judges(rule: str, draft: DraftSource | None) -> bool:
    """Tell whether a rule has a meaning on what a source drafts."""
    return draft is None or RULES[rule].trees or not draft.offers.trees


def cases(arms: Mapping[str, DraftSource | None], batches: Sequence[int]) -> list[Case]:
    """Return every case: greedy under each rule that fits, and coupled; plain decoding at larger batches is one too."""
    rules = [("greedy", rule) for rule in LOSSLESS_RULES] + [("coupled", "coupled")]
    return [
        Case(mode, arm, rule, batch)
        for mode, rule in rules
        for arm in arms
        for batch in batches
        if _judges(rule, arms[arm]) and (arm != PLAIN or (batch > 1 and rule != "sample_and_match"))
    ]


def law_rows() -> list[dict[str, Any]]:
    """Return one row per source and rule that judges it: whether its law on a tiny oracle is the oracle's."""
    rows = []
    for name, target, draft in tiny_strategies():
        for rule in (rule for rule in LOSSLESS_RULES if _judges(rule, draft)):
            problem = ""
            try:
                decoder, sampling = SpeculativeDecoder(target, draft, rule), SamplingParams(temperature=1.0)
                check_lossless(decoder, [0, 2, 1, 0, 2], sampling=sampling, mates=[[1], [2, 2, 0]])
            except AssertionError as error:
                problem = str(error).splitlines()[0]
            rows.append({"mode": "law", "arm": name, "rule": rule, "problem": problem})
    return rows


class Runner:
    """Decodes the prompts as the cases ask, plain decoding once per mode; prompts that do not fit are left out."""

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle, self.sampling = arguments, oracle, sampling_of(arguments)
        found = problems_of(oracle, prompts, arguments["max_new_tokens"])
        self.problems = [f"prompts {[prompts[number].name]}: {problem}" for number, problem in found.items()]
        kept = without_problems(prompts, found)
        self.prompts = [*kept.values()]
        self.starts = [prompt.start for prompt in self.prompts]
        self.seeds = [(arguments["seed"], number) for number in kept]
        settings = {**arguments, "batch_size": 1, "rule": "coupled"}
        self.sources: dict[str, DraftSource | None] = {PLAIN: None, **build_named(settings, oracle)}
        self.plain: dict[str, Result] = {}

    def decode(self, case: Case) -> Result:
        """Return the outputs of a case."""
        decoder = SpeculativeDecoder(self.oracle, self.sources[case.arm], case.rule)
        sampling = self.sampling if case.mode == "coupled" else SamplingParams()
        tokens = self.arguments["max_new_tokens"]
        return decoder.generate(self.starts, tokens, sampling, self.seeds, batch_size=case.batch)

    def reference(self, mode: str) -> Result:
        """Return plain decoding at batch 1."""
        if mode not in self.plain:
            self.plain[mode] = self.decode(Case(mode, PLAIN, "coupled" if mode == "coupled" else "standard", 1))
        return self.plain[mode]

    def row(self, case: Case) -> dict[str, Any]:
        """Return a case's line of the table; ``problem`` is empty if it passed."""
        reference, made = self.reference(case.mode), self.decode(case)
        same = sum(a == b for a, b in zip(reference.tokens, made.tokens, strict=True))
        different, problem = len(self.starts) - same, ""
        if different and (made.exactness == "exact" or case.mode == "coupled"):
            problem = f"{different} outputs differ"
        if different and case.mode == "greedy":
            found = compare_runs(self.oracle, self.starts, reference, made)
            bugs = f"{found.num_bugs} bugs, {different - found.num_bugs} numerical ties"
            problem = f"{problem}; {bugs}" if problem or found.num_bugs else ""
        counts = {"identical": f"{same}/{len(self.starts)}", "claim": made.exactness}
        memory = {"weight_bytes": made.stats.weight_bytes, "cache_bytes": made.stats.cache_bytes}
        return {**vars(case), **counts, **memory, "problem": problem}


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Return the arguments."""
    parser = common_parser(__doc__, num_prompts=None, max_new_tokens=32)
    add = parser.add_argument
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8], help="rows in flight (%(default)s)")
    add("--temperature", type=number_in("[0, inf)"), default=0.8, help="temperature of the coupled cases (%(default)s)")
    add_filters(parser, " of the coupled cases", top_p=0.95)
    add_choice(parser, AS_SHIPPED, "all that run as shipped")
    add_strategies(parser)
    return parser.parse_args(argv)


def _row(case: Case, entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return a case's line of the table, from its journal entry; one that raised has its error as problem."""
    row = {**vars(case), **{name: entry.get(name) for name in ("identical", "claim", "weight_bytes", "cache_bytes")}}
    error = entry["error"]
    return {**row, "problem": entry["problem"] if error is None else error.strip().splitlines()[-1]}


def _prove(runner: Runner, study: Study) -> int:
    """Print and write the tables; 1 if anything failed."""
    laws, todo = law_rows(), cases(runner.sources, runner.arguments["batch_sizes"])
    show([Table("Laws of the sources that ship", laws)])
    units = [Piece(number, " ".join(map(str, vars(case).values()))) for number, case in enumerate(todo)]
    study.measure(units, lambda unit: runner.row(todo[unit.index]))
    rows = [_row(case, study.journal.entries[number]) for number, case in enumerate(todo)]
    study.write("summary.json", {"laws": laws, "tokens": rows, "problems": runner.problems})
    # Also if something failed: all is decoded anew next time, since what failed once need not fail twice.
    study.journal.close()
    print()
    show([Table("Tokens", rows)])
    failed = [row for row in (*laws, *rows) if row["problem"]]
    said = f"{len(failed)} of {len(laws) + len(todo)} cases, {len(runner.problems)} prompts"
    return study.tell([said, *runner.problems] if failed or runner.problems else [])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the suite and print its tables; 1 if anything failed."""
    arguments = vars(parse(argv))
    with ExitStack() as stack:
        with refusing("exactness"):
            study = Study.open(Plan("exactness", arguments), stack)
            runner = Runner(arguments, study.oracle, study.prompts)
        # It names the prompts that do not fit.
        return _prove(runner, replace(study, prompts=runner.prompts))


if __name__ == "__main__":
    as_program(main)
