"""The command line that all experiments share."""

import argparse
import hashlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, get_args

import torch

from exactspec.parser import Parser, natural, positive
from experiments.harness.conversations import add_template_options, add_turns
from experiments.harness.models import PLACEMENT, RECORDED, path_of, record_file
from experiments.harness.own_code import own_code
from experiments.harness.own_places import FORMS
from experiments.harness.rule_choice import FILTER_OPTIONS, add_sampling
from experiments.strategies import STRATEGIES, Strategy, strategy_name, strategy_of
from experiments.strategies.strategy import PUBLISHED_SETTINGS, published_settings, yes_or_no
from oracles.checkpoints.embedded_folders import head_folder, head_names, heads_of
from oracles.checkpoints.placement import DTYPES, Arithmetic, Backend, WeightType, checkpoint_place
from oracles.quantisation import rounds_inputs
from specdec.kernels import best_kernels
from specdec.prompts import TEXT_COLUMNS
from specdec.stats.report import version_of

PROMPTS = Path(__file__).parents[1] / "prompts" / "code.jsonl"
_SHIPPED = "the shipped ones; the records'"
_SPREAD = "spread over their kinds"
PACKAGES = ("specdec", "drafts", "oracles", "experiments")
# What says where results lie and how they are shown, and not what is measured.
_NOT_MEASURED = ("out", "fresh", "against", "show", "wide", "trace", "draft_cost", "width_cost", "goodput")
# Options that say which strategies run; a program in which several share a command line has one of them.
_ASKS = ("--strategies", "--strategy", "--arms")


class ExperimentParser(Parser):
    """Parse the options of an experiment; strategies' defaults are those for the oracle and device that the words name.

    Attributes:
        running: returns the strategies that the arguments run; None: all whose options the parser has.
    """

    running: Callable[[Mapping[str, Any]], Collection[str]] | None = None

    def parse_args(  # type: ignore[override]  # as our Parser's
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Return the arguments, as ``Parser.parse_args`` does."""
        first, _ = self.parse_known_args(args)
        for strategy in PUBLISHED_SETTINGS.get(first.oracle, {}):
            own = {f"{strategy}.{key}": value for key, value in published_settings(strategy, vars(first)).items()}
            self.set_defaults(**{name: value for name, value in own.items() if hasattr(first, name)})
        parsed = super().parse_args(args, namespace)
        for name in ("strategies", "peer"):  # an arm runs once, however often it is named
            if chosen := getattr(parsed, name, None):
                setattr(parsed, name, [*dict.fromkeys(chosen)])
        self._check_idle(vars(parsed))
        return parsed

    def _check_idle(self, parsed: Mapping[str, Any]) -> None:
        """End the program if an option was given of a strategy that does not run."""
        running = STRATEGIES if self.running is None else self.running(parsed)
        for action in self._actions:
            name, dot, _ = action.dest.partition(".")
            if dot and name not in running and parsed[action.dest] != action.default:
                asks = next(flag for flag in _ASKS if flag in self._option_string_actions)
                told = f"{name} does not run: name it in {asks}, or leave this out"
                self.error(f"argument {action.option_strings[0]}: {told}")


def seed_number(text: str) -> int:
    """Return a whole number of 64 bits, its sign included.

    Raises:
        ValueError: it is no whole number.
        argparse.ArgumentTypeError: it needs more bits.
    """
    value = int(text)
    if not -(2**63) <= value < 2**63:
        raise argparse.ArgumentTypeError(f"must be a whole number of 64 bits, got {value}")
    return value


def _device(text: str) -> str:
    """Return the name of a device that torch knows, whether or not it is there."""
    try:
        return str(checkpoint_place(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def common_parser(
    description: str | None,
    num_prompts: int | None,
    max_new_tokens: int,
    resumes: bool = True,
    usual_prompts: str = _SHIPPED,
    spread: str = _SPREAD,
) -> argparse.ArgumentParser:
    """Return a parser of the options that every experiment has; the numbers are defaults (None: all prompts).

    An experiment that does not resume has no --fresh. ``usual_prompts`` says what is read if no prompts are named, and
    ``spread`` which prompts are taken if not all are.
    """
    parser = ExperimentParser(description)
    add = parser.add_argument
    add(
        "--oracle",
        default="code",
        help="embedded or published name, checkpoint directory, GGUF file, hf:DIR or recorded:FILE (%(default)s)",
    )
    add_prompts(parser, num_prompts, usual_prompts, spread)
    add("--max-new-tokens", type=positive, default=max_new_tokens, help="most new tokens per prompt (%(default)s)")
    seeds = "seed of sampling: prompt i has the seed (SEED, i) in every arm (%(default)s)"
    add("--seed", type=seed_number, default=0, help=seeds)
    add_template_options(parser)
    add_placement(parser)
    add("--out", default="runs", help="folder for the results (%(default)s)")
    if not resumes:
        return parser
    add("--fresh", action="store_true", help="drop what an interrupted run with these arguments measured")
    return parser


def add_prompts(
    parser: argparse.ArgumentParser, num_prompts: int | None, usual_prompts: str = _SHIPPED, spread: str = _SPREAD
) -> None:
    """Add the options that say which prompts are read, and how many; the rest as of ``common_parser``."""
    add, count = parser.add_argument, num_prompts or "all"
    add(
        "--prompts",
        default=str(PROMPTS),
        help=f"JSONL, parquet or text file, or OWNER/NAME[/SUBSET][:SPLIT] on the hub ({usual_prompts})",
    )
    add_column(parser)
    add("--num-prompts", type=positive, default=num_prompts, help=f"how many, {spread} ({count})")


def add_column(parser: argparse.ArgumentParser) -> None:
    """Add the option that names the column of a file's prompts."""
    parser.add_argument("--column", help=f"column that holds the prompts (the only one of {', '.join(TEXT_COLUMNS)})")


def add_switch(parser: argparse.ArgumentParser, flag: str, text: str, usual: str = "no") -> None:
    """Add an option that takes yes, no, or nothing, which means yes; ``usual`` says what holds if it is not given."""
    how = {"type": yes_or_no, "nargs": "?", "const": True, "default": False, "metavar": "YES_OR_NO"}
    parser.add_argument(flag, **how, help=f"{text} ({usual})")  # type: ignore[arg-type]


def add_placement(parser: argparse.ArgumentParser, arithmetic: str = "float32") -> None:
    """Add the options that say where and how models compute; ``arithmetic``: its default, in words of the help."""
    add = parser.add_argument
    add("--device", type=_device, default="cpu", help="cpu, cuda, cuda:1, ... (%(default)s)")
    add("--dtype", choices=DTYPES, help="dtype of the arithmetic (float32 on the CPU, the file's own on CUDA)")
    add(
        "--backend",
        choices=get_args(Backend),
        help="backend of all models (native if it can run; graphed on CUDA; else eager)",
    )
    add(
        "--weights",
        choices=get_args(WeightType),
        help="weights of all models' linear layers, exit heads excepted (as they are stored)",
    )
    add(
        "--arithmetic",
        choices=get_args(Arithmetic),
        help=f"arithmetic of the oracle's products with a GGUF file's weights ({arithmetic})",
    )
    add_switch(
        parser, "--bitwise", "the oracle's scores must not depend on the pass, bit for bit: see docs/internals/cuda.md"
    )
    add("--threads", type=positive, help="torch threads (torch's own choice)")


def paired_parser(
    description: str | None,
    num_prompts: int | None = 40,
    max_new_tokens: int = 64,
    usual_prompts: str = _SHIPPED,
) -> argparse.ArgumentParser:
    """Return a parser of the options of an experiment that is paired with plain decoding; the rest as above."""
    parser = common_parser(description, num_prompts, max_new_tokens, usual_prompts=usual_prompts)
    add_turns(parser)
    add = parser.add_argument
    add("--batch-size", type=positive, default=1, help="prompts decoded together (%(default)s)")
    add_sampling(parser)
    add_switch(parser, "--ignore-eos", "go on after an end of text, so that all outputs are equally long")
    add("--repeats", type=positive, default=1, help="rounds per prompt, the order of the arms rotated (%(default)s)")
    add("--against", metavar="ARM", help="also pair every arm with this one, and give verdicts")
    add_switch(parser, "--wide", "print all columns of the tables", "no: the five that matter most; tables.md has all")
    add("--show", type=positive, metavar="N", help="print the first N outputs of every drafting arm, in colours")
    add(
        "--trace",
        type=natural,
        default=0,
        metavar="N",
        help="after the timed rounds, decode the first N prompts again and record every node (%(default)s)",
    )
    return parser


def prompts_of(arguments: Mapping[str, Any]) -> str | Path:
    """Return where the prompts come from: recorded texts bring their own if no others are asked for."""
    file, given = record_file(arguments), arguments["prompts"]
    return given if file is None or given != str(PROMPTS) else file


def add_strategy(
    parser: argparse.ArgumentParser, strategy: Strategy, prefixed: bool, chosen: Collection[str] = ()
) -> None:
    """Add a strategy's own options, with its name before theirs if several strategies share a command line.

    The program itself chooses those of the keys ``chosen``: they are arguments of these names, but not options.
    """
    assert isinstance(parser, Parser)
    group = parser.add_folded_group(strategy.name) if prefixed else parser.add_argument_group(strategy.name)
    for option in strategy.options:
        flag = f"{strategy.name.replace('_', '-')}-{option.name}" if prefixed else option.name
        dest = f"{strategy.name}.{option.key}"
        if option.key in chosen:
            parser.set_defaults(**{dest: option.default})
            continue
        default = {False: "no", True: "yes"}[option.default] if isinstance(option.default, bool) else option.default
        told = [] if default is None else [str(default)]
        for oracle, published in PUBLISHED_SETTINGS.items():
            if option.key in (own := published.get(strategy.name, {})):
                value = Path(str(own[option.key])).name
                told.append(f"for {oracle}: {value}{' in float32 on a CPU' if rounds_inputs(value) else ''}")
        text, metavar = option.help + (f" ({'; '.join(told)})" if told else ""), option.key.upper()
        group.add_argument(f"--{flag}", dest=dest, default=option.default, type=option.kind, metavar=metavar, help=text)


def add_choice(parser: argparse.ArgumentParser, usual: Sequence[str] | None, told: str) -> None:
    """Add the choice of several strategies.

    Args:
        parser: of the program.
        usual: the strategies that run if none is named; None: the program finds them.
        told: ``usual`` in words.
    """
    text = f"strategies to run, of {', '.join(STRATEGIES)}; or your own sources, {FORMS} ({told})"
    parser.add_argument("--strategies", nargs="+", type=strategy_name, default=usual, metavar="NAME", help=text)


def _requested_names(arguments: Mapping[str, Any]) -> Collection[str]:
    """Return the strategies that ``--strategies`` or ``--strategy`` names; all if neither is given."""
    one: str | None = arguments.get("strategy")
    return [one] if one is not None else arguments["strategies"] or STRATEGIES


def add_strategies(
    parser: argparse.ArgumentParser,
    names: Iterable[str] = STRATEGIES,
    chosen: Collection[str] = (),
    running: Callable[[Mapping[str, Any]], Collection[str]] = _requested_names,
) -> None:
    """Add the options of several strategies, with their names before them; ``chosen`` as above.

    ``running`` returns which of them the arguments run: the options of others are refused.
    """
    assert isinstance(parser, ExperimentParser)
    parser.running = running
    for name in names:
        add_strategy(parser, STRATEGIES[name], prefixed=True, chosen=chosen)


def settings_of(arguments: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return what a strategy's builder reads: its own options by key, and what it must know of the run.

    That is the oracle's name, where models compute, sampling, the rule, the kernels (None: not chosen) and batch size.
    """
    own = {option.key: arguments[f"{name}.{option.key}"] for option in strategy_of(name).options}
    shared = (*PLACEMENT, "oracle", "temperature", *FILTER_OPTIONS, "rule", "batch_size")
    return {**own, **{name: arguments[name] for name in shared}, "kernels": arguments.get("kernels")}


def _files_of(value: Any) -> list[tuple[str, int, int]]:
    """Return name, size and time of change of the files that an option names: checkpoints, texts, an oracle's heads."""
    value = value.removeprefix(RECORDED) if isinstance(value, str) else value
    paths = []
    if isinstance(value, str) and value:
        paths = [
            head_folder(value) if value in head_names() else path_of(value),
            *map(head_folder, heads_of(value).values()),
        ]
    # Of a text that is too long for a path these say that there is nothing; the methods of ``Path`` raise.
    if len(paths) == 1 and not os.path.exists(paths[0]):
        paths = [path_of(part) for part in value.split(",") if part]
    files = [file for path in paths for file in (sorted(path.iterdir()) if os.path.isdir(path) else [path])]
    return [(str(f), f.stat().st_size, f.stat().st_mtime_ns) for f in files if os.path.isfile(f)]


def measuring_arguments(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that decide what is measured, not where results go or how they are shown."""
    return {name: value for name, value in arguments.items() if name not in _NOT_MEASURED}


def fingerprint(arguments: Mapping[str, Any], prompts: Sequence[Any]) -> str:
    """Return a key of what is measured, and with what.

    It covers the arguments, the files that they name (by size and time of change), the prompts themselves, the code of
    our packages, and what is a user's own with what that imports, as it was at the first call, the versions of torch
    and of the peers, torch's number of threads, and whether compiled code can be had.
    """
    kept = measuring_arguments(arguments)
    files = {name: _files_of(value) for name, value in kept.items()}
    listed = (value if isinstance(value, list | tuple) else [value] for value in kept.values())
    own = own_code(text for values in listed for text in values if isinstance(text, str))
    peers = [version_of(package) for package in ("transformers", "llama_cpp_python")]
    machine = [torch.__version__, *peers, torch.get_num_threads(), best_kernels().name, _code(), own]
    asked = json.dumps([kept, files, machine, [str(prompt) for prompt in prompts]], sort_keys=True)
    return hashlib.sha256(asked.encode()).hexdigest()[:12]


@cache
def _code() -> str:
    """Return a hash of our packages' code, taken once: a process runs the code that there was when it began."""
    digest, root = hashlib.sha256(), Path(__file__).parents[2]
    for package in PACKAGES:
        for path in sorted(file for end in ("py", "h", "cpp") for file in (root / package).rglob(f"*.{end}")):
            digest.update(path.read_bytes())
    return digest.hexdigest()
