"""The harness of all experiments: paired, interleaved arms, resumed after an interruption, loud about failures."""

import argparse
import shlex
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from exactspec.parser import command_like_this, refusing
from experiments.harness.arguments import add_choice, add_strategies, add_strategy, paired_parser
from experiments.harness.arms import PLAIN, Arm, Measurement, Unit, problems_of
from experiments.harness.building import arms_of, engine_arms, runnable_arms, select_strategies, usable
from experiments.harness.conversations import prompt_facts
from experiments.harness.disturbance import disturbance_note
from experiments.harness.draw_checks import add_checks, checks_of
from experiments.harness.findings.colouring import show_outputs
from experiments.harness.findings.summary import Tables, write
from experiments.harness.journal import UNITS, Journal
from experiments.harness.models import load_oracle, record_file
from experiments.harness.own_places import check_names
from experiments.harness.recorded_runs import add_record_options, check_recorded, load_recorded_text
from experiments.harness.run_outcome import PERFORMERS, Outcome, decoding_time
from experiments.harness.study import Choose, Plan, Study
from experiments.harness.tracing import drop_traces, trace_arms
from experiments.harness.turns import Turns, prompts_by_seed, seeds_of, units_by_seed
from experiments.peers import PEERS, RefusedArm, strategies_read
from experiments.report import PAGE
from experiments.strategies import STRATEGIES
from specdec import Oracle
from specdec.stats import pool
from specdec.stats.report import Shown, provenance, show

WARM_UP_TOKENS = 8
COMPARE = "compare"


def build_arms(plan: Plan, oracle: Oracle) -> Sequence[Arm | RefusedArm]:
    """Return plain decoding, the strategies, their variants and the peers, including those that refuse."""
    arguments = plan.arguments
    arms: list[Arm | RefusedArm] = [*engine_arms(arguments, oracle, {PLAIN: None})]
    if plan.asked:
        for name in plan.strategies:
            arms += arms_of(name, arguments, oracle, plan.variants)
    else:
        arms += runnable_arms(plan.strategies, arguments, oracle)
    arms += (PEERS[name](arguments, oracle) for name in plan.peers)
    check_names([arm.name for arm in arms])
    return arms


def _arm_entry(runs: Sequence[Measurement], plain: Sequence[Measurement]) -> dict[str, Any]:
    """Return what the journal keeps of an arm's rounds of one unit."""
    results = [run.result for run in runs if run.result is not None]
    stats, columns = [result.stats for result in results], [result.records.columns() for result in results]
    records = [own | {"round": [i] * len(own["step"])} for i, own in enumerate(columns)]
    calibration = results[0].calibration if results else None
    return {
        "seconds": [run.seconds for run in runs],
        **({"decoding": [decoding_time(one) for one in stats]} if stats else {}),
        "num_tokens": sum(len(tokens) for tokens in runs[0].tokens),
        **checks_of(runs, plain[0].tokens),
        "claim": runs[0].claim,
        "settings": asdict(runs[0].settings),
        "tree": runs[0].tree,
        "calibration": None if calibration is None else calibration.as_dict(),
        **{did: getattr(results[0], did) if results else None for did in PERFORMERS},
        "stats": pool(stats).as_dict() if stats else None,
        "records": {name: [value for part in records for value in part[name]] for name in (records or [{}])[0]},
    }


def warm_up(arms: Sequence[Arm], unit: Unit) -> None:
    """Have arms decode some tokens of a unit."""
    for arm in arms:
        arm.run(unit.prompts, unit.seeds, WARM_UP_TOKENS)


def measure(unit: Unit, arms: Sequence[Arm], max_new_tokens: int, repeats: int) -> dict[str, Any]:
    """Return the journal entry of one unit: every arm ``repeats`` times, each round beginning with another arm."""
    runs: dict[str, list[Measurement]] = {arm.name: [] for arm in arms}
    for round_ in range(repeats):
        first = (unit.index + round_) % len(arms)
        for arm in [*arms[first:], *arms[:first]]:
            runs[arm.name].append(arm.run(unit.prompts, unit.seeds, max_new_tokens))
    return {
        **unit.entry(),
        "arms": {name: _arm_entry(rounds, runs[PLAIN]) for name, rounds in runs.items()},
    }


def load_target(arguments: Mapping[str, Any]) -> Oracle:
    """Return the model, or the recorded texts, that a command line asks for."""
    return load_oracle(arguments) if record_file(arguments) is None else load_recorded_text(arguments)


def run(
    plan: Plan,
    build: Callable[[Plan, Oracle], Sequence[Arm | RefusedArm]] = build_arms,
    tables: Tables | None = None,
    report: Callable[[Outcome, Path], list[Shown]] | None = None,
    choose: Choose | None = None,
) -> int:
    """Run an experiment and print its tables.

    Args:
        plan: of the experiment.
        build: makes its arms, plain decoding among them.
        tables: makes tables of its own, beside the common ones.
        report: see ``conduct``.
        choose: returns the prompts that the arguments ask for; None: ``--prompts`` names them.

    Returns:
        0; 1 if a prompt failed, or if output that should be identical to plain decoding's is not.

    Raises:
        SystemExit: the arguments cannot be run; with the reason.
    """
    with ExitStack() as stack:
        with refusing(plan.name):
            check_recorded(plan.strategies, plan.peers, plan.arguments)
            study = Study.open(plan, stack, load_target, choose)
            arms = build(plan, study.oracle)
        return conduct(study, arms, report, tables)


def _check_against(against: str | None, arms: Sequence[Arm]) -> None:
    """Refuse to pair arms with one that does not run.

    Raises:
        ValueError: the name is none of theirs.
    """
    names = [arm.name for arm in arms]
    if against is not None and against not in names:
        raise ValueError(f"--against: {against!r} is none of the arms: {', '.join(names)}")


def conduct(
    study: Study,
    arms: Sequence[Arm | RefusedArm],
    report: Callable[[Outcome, Path], list[Shown]] | None = None,
    tables: Tables | None = None,
) -> int:
    """Measure the arms on the prompts, plain decoding first among them, and print the tables.

    Args:
        study: the experiment.
        arms: what is measured; they share its oracle.
        report: writes more into the results' folder and returns what to print; None: nothing.
        tables: makes tables of its own, beside the common ones.

    Returns:
        See ``run``.

    Raises:
        SystemExit: arms are to be paired with one that does not run.
    """
    arguments, oracle, folder = study.plan.arguments, study.oracle, study.folder
    running = [arm for arm in arms if not isinstance(arm, RefusedArm)]
    with refusing(study.plan.name):
        _check_against(arguments["against"], running)
    turns = Turns(prompts_by_seed(study.prompts, seeds_of(arguments)), study.journal)
    outcome = _measure(study, turns, running)
    refused = {arm.name: arm.words for arm in arms if isinstance(arm, RefusedArm)}
    facts = provenance(arguments, oracle.device, oracle.backend) | {"refused": refused}
    told = prompt_facts(oracle, turns.complete_all())
    facts |= {"experiment": study.plan.name, "key": folder.name.rpartition("-")[2], "chat": told}
    problems = outcome.problems()
    found = write(outcome, folder, facts, problems, tables)  # before the traces, which may be interrupted
    if wrong := trace_arms(study, running, [name for name in refused if name in PEERS], outcome):
        problems += wrong
        found = write(outcome, folder, facts, problems, tables)
    more = report(outcome, folder) if report is not None and outcome.done else []
    unfinished = study.finish(problems=problems)
    show(found, arguments["wide"])
    if arguments["show"]:
        show_outputs(outcome, turns.prompts, oracle.tokenizer, arguments["show"])
    if more:
        print()
        show(more, arguments["wide"])
    if study.tell(unfinished):
        return 1
    way = f"{command_like_this('experiments.report')} {shlex.quote(str(folder))}"
    print(f"Why, in words, with charts and traces: {way}")
    units, journal = folder / UNITS, study.journal.path
    if record_file(arguments) is None and (note := disturbance_note(outcome, units, journal, study.plan.way)):
        print(note)
    return 0


def _drop_old(journal: Journal, trace: int) -> None:
    """Remove what an earlier run left and this one does not continue: its page, and traces of other measurements."""
    folder = journal.path.parent
    (folder / PAGE).unlink(missing_ok=True)
    if not (journal.entries and trace):
        drop_traces(folder)


def _measure(study: Study, turns: Turns, arms: Sequence[Arm]) -> Outcome:
    """Warm the arms up, measure what the journal lacks, and return what it holds then."""
    arguments, journal, by_seed = study.plan.arguments, study.journal, turns.by_seed
    prompts = next(iter(by_seed.values()))
    _drop_old(journal, arguments["trace"])
    max_new_tokens, repeats = arguments["max_new_tokens"], arguments["repeats"]
    units = units_by_seed(by_seed, arguments["batch_size"], problems_of(study.oracle, prompts, max_new_tokens))
    first, num_of_a_seed = units[0], len(units) // len(by_seed)
    beginnings = {_origin(unit): unit.index for unit in reversed(units)}
    for arm in arms if first.problem is None else ():
        # What fails here fails again, and is written down, when its unit is measured.
        with suppress(Exception):
            warm_up([arm], first)

    def measure_one(unit: Unit) -> dict[str, Any]:
        whole = turns.complete(unit)
        entry = measure(whole, arms, max_new_tokens, repeats)
        add_checks(entry, whole, arms, max_new_tokens)
        began = beginnings[_origin(unit)] if unit.turn == 1 else turns.unit_of(unit.prompts[0])
        began = journal.entries.get(began, {}).get("began", began) % num_of_a_seed
        return entry | {"seed": unit.seed} | ({} if began == unit.index else {"began": began})

    study.measure(units, measure_one)
    return Outcome([arm.name for arm in arms], [journal.entries[unit.index] for unit in units])


def _origin(unit: Unit) -> str | int:
    """Return what units of one text share; for other units, their own index."""
    return unit.prompts[0].origin or unit.index


def plan_of(name: str, argv: Sequence[str] | None, description: str | None = None) -> Plan:
    """Return what a command line asks of "compare", or of a strategy's own experiment, which has its variants."""
    parser = paired_parser(description)
    if name == COMPARE:
        return comparing_plan(name, vars(comparing(parser).parse_args(argv)))
    add_strategy(parser, STRATEGIES[name], prefixed=False)
    add_record_options(parser)
    return Plan(name, vars(parser.parse_args(argv)), (name,), variants=True)


def script(name: str, description: str | None, argv: Sequence[str] | None = None) -> int:
    """Run "compare", or the experiment of one strategy and its variants; the body of its script."""
    return run(plan_of(name, argv, description))


def comparing(parser: argparse.ArgumentParser, usual: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Add the choice of strategies (those of ``usual``; None: all) and peers, and their options; return the parser."""
    add_choice(parser, usual, "all that can run" if usual is None else " ".join(usual))
    peers = list(PEERS)
    text = f"other programs to run beside ours, greedy, on the oracle's checkpoint: {', '.join(peers)}"
    parser.add_argument("--peer", nargs="+", choices=peers, default=[], metavar="NAME", help=text)
    add_strategies(parser, running=lambda asked: {*select_strategies(asked), *strategies_read(asked["peer"])})
    add_record_options(parser)
    return parser


def comparing_plan(name: str, arguments: dict[str, Any]) -> Plan:
    """Return the plan of strategies and peers side by side; None asks for all strategies that can run."""
    chosen = {**arguments, "strategies": list(usable(arguments))}
    asked = arguments["strategies"] is not None
    return Plan(name, chosen, tuple(chosen["strategies"]), tuple(chosen["peer"]), asked=asked)
