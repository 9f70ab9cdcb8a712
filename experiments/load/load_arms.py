"""The arms of a load: strategies by name, with a draft length and a budget that their rows share."""

import re
from argparse import ArgumentTypeError
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from experiments.harness.arms import PLAIN, EngineArm
from experiments.harness.building import build_shared
from experiments.harness.rule_choice import rule_of, sampling_of
from experiments.strategies import STRATEGIES, strategy_name, strategy_of
from experiments.strategies.strategy import LENGTH
from specdec import Oracle, SharedBudget

_FORM = re.compile(r"(?P<name>\w+|.+?:[^\W\d]\w*(:[^\W\d]\w*=.+?)?)(:(?P<length>\d+))?(/(?P<nodes>\d+))?")


@dataclass(frozen=True)
class ArmSpec:
    """What a command line asks of an arm.

    Attributes:
        strategy: its name, or the place of a source of one's own.
        length: tokens to draft; None: as the strategy's own options say.
        nodes: that all rows of a step verify at most; None: all that were drafted.
    """

    strategy: str
    length: int | None = None
    nodes: int | None = None

    @staticmethod
    def parse(text: str) -> "ArmSpec":
        """Return what NAME, NAME:LENGTH, NAME/NODES or NAME:LENGTH/NODES asks for.

        Raises:
            ValueError: it has another form, the strategy is unknown, or it has no draft length.
        """
        found = _FORM.fullmatch(text)
        if found is None:
            raise ValueError(f"--arms {text}: give NAME, NAME:LENGTH, NAME/NODES or NAME:LENGTH/NODES")
        name, length, nodes = found["name"], found["length"], found["nodes"]
        try:
            strategy_name(name)
        except ArgumentTypeError as error:
            raise ValueError(f"--arms {text}: {error}") from error
        if length is not None and name in STRATEGIES and not STRATEGIES[name].has_length:
            raise ValueError(f"--arms {text}: {name} has no draft length; leave :{length} out")
        if length is not None and int(length) == 0:
            raise ValueError(f"--arms {text}: a length of 0 drafts nothing, as plain decoding does; give :1 or more")
        if nodes is not None and int(nodes) == 0:
            raise ValueError(f"--arms {text}: a budget of 0 verifies no draft; give /1 or more")
        return ArmSpec(name, None if length is None else int(length), None if nodes is None else int(nodes))

    @property
    def label(self) -> str:
        """Its name in tables."""
        length = "" if self.length is None else f" {self.length}"
        return f"{strategy_of(self.strategy).name}{length}" + ("" if self.nodes is None else f", budget {self.nodes}")


def strategy_in(text: str) -> str:
    """Return the strategy that an arm names, whatever it asks of it; a text of another form as it is."""
    found = _FORM.fullmatch(text)
    return text if found is None else found["name"]


def repeats_plain(arguments: Mapping[str, Any]) -> bool:
    """Tell whether all arms must write plain decoding's tokens: greedy or coupled ones, by a lossless rule."""
    rule = rule_of(arguments["rule"])
    return rule.lossless and (arguments["temperature"] == 0 or rule.coupled)


def build_arms(arguments: Mapping[str, Any], oracle: Oracle) -> dict[str, EngineArm]:
    """Return name -> arm, plain decoding first.

    Raises:
        ValueError: a form of ``--arms``, a strategy that this oracle cannot have, or the same arm twice.
    """
    judging, sampling = (arguments["rule"], arguments["kernels"]), sampling_of(arguments)
    if not repeats_plain(arguments):  # outputs go on after an end of text, to equal lengths
        sampling = replace(sampling, ignore_eos=True)
    made = {PLAIN: EngineArm(PLAIN, oracle, None, sampling, *judging)}
    for spec in map(ArmSpec.parse, arguments["arms"]):
        if spec.label in made:
            raise ValueError(f"--arms: {spec.label} stands there twice")
        length = {} if spec.length is None else {LENGTH: spec.length}
        source = build_shared(spec.strategy, arguments, oracle, **length)
        budget = None if spec.nodes is None else SharedBudget(spec.nodes)
        made[spec.label] = EngineArm(spec.label, oracle, source, sampling, *judging, budget)
    return made
