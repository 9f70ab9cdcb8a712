"""Turns of conversations, and several seeds of sampling: all arms decode every prompt once with each seed.

Each (prompt, seed) is then measured, and intervals count prompts, their seeds pooled. Outputs of one prompt share its
difficulty, so they are not independent measurements: to count each by itself would make intervals too narrow. A seed
needs no cluster of its own: streams are keyed by seed and prompt, and two prompts share no draw.
"""

import argparse
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from experiments.harness.arguments import seed_number
from experiments.harness.arms import PLAIN, Unit, units_of
from experiments.harness.conversations import LaterTurn
from experiments.harness.draw_checks import texts_in
from experiments.harness.journal import Journal
from specdec.prompts import NamedPrompt


def add_seeds(parser: argparse.ArgumentParser) -> None:
    """Add the choice of several seeds."""
    text = "in place of --seed: every arm decodes every prompt once with each, at a temperature above 0 (--seed alone)"
    parser.add_argument("--seeds", type=seed_number, nargs="+", metavar="SEED", help=text)


def seeds_of(arguments: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the seeds that a command line asks for.

    Raises:
        ValueError: there are several for greedy decoding, or one is given twice.
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
    """Return seed -> its prompts; after the first seed, prompts have the seed in their names.

    Raises:
        ValueError: two of all these prompts would have one name.
    """
    first, *others = seeds
    found = {first: [*prompts]} | {seed: [_rename(prompt, seed) for prompt in prompts] for seed in others}
    names = Counter(prompt.name for part in found.values() for prompt in part)
    if twice := next((name for name, count in names.items() if count > 1), None):
        raise ValueError(
            f"--prompts: two prompts would be called {twice!r}, as later turns and seeds are; give one another id"
        )
    return found


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
        units += [replace(unit, index=start + unit.index) for unit in units_of(own, batch_size, problems, seed)]
    return units


class Turns:
    """What has been said in the conversations of an experiment.

    Args:
        by_seed: seed -> prompts of the experiment, every turn after those before it.
        journal: of its units; it grows while they are measured.

    Attributes:
        by_seed: see above.
    """

    def __init__(self, by_seed: Mapping[int, Sequence[NamedPrompt]], journal: Journal) -> None:
        self.by_seed, self._journal = by_seed, journal
        self._prompts = {prompt.name: prompt for part in by_seed.values() for prompt in part}

    @property
    def prompts(self) -> list[NamedPrompt]:
        """All prompts, those of one seed after those of another."""
        return [*self._prompts.values()]

    def complete(self, unit: Unit) -> Unit:
        """Return a unit whose prompts hold the answers before them.

        Raises:
            ValueError: one of these was not measured; with the prompt's name.
        """
        return replace(unit, prompts=tuple(map(self.complete_prompt, unit.prompts)))

    def complete_prompt(self, prompt: NamedPrompt) -> NamedPrompt:
        """Return a prompt with all that was said before it; errors as of ``complete``."""
        if not isinstance(prompt, LaterTurn):
            return prompt
        before = self.complete_prompt(self._prompts[prompt.after])
        answer = {"role": "assistant", "content": self._answer(prompt.after)}
        return replace(prompt, messages=(*before.messages, answer, *prompt.messages))

    def complete_all(self) -> list[NamedPrompt]:
        """Return the prompts with all that was said before them, except those after a missing answer."""
        found = []
        for prompt in self._prompts.values():
            try:
                found.append(self.complete_prompt(prompt))
            except ValueError:  # its unit says so
                continue
        return found

    def unit_of(self, prompt: NamedPrompt) -> int:
        """Return the unit in which a prompt's conversation began."""
        while isinstance(prompt, LaterTurn):
            prompt = self._prompts[prompt.after]
        return self._entry(prompt.name)[0]

    def _answer(self, name: str) -> list[int]:
        """Return the ids that plain decoding answered to a prompt, in its first round."""
        unit, place = self._entry(name)
        entry = self._journal.entries[unit]
        return texts_in(entry["arms"][PLAIN]["records"], len(entry["prompts"]))[place]

    def _entry(self, name: str) -> tuple[int, int]:
        """Return the unit that answered a prompt, and the prompt's place in it."""
        for unit, entry in self._journal.entries.items():
            if entry["error"] is None and name in entry["prompts"]:
                return unit, entry["prompts"].index(name)
        raise ValueError(f"{name} has no answer that its next turn could go on from")
