"""Several seeds of sampling: all arms decode every prompt once with each.

What is measured is then a (prompt, seed), and what intervals count is a prompt, its seeds pooled. Outputs of one prompt
share its difficulty, so that they are no independent measurements: to count each by itself would make intervals too
narrow. A seed needs no cluster of its own: streams are keyed by seed and prompt, and two prompts share no draw.
"""

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.harness.arms import Unit, units_of
from experiments.harness.conversations import LaterTurn
from specdec.prompts import NamedPrompt


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add the choice of several seeds."""
    text = "in place of --seed: all arms decode every prompt once with each, at a temperature above 0 (--seed alone)"
    parser.add_argument("--seeds", type=int, nargs="+", metavar="SEED", help=text)


def seeds_of(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds that a command line asks for.

    Raises:
        ValueError: there are several of greedy decoding, or one stands twice.
    """
    asked = arguments.get("seeds")
    if asked is None:
        return (arguments["seed"],)
    if len(set(asked)) < len(asked):
        raise ValueError(f"--seeds {' '.join(map(str, asked))}: a seed stands twice; give each once")
    if arguments["temperature"] == 0:
        raise ValueError("--seeds: greedy output depends on no seed; give a --temperature above 0, or leave it out")
    return tuple(asked)


def prompts_by_seed(prompts: Sequence[NamedPrompt], seeds: Sequence[int]) -> dict[int, list[NamedPrompt]]:
    """Return seed -> its prompts; those of a later seed than the first have it in their names."""
    first, *others = seeds
    return {first: [*prompts]} | {seed: [_rename(prompt, seed) for prompt in prompts] for seed in others}


def _rename(prompt: NamedPrompt, seed: int) -> NamedPrompt:
    named = replace(prompt, name=f"{prompt.name}, seed {seed}")
    return replace(named, after=f"{named.after}, seed {seed}") if isinstance(named, LaterTurn) else named


def units_by_seed(
    prompts: Mapping[int, Sequence[NamedPrompt]], batch_size: int, problems: Mapping[int, str]
) -> list[Unit]:
    """Return the units of one seed after the other.

    Args:
        prompts: of ``prompts_by_seed``.
        batch_size, problems: see ``units_of``; the place of a prompt is the one among those of its seed.

    Guarantee: with n units a seed, unit i holds the prompts of unit i modulo n, with another seed.
    """
    units: list[Unit] = []
    for seed, own in prompts.items():
        start = len(units)
        units += [replace(unit, index=start + unit.index, seed=seed) for unit in units_of(own, batch_size, problems)]
    return units
