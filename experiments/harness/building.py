"""Strategies as arms of a run: built for its oracle, or left out with the reason."""

import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from experiments.harness.arguments import settings_of
from experiments.harness.arms import PLAIN, Arm, EngineArm
from experiments.harness.models import record_file
from experiments.harness.own_places import check_names
from experiments.harness.recorded_runs import RecordedArm
from experiments.harness.rule_choice import sampling_of
from experiments.peers import RefusedArm, words_of
from experiments.strategies import MODEL, STRATEGIES, Strategy, strategy_of
from experiments.strategies.strategy import default_of, lack_of_head
from specdec import Oracle
from specdec.contracts import FOREIGN, DraftSource


def select_strategies(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the strategies that were asked for; if none were, all but those that lack an option they need."""
    ready = [name for name, strategy in STRATEGIES.items() if strategy.is_ready(arguments)]
    return tuple(ready if arguments["strategies"] is None else arguments["strategies"])


def usable(arguments: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the strategies to run: those that were asked for, else all that can.

    Those that need a model, if an oracle is recorded text, and those that lack a head are named on stderr.
    """
    if arguments["strategies"] is not None:
        return tuple(arguments["strategies"])
    is_recorded, names = record_file(arguments) is not None, list[str]()
    for name, strategy in STRATEGIES.items():
        if is_recorded and strategy.needs_model:
            print(f"left out on recorded text: {name}: {strategy.needs_model}", file=sys.stderr)
        elif strategy.is_ready(arguments):
            names.append(name)
        else:
            print(f"left out: {name}: {_add_prefix(lack_of_head(arguments['oracle']), strategy)}", file=sys.stderr)
    return tuple(names)


def engine_arms(
    arguments: Mapping[str, Any], oracle: Oracle, sources: Mapping[str, DraftSource | None]
) -> list[EngineArm]:
    """Return an arm of our engine for every source (None: plain), which draws and judges as a command line asks.

    If the oracle is recorded text, outputs are compared with it.
    """
    kind = EngineArm if record_file(arguments) is None else RecordedArm
    sampling, judging = sampling_of(arguments), (arguments["rule"], arguments["kernels"])
    return [kind(name, oracle, source, sampling, *judging) for name, source in sources.items()]


def arms_of(name: str, arguments: Mapping[str, Any], oracle: Oracle, variants: bool) -> Iterator[EngineArm]:
    """Yield the arm of a strategy, and those of its variants.

    Raises:
        ValueError: this oracle cannot have it, or an option is unusable.
    """
    settings, strategy = settings_of(arguments, name), strategy_of(name)
    changes = {strategy.name: {}, **(strategy.variants if variants else {})}
    # A strategy's own script, which has its variants, has its options without its name.
    naming = _name_model_option if variants else _prefix_options
    for arm, changed in changes.items():
        with naming(strategy):
            (built,) = engine_arms(arguments, oracle, {arm: strategy.build({**settings, **changed}, oracle)})
        yield built


def build_shared(name: str, arguments: Mapping[str, Any], oracle: Oracle, **changed: Any) -> DraftSource:
    """Return a strategy's source, for a command line that several strategies share.

    Args:
        name: of the strategy.
        arguments: of the command line.
        oracle: that it drafts for.
        changed: the strategy's own options, by their keys, whose values the program chooses.

    Raises:
        ValueError: this oracle cannot have it, or an option is unusable; options are named as that command line does.
    """
    strategy = strategy_of(name)
    with _prefix_options(strategy):
        return strategy.build({**settings_of(arguments, name), **changed}, oracle)


def build_named(arguments: Mapping[str, Any], oracle: Oracle) -> dict[str, DraftSource]:
    """Return arm -> source of all that ``--strategies`` names; errors as of ``build_shared`` and ``check_names``."""
    names = {place: strategy_of(place).name for place in arguments["strategies"]}
    check_names([PLAIN, *names.values()])
    return {name: build_shared(place, arguments, oracle) for place, name in names.items()}


@contextmanager
def _name_model_option(strategy: Strategy) -> Iterator[None]:
    """Name the option of the draft model in an error that asks for another one."""
    try:
        yield
    except ValueError as error:
        if MODEL in strategy.options and FOREIGN in str(error):
            raise ValueError(f"{error} (--{MODEL.name} DIR)") from error
        raise


@contextmanager
def _prefix_options(strategy: Strategy) -> Iterator[None]:
    """The same if several strategies share a command line, which puts their names before their options'."""
    try:
        with _name_model_option(strategy):
            yield
    except ValueError as error:
        raise ValueError(_add_prefix(str(error), strategy)) from error


def _add_prefix(told: str, strategy: Strategy) -> str:
    """Return words with the strategy's options as on a command line that several strategies share."""
    names = "|".join(option.name for option in strategy.options)
    return re.sub(rf"(?<!\S)(\(?)--({names})(?![\w-])", rf"\1--{strategy.name.replace('_', '-')}-\2", told)


def runnable_arms(names: Sequence[str], arguments: Mapping[str, Any], oracle: Oracle) -> Iterator[Arm | RefusedArm]:
    """Yield the arms of strategies that nobody asked for by name; those that this oracle cannot have say why.

    Raises:
        ValueError: a strategy whose options were given cannot be built.
    """
    for name in names:
        try:
            yield from arms_of(name, arguments, oracle, variants=False)
        except ValueError as error:
            usual = {option.key: default_of(name, option, arguments) for option in STRATEGIES[name].options}
            if any(arguments[f"{name}.{key}"] != value for key, value in usual.items()):
                raise
            words = words_of(error).removeprefix(f"{name}: ")
            print(f"left out: {name}: {words}", file=sys.stderr)
            yield RefusedArm(name, words)
