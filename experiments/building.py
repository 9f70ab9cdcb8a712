"""Strategies as arms of a run: built for its oracle, or left out with the reason."""

import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.arguments import settings_of
from experiments.arms import Arm, EngineArm
from experiments.models import recorded_file
from experiments.peers import RefusedArm, words_of
from experiments.recorded import RecordedArm
from experiments.strategies import MODEL, STRATEGIES
from specdec import Oracle, SamplingParams
from specdec.contracts import FOREIGN


def arm_kind(arguments: Mapping[str, Any]) -> type[EngineArm]:
    """Return what decodes: with a model, or with recorded texts, whose outputs are compared with them."""
    return EngineArm if recorded_file(arguments) is None else RecordedArm


def arms_of(
    name: str, arguments: Mapping[str, Any], oracle: Oracle, sampling: SamplingParams, variants: bool
) -> Iterator[Arm]:
    """Yield the arm of a strategy, and those of its variants.

    Raises:
        ValueError: this oracle cannot have it, or an option is unusable.
    """
    strategy, settings = STRATEGIES[name], settings_of(arguments, name)
    changes = {name: {}, **(strategy.variants if variants else {})}
    try:
        for arm, changed in changes.items():
            yield arm_kind(arguments)(arm, oracle, strategy.build({**settings, **changed}, oracle), sampling)
    except ValueError as error:
        if MODEL not in strategy.options or FOREIGN not in str(error):
            raise
        # A strategy's own script, which has its variants, has its options without its name.
        option = f"--{MODEL.name}" if variants else f"--{name.replace('_', '-')}-{MODEL.name}"
        raise ValueError(f"{error} ({option} DIR)") from error


def those_that_can(
    names: Sequence[str], arguments: Mapping[str, Any], oracle: Oracle, sampling: SamplingParams
) -> Iterator[Arm | RefusedArm]:
    """Yield the arms of strategies that nobody asked for by name; those that this oracle cannot have say why.

    Raises:
        ValueError: a strategy whose options were given cannot be built.
    """
    for name in names:
        try:
            yield from arms_of(name, arguments, oracle, sampling, variants=False)
        except ValueError as error:
            if any(arguments[f"{name}.{option.key}"] != option.default for option in STRATEGIES[name].options):
                raise
            words = words_of(error)
            print(f"left out: {name}: {words}", file=sys.stderr)
            yield RefusedArm(name, words)
