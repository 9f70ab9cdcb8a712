"""Say which strategy pays on this machine with this oracle, how long its drafts should be, and why others do not pay.

For every batch size and temperature, plain decoding and every strategy decode half of the prompts, with drafts of one
token and with long drafts. These runs and the cost of a pass's width predict the speed-up of every length in between,
the best length or tree, and what stops the others from paying. Each strategy's best is then measured on the other
prompts. If a prediction is off by more than a tenth, the part of a step that it misses is named.
"""

from argparse import ArgumentTypeError
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import number_in, positive, refusing
from experiments.advise.advice_parts import CLOSE
from experiments.advise.cells import CHAINS, TREES, Adviser, Cell, unadvised
from experiments.harness.arguments import add_strategies, common_parser
from experiments.harness.own_places import FORMS
from experiments.harness.rule_choice import add_filters, add_rule
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END, SPEEDS
from experiments.harness.study import Plan, Study
from experiments.strategies import STRATEGIES, strategy_name
from experiments.strategies.strategy import LENGTH
from specdec.stats import Table
from specdec.stats.report import WIDEST_PRINTED, Shown, show

# Nobody holds draws against their law here.
HIDDEN = ("intervals", "why not", "missing", "measured", "law e")
COLUMNS = {
    "best": "the length or tree that should pay most",
    "tau": "tokens of a step, predicted like the four that follow",
    "v, drafting, rest": "times of a step's pass, its drafting and all else, over that of a plain pass",
    "predicted": f"{DECODING_ALONE}, from other prompts than those on which it was measured",
    **SPEEDS,
    "bootstrap": f"{END_TO_END} with the bootstrap's interval; wide: bounds more than a factor of {WIDEST_PRINTED:g} "
    "apart",
    "identical": "prompts whose output ids are plain decoding's",
    "checked": "draws of the right length, with the same ids in every round",
}


def _advisable(name: str) -> str:
    """Return the name or place of a strategy that can be advised on; ArgumentTypeError for any other, with why."""
    if strategy_name(name) in STRATEGIES and (reason := unadvised(name)):
        told = "measure it with `compare`, and `report` says where its time goes"
        raise ArgumentTypeError(f"no advice on {name}: {reason}; {told}, or name one of {', '.join([*CHAINS, TREES])}")
    return name


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser, names = common_parser(__doc__, num_prompts=64, max_new_tokens=64), [*CHAINS, TREES]
    add = parser.add_argument
    add("--batch-sizes", type=positive, nargs="+", default=[1, 8, 32], help="rows in flight (1 8 32)")
    add("--temperatures", type=number_in("[0, inf)"), nargs="+", default=[0.0, 0.8], help="0 is greedy (0 0.8)")
    add_filters(parser, " if the temperature is not 0", top_p=0.95)
    add_rule(parser)
    add("--longest", type=positive, default=8, help="longest drafts considered (%(default)s)")
    own = f"or your own functions of the oracle and of num_draft_tokens, {FORMS}"
    text = f"strategies to advise on, of {', '.join(names)}; {own} (all of ours that this oracle can have)"
    add("--strategies", nargs="+", type=_advisable, metavar="NAME", help=text)
    add_strategies(parser, names, chosen=(LENGTH, "shape"))
    return vars(parser.parse_args(argv))


def cells_of(arguments: Mapping[str, Any]) -> list[Cell]:
    """Return all batch sizes at all temperatures."""
    pairs = [(size, t) for size in arguments["batch_sizes"] for t in arguments["temperatures"]]
    return [Cell(number, f"batch {size}, temperature {t:g}", size, t) for number, (size, t) in enumerate(pairs)]


def advice(kind: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return one sentence: what to use, by the wall time that decides the verdicts, or that nothing pays."""
    faster = [row for row in rows if row["verdict"] == "faster"]
    if not faster:
        return f"{kind}: decode plainly; nothing is told apart from it as faster."
    best = max(faster, key=lambda row: row["intervals"][0]["value"])
    speeds = ", ".join(f"{name} {best[name]}" for name in (DECODING_ALONE, END_TO_END))
    return f"{kind}: {best['strategy']}, {best['best']}: {speeds}."


def report(entries: Sequence[Mapping[str, Any]], left_out: Mapping[str, str]) -> list[Shown]:
    """Return the advice, the tables of all cells, and what does not pay and why.

    Args:
        entries: of all cells.
        left_out: strategies that the oracle cannot have -> why.
    """
    parts: list[Shown] = []
    legend = COLUMNS
    cannot = [f"- {name}, left out: {words}" for name, words in left_out.items()]
    for entry in entries:
        rows = entry["rows"]
        shown = [{name: value for name, value in row.items() if name not in HIDDEN} for row in rows]
        parts.append(found := Table(entry["kind"].capitalize(), shown, legend=legend))
        legend = {label: meaning for label, meaning in legend.items() if label not in found.legend_of(found.names)}
        against = [f"- {row['strategy']}: {row['why not']}." for row in rows if row["why not"]]
        against += cannot
        parts += ["Why not:\n\n" + "\n".join(against)] if against else []
    told = "\n".join(f"- {advice(entry['kind'], entry['rows'])}" for entry in entries)
    return [f"Advice:\n\n{told}", *parts, _prediction_errors(entries)] if entries else []


def _prediction_errors(entries: Sequence[Mapping[str, Any]]) -> Table:
    """Return all predictions with what they miss, and how many were close."""
    rows = [
        {
            "cell": entry["kind"],
            "strategy": row["strategy"],
            "best": row["best"],
            "predicted": row["predicted"],
            DECODING_ALONE: row["measured"],
            "predicted/measured": row["predicted"] / row["measured"],
            "missing part": "; ".join(row["missing"]) or "-",
        }
        for entry in entries
        for row in entry["rows"]
    ]
    close = sum(abs(row["predicted/measured"] - 1) <= CLOSE for row in rows)
    said = (
        f"{close} of {len(rows)} predictions are within {CLOSE:.0%} of what was measured of {DECODING_ALONE}; others "
        "name what they miss."
    )
    return Table("Predicted against measured", rows, said)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the advice; 1 if a cell failed.

    Raises:
        SystemExit: there are too few prompts, or the arguments cannot be run; with the reason.
    """
    arguments = parse(argv)
    plan = Plan("advise", arguments)
    with ExitStack() as stack:
        with refusing("advise"):
            study, need = Study.open(plan, stack), 2 * max(arguments["batch_sizes"])
            if len(study.fitting) < need:
                raise ValueError(
                    f"--num-prompts: {need} prompts fill a batch to calibrate on and one to measure, and "
                    f"{len(study.fitting)} fit the oracle: give more, or smaller --batch-sizes"
                )
            cells, adviser = cells_of(arguments), Adviser(arguments, study.oracle, study.fitting)
            left_out = adviser.choose(cells)
        done = study.measure(cells, adviser.measure)
        study.write("advice.json", {"left out": left_out, "cells": done})
        wrong = study.finish(cells)
        show([*report(done, left_out), f"{study.machine}."])
        return study.tell(wrong)


if __name__ == "__main__":
    as_program(main)
