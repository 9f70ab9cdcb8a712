"""The harness of all experiments: paired, interleaved arms, resumed after an interruption, loud about failures."""

import argparse
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from exactspec.parser import command_like_this, refusing
from experiments.harness.arguments import add_strategies, add_strategy, fingerprint, paired_parser, prompts_of
from experiments.harness.arms import PLAIN, Arm, Measurement, Unit, problems_of
from experiments.harness.building import arm_kind, arms_of, those_that_can
from experiments.harness.conversations import as_conversations, prompt_facts
from experiments.harness.disturbance import disturbance_note
from experiments.harness.draw_checks import add_checks, checks_of
from experiments.harness.findings.colouring import show_outputs
from experiments.harness.findings.summary import Tables, write
from experiments.harness.journal import AnyPiece, Journal, Piece, hold_journal
from experiments.harness.models import load_oracle, record_file
from experiments.harness.recorded_runs import add_record_options, asked_or_ready, check_recorded, load_recorded, usable
from experiments.harness.rule_choice import judging_of, sampling_of
from experiments.harness.run_outcome import Outcome, decoding_time
from experiments.harness.settings import without_full_collections
from experiments.harness.thread_check import take_threads
from experiments.harness.tracing import Tracing, drop_traces, trace_arms
from experiments.harness.turns import Turns, prompts_by_seed, seeds_of, units_by_seed
from experiments.peers import PEERS, RefusedArm, strategies_read
from experiments.report import PAGE
from experiments.strategies import STRATEGIES
from oracles.checkpoints.placement import checkpoint_place
from specdec import Oracle
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats import Stats, pool
from specdec.stats.report import Shown, device_name, processor, provenance, show

WARM_UP_TOKENS = 8
COMPARE = "compare"


@dataclass(frozen=True)
class Plan:
    """What an experiment is: its name, its arguments, and where its results go.

    Attributes:
        name: of the experiment.
        strategies: names of the arms beside plain decoding.
        peers: other programs measured beside them.
        arguments: option -> value.
        variants: whether the strategies' variants are arms too.
        asked: whether the strategies were asked for by name; if not, those that the oracle cannot have are left out.
    """

    name: str
    strategies: tuple[str, ...]
    peers: tuple[str, ...]
    arguments: dict[str, Any]
    variants: bool = False
    asked: bool = True


def build_arms(plan: Plan, oracle: Oracle) -> Sequence[Arm | RefusedArm]:
    """Return plain decoding, the strategies, their variants and the peers, those that refuse among them."""
    arguments = plan.arguments
    sampling = sampling_of(arguments)
    arms: list[Arm | RefusedArm] = [arm_kind(arguments)(PLAIN, oracle, None, sampling, *judging_of(arguments))]
    if plan.asked:
        for name in plan.strategies:
            arms += arms_of(name, arguments, oracle, sampling, plan.variants)
    else:
        arms += those_that_can(plan.strategies, arguments, oracle, sampling)
    return [*arms, *(PEERS[name](arguments, oracle, sampling) for name in plan.peers)]


def _arm_entry(runs: Sequence[Measurement], plain: Sequence[Measurement]) -> dict[str, Any]:
    """Return what the journal keeps of an arm's rounds of one unit."""
    stats = [Stats.from_dict(run.stats) for run in runs if run.stats is not None]
    records = [run.records | {"round": [i] * len(run.records["step"])} for i, run in enumerate(runs) if run.records]
    return {
        "seconds": [run.seconds for run in runs],
        **({"decoding": [decoding_time(one) for one in stats]} if stats else {}),
        "num_tokens": sum(len(tokens) for tokens in runs[0].tokens),
        **checks_of(runs, plain[0].tokens),
        "claim": runs[0].claim,
        "settings": asdict(runs[0].settings),
        "calibration": runs[0].calibration,
        "judge": runs[0].judge,
        "drafter": runs[0].drafter,
        "kernels": runs[0].kernels,
        "stats": pool(stats).as_dict() if stats else None,
        "records": {name: [value for part in records for value in part[name]] for name in (records or [{}])[0]},
    }


def _entry(unit: Piece, error: str | None = None) -> dict[str, Any]:
    """Return what the journal keeps of every unit; the error of one that was not measured."""
    return {"unit": unit.index, "kind": unit.kind, "prompts": [prompt.name for prompt in unit.prompts], "error": error}


def measure(unit: Unit, arms: Sequence[Arm], seed: int, max_new_tokens: int, repeats: int) -> dict[str, Any]:
    """Return the journal entry of one unit: every arm ``repeats`` times, each round beginning with another arm."""
    seeds = [(seed, number) for number in unit.numbers]
    runs: dict[str, list[Measurement]] = {arm.name: [] for arm in arms}
    for round_ in range(repeats):
        first = (unit.index + round_) % len(arms)
        for arm in [*arms[first:], *arms[:first]]:
            runs[arm.name].append(arm.run(unit.prompts, seeds, max_new_tokens))
    return {
        **_entry(unit),
        "arms": {name: _arm_entry(rounds, runs[PLAIN]) for name, rounds in runs.items()},
    }


def measure_all(
    units: Sequence[AnyPiece], journal: Journal, measure_one: Callable[[AnyPiece], dict[str, Any]], description: str
) -> None:
    """Measure what the journal lacks; a unit that fails is written down with its error, and the others go on."""
    left = [unit for unit in units if not journal.is_done(unit.index)]
    if len(left) < len(units):
        print(f"resumed: {len(units) - len(left)} of {len(units)} units stand in {journal.path}", file=sys.stderr)
    with without_full_collections():
        for unit in tqdm(left, desc=description, initial=len(units) - len(left), total=len(units), unit="unit"):
            try:
                entry = measure_one(unit) if unit.problem is None else _entry(unit, unit.problem)
            except Exception:  # whatever failed is journalled, other prompts go on, and the run ends with status 1
                entry = _entry(unit, traceback.format_exc())
            journal.append(entry)


def prepare(
    arguments: Mapping[str, Any], choose: Callable[[Mapping[str, Any]], list[NamedPrompt]] | None = None
) -> list[NamedPrompt]:
    """Set the number of threads, warn if they lack cores, and return the prompts asked for; see ``run``."""
    take_threads(arguments["threads"])
    if choose is not None:
        return choose(arguments)
    return load_prompts(prompts_of(arguments), arguments["column"], arguments["num_prompts"])


def load_target(arguments: Mapping[str, Any]) -> Oracle:
    """Return the model, or the recorded texts, that a command line asks for."""
    return load_oracle(arguments) if record_file(arguments) is None else load_recorded(arguments)


def run(
    plan: Plan,
    build: Callable[[Plan, Oracle], Sequence[Arm | RefusedArm]] = build_arms,
    tables: Tables | None = None,
    report: Callable[[Outcome, Path], list[Shown]] | None = None,
    choose: Callable[[Mapping[str, Any]], list[NamedPrompt]] | None = None,
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
            seeds_of(plan.arguments)
            prompts = prepare(plan.arguments, choose)
            folder = folder_of(plan, prompts)
            journal = stack.enter_context(hold_journal(folder, plan.arguments["fresh"]))
            oracle = load_target(plan.arguments)
            asked = as_conversations(prompts, oracle, plan.arguments)
            arms = build(plan, oracle)
        return conduct(plan, journal, asked, oracle, arms, report, tables)


def _check_against(against: str | None, arms: Sequence[Arm]) -> None:
    """Refuse to pair arms with one that does not run.

    Raises:
        ValueError: the name is none of theirs.
    """
    names = [arm.name for arm in arms]
    if against is not None and against not in names:
        raise ValueError(f"--against: {against!r} is none of the arms: {', '.join(names)}")


def folder_of(plan: Plan, prompts: Sequence[NamedPrompt]) -> Path:
    """Return where an experiment's results go: its name, and a key of what is measured, on which kind of machine.

    Raises:
        ValueError: torch knows no such device.
    """
    machine = processor(), device_name(checkpoint_place(plan.arguments["device"]))
    key = fingerprint(plan.arguments, [plan.name, plan.strategies, plan.peers, *machine, *prompts])
    return Path(plan.arguments["out"]) / f"{plan.name}-{key}"


def conduct(
    plan: Plan,
    journal: Journal,
    prompts: Sequence[NamedPrompt],
    oracle: Oracle,
    arms: Sequence[Arm | RefusedArm],
    report: Callable[[Outcome, Path], list[Shown]] | None = None,
    tables: Tables | None = None,
) -> int:
    """Measure the arms on the prompts, plain decoding first among them, and print the tables.

    Args:
        plan: of the experiment.
        journal: of its units; the results go into its folder, which is claimed.
        prompts: those of ``prepare``, as they are put to the oracle.
        oracle: shared by the arms.
        arms: what is measured.
        report: writes more into the results' folder and returns what to print; None: nothing.
        tables: makes tables of its own, beside the common ones.

    Returns:
        See ``run``.

    Raises:
        SystemExit: arms are to be paired with one that does not run.
    """
    running = [arm for arm in arms if not isinstance(arm, RefusedArm)]
    with refusing(plan.name):
        _check_against(plan.arguments["against"], running)
    folder, by_seed = journal.path.parent, prompts_by_seed(prompts, seeds_of(plan.arguments))
    with_seeds = [prompt for part in by_seed.values() for prompt in part]
    outcome = _measure(plan, by_seed, oracle, running, journal)
    refused = {arm.name: arm.words for arm in arms if isinstance(arm, RefusedArm)}
    facts = provenance(plan.arguments, oracle.device, oracle.backend) | {"refused": refused}
    told = prompt_facts(oracle, Turns(with_seeds, journal).complete_all())
    facts |= {"experiment": plan.name, "key": folder.name.rpartition("-")[2], "chat": told}
    show(write(outcome, folder, facts, tables), plan.arguments["wide"])
    if plan.arguments["show"]:
        show_outputs(outcome, with_seeds, oracle.tokenizer, plan.arguments["show"])
    tracing = Tracing.of(plan.arguments, folder, oracle, prompts, outcome)
    problems = outcome.problems() + trace_arms(tracing, running, [name for name in refused if name in PEERS], outcome)
    if report is not None and outcome.done and (parts := report(outcome, folder)):
        print()
        show(parts, plan.arguments["wide"])
    print(f"\nWritten: {folder}")
    if problems:
        print("\n".join(["FAILED:", *problems]), file=sys.stderr)
        return 1
    print(f"Why, in words, with charts and traces: {command_like_this('experiments.report')} {folder}")
    units = journal.close("units.jsonl")
    if record_file(plan.arguments) is None and (note := disturbance_note(outcome, units, journal.path)):
        print(note)
    return 0


def _drop_old(journal: Journal, trace: int) -> None:
    """Remove what an earlier run left and this one does not go on with: its page, and traces of other measurements."""
    folder = journal.path.parent
    (folder / PAGE).unlink(missing_ok=True)
    if not (journal.entries and trace):
        drop_traces(folder)


def _measure(
    plan: Plan, by_seed: dict[int, list[NamedPrompt]], oracle: Oracle, arms: Sequence[Arm], journal: Journal
) -> Outcome:
    """Warm the arms up, measure what the journal lacks, and return what it holds then."""
    arguments, prompts = plan.arguments, next(iter(by_seed.values()))
    turns = Turns([prompt for part in by_seed.values() for prompt in part], journal)
    _drop_old(journal, arguments["trace"])
    max_new_tokens, repeats = arguments["max_new_tokens"], arguments["repeats"]
    units = units_by_seed(by_seed, arguments["batch_size"], problems_of(oracle, prompts, max_new_tokens))
    first, num_of_a_seed = units[0], len(units) // len(by_seed)
    for arm in arms if first.problem is None else ():
        # What fails here fails again, and is written down, when its unit is measured.
        with suppress(Exception):
            arm.run(first.prompts, [(first.seed, number) for number in first.numbers], WARM_UP_TOKENS)

    def measure_one(unit: Unit) -> dict[str, Any]:
        whole = turns.complete(unit)
        entry = measure(whole, arms, unit.seed, max_new_tokens, repeats)
        add_checks(entry, whole, arms, unit.seed, max_new_tokens)
        began = (unit.index if unit.turn == 1 else turns.unit_of(unit.prompts[0])) % num_of_a_seed
        return entry | {"seed": unit.seed} | ({} if began == unit.index else {"began": began})

    measure_all(units, journal, measure_one, plan.name)
    return Outcome([arm.name for arm in arms], [journal.entries[unit.index] for unit in units])


def plan_of(name: str, argv: Sequence[str] | None, description: str | None = None) -> Plan:
    """Return what a command line asks of "compare", or of a strategy's own experiment, which has its variants."""
    parser = paired_parser(description)
    if name == COMPARE:
        return _comparing_plan(name, vars(comparing(parser).parse_args(argv)))
    add_strategy(parser, STRATEGIES[name], prefixed=False)
    add_record_options(parser)
    return Plan(name, (name,), (), vars(parser.parse_args(argv)), variants=True)


def script(name: str, description: str | None, argv: Sequence[str] | None = None) -> int:
    """Run the experiment of one strategy and its variants beside plain decoding; the body of its script."""
    return run(plan_of(name, argv, description))


def comparing(parser: argparse.ArgumentParser, usual: Sequence[str] | None = None) -> argparse.ArgumentParser:
    """Add the choice of strategies (those of ``usual``; None: all) and peers, and their options; return the parser."""
    names, told = list(STRATEGIES), "all that can run" if usual is None else " ".join(usual)
    text = f"of {', '.join(names)} ({told})"
    parser.add_argument("--strategies", nargs="+", choices=names, default=usual, metavar="NAME", help=text)
    peers = list(PEERS)
    text = f"other programs beside ours, greedy, on the oracle's own checkpoint: {', '.join(peers)}"
    parser.add_argument("--peer", nargs="+", choices=peers, default=[], metavar="NAME", help=text)
    add_strategies(parser, running=lambda asked: {*asked_or_ready(asked), *strategies_read(asked["peer"])})
    add_record_options(parser)
    return parser


def compare(
    name: str,
    arguments: dict[str, Any],
    tables: Tables | None = None,
    choose: Callable[[Mapping[str, Any]], list[NamedPrompt]] | None = None,
    report: Callable[[Outcome, Path], list[Shown]] | None = None,
) -> int:
    """Run the strategies and peers that were asked for side by side; the rest as of ``run``."""
    return run(_comparing_plan(name, arguments), tables=tables, report=report, choose=choose)


def _comparing_plan(name: str, arguments: dict[str, Any]) -> Plan:
    """Return the plan of strategies and peers side by side; None asks for all strategies that can run."""
    chosen = {**arguments, "strategies": list(usable(arguments))}
    asked = arguments["strategies"] is not None
    return Plan(name, tuple(chosen["strategies"]), tuple(chosen["peer"]), chosen, asked=asked)


def comparison(description: str | None, argv: Sequence[str] | None = None) -> int:
    """Run all strategies, or those asked for, side by side; the body of ``experiments.compare``."""
    return run(plan_of(COMPARE, argv, description))
