"""Requests that arrive by a Poisson process, or as in a file, at several rates: latency and goodput, drafts or none.

Arrivals are open-loop: they do not wait for answers. Free rows are filled first come, first served. Every arm serves
the same requests with the same seeds at the same times. If an arm draws texts of its own, outputs go on past ends of
text, so that all are equally long. The prediction takes the time of a wider pass from passes that are timed apart.
"""

import argparse
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import number_in, positive, refusing
from experiments.harness.arguments import add_strategies, add_switch, common_parser
from experiments.harness.models import needing_a_model
from experiments.harness.own_places import FORMS
from experiments.harness.rule_choice import add_sampling
from experiments.harness.study import Plan, Study
from experiments.load.load_arms import ArmSpec, repeats_plain, strategy_in
from experiments.load.load_predictions import predictions
from experiments.load.load_tables import conclusions, describe_outputs, draw, limit_text, problems_of_work, tables
from experiments.load.measuring_loads import CAPACITY, LoadCell, Loads, cells_of, rates_of
from experiments.load.serving import LIMITS, Load
from specdec.stats.report import Shown, show
from specdec.theory import WidthCurve

above_0 = number_in("(0, inf)")


def _limit(text: str) -> tuple[str, float]:
    """Return what NAME:MILLISECONDS bounds, and the bound in seconds."""
    name, _, bound = text.partition(":")
    if name not in LIMITS or not bound:
        raise argparse.ArgumentTypeError(f"give {', '.join(LIMITS)} and milliseconds, as ttft:500, not {text}")
    return name, above_0(bound) / 1e3


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = common_parser(__doc__, num_prompts=None, max_new_tokens=64)
    add = parser.add_argument
    arms = ["prompt_lookup", "small_transformer:2", "small_transformer:4", "small_transformer:4/8"]
    text = f"arms beside plain decoding: NAME, {FORMS}, :LENGTH of drafts, /NODES that all rows verify at most"
    add("--arms", nargs="+", default=arms, metavar="ARM", help=f"{text} ({' '.join(arms)})")
    rates = parser.add_mutually_exclusive_group().add_argument
    rates("--rates", type=above_0, nargs="+", metavar="RATE", help="requests a second (as --loads says)")
    rates("--loads", type=above_0, nargs="+", metavar="SHARE",
        help="rates as shares of what plain decoding serves with all rows (0.25 0.5 0.75 1 1.25)")  # fmt: skip
    add("--arrivals", metavar="FILE", help="times of arrivals in seconds, one a line; scaled to --rates if given "
        "(a Poisson process)")  # fmt: skip
    add("--seconds", type=above_0, default=20.0, help="seconds in which requests arrive, at each rate (%(default)s)")
    add("--warm-up", type=number_in("[0, 1)"), default=0.2,
        help="share of that time, at its start, that does not count (%(default)s)")  # fmt: skip
    add("--goodput", type=_limit, nargs="+", default=[("ttft", 0.5), ("tpot", 0.05)], metavar="LIMIT",
        help="limits that a good request keeps, in ms: ttft:, tpot:, e2el: (ttft:500 tpot:50)")  # fmt: skip
    add("--batch-size", type=positive, default=8, help="rows (%(default)s)")
    add_sampling(parser)
    add_switch(parser, "--ignore-eos", "go on after an end of text; arms that draw texts of their own always do")
    add_switch(parser, "--wide", "print all columns of the tables", "no: the five that matter most")
    add_strategies(parser, running=lambda arguments: [*map(strategy_in, arguments["arms"])])
    return needing_a_model(vars(parser.parse_args(argv)), "load")


def report(loads: Sequence[Load], arguments: Mapping[str, Any], capacity: Mapping[str, Any]) -> list[Shown]:
    """Return what was found, and the tables."""
    limits = dict(arguments["goodput"])
    runs: dict[str, list[Any]] = {}
    for load in loads:
        runs.setdefault(load.arm, []).append(load.served)
    curves = tuple(
        WidthCurve.of_seconds(capacity["widths"], seconds, int(rows)) for rows, seconds in capacity["passes"].items()
    )
    foretold = predictions(runs, curves, arguments["batch_size"])
    told = "\n".join(f"- {text}" for text in conclusions(loads, limits, foretold))
    head = (
        f"{describe_outputs(loads, repeats_plain(arguments))} Limit of a good request: {limit_text(limits)}. With all "
        f"{arguments['batch_size']} rows plain decoding serves {capacity['capacity']:.3g} requests a second."
    )
    return [head, told, *tables(loads, limits, foretold)]


def _cells(study: Study, measuring: Loads) -> list[LoadCell]:
    """Measure the capacity, and return all cells, the capacity's first; that one alone if it failed.

    Raises:
        SystemExit: at a share of the capacity no request arrives.
    """
    first = LoadCell(0, CAPACITY, 0.0, CAPACITY)
    if not (done := study.measure([first], measuring.measure)):
        return [first]
    with refusing("load"):
        rates = rates_of(measuring.arguments, done[0]["capacity"])
    return [first, *cells_of(rates, [*measuring.arms])]


def check(arguments: Mapping[str, Any]) -> None:
    """Refuse what is unusable, as far as that is known before a model is loaded.

    Raises:
        ValueError: an arm, outputs of one token, a file of arrivals, or a rate at which no request arrives.
    """
    if arguments["max_new_tokens"] < 2:
        raise ValueError("--max-new-tokens: one token has no time per token after the first; give 2 or more")
    for text in arguments["arms"]:
        ArmSpec.parse(text)
    if arguments["arrivals"] is not None and arguments["loads"] is not None:
        raise ValueError("--loads: --arrivals says when requests arrive; give --rates to put them on another scale")
    if arguments["rates"] is not None or arguments["arrivals"] is not None:
        rates_of(arguments, capacity=0.0)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; 1 if a load failed, or if an arm did other work than plain decoding."""
    arguments = parse(argv)
    with ExitStack() as stack:
        with refusing("load"):
            check(arguments)
            study = Study.open(Plan("load", arguments), stack)
            measuring = Loads(arguments, study.oracle, study.fitting)
        capacity, *cells = _cells(study, measuring)
        done = study.measure(cells, measuring.measure)
        if len(done) < len(cells) or not cells:
            return study.tell(study.finish([capacity, *cells]))
        loads = [measuring.load(*pair) for pair in zip(cells, done, strict=True)]
        loads.sort(key=lambda load: (load.rate, [*measuring.arms].index(load.arm)))
        served = [
            {"rate": one.rate, "arm": one.arm, "window": vars(one.window), **one.served.as_dict()} for one in loads
        ]
        study.write("load.json", {"loads": served}, indent=None)
        draw(study.folder / "load.png", loads, dict(arguments["goodput"]))
        wrong = study.finish([capacity, *cells], problems_of_work(loads, repeats_plain(arguments)))
        print(f"{study.machine}.\n")
        show(report(loads, arguments, study.journal.entries[0]), arguments["wide"])
        return study.tell(wrong)


if __name__ == "__main__":
    as_program(main)
