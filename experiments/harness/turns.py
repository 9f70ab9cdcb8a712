"""Later turns of conversations, each put after plain decoding's answer to the turn before, so that arms stay paired."""

from collections.abc import Sequence
from dataclasses import replace

from experiments.findings.colouring import steps_in
from experiments.harness.arms import PLAIN, Unit
from experiments.harness.conversations import LaterTurn
from experiments.harness.journal import Journal
from specdec.prompts import NamedPrompt


class Turns:
    """What has been said in the conversations of an experiment.

    Args:
        prompts: of the experiment, every turn after those before it.
        journal: of its units; it grows while they are measured.
    """

    def __init__(self, prompts: Sequence[NamedPrompt], journal: Journal) -> None:
        self._prompts, self._journal = {prompt.name: prompt for prompt in prompts}, journal

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
        """Return the prompts with all that was said before them, but those after an answer that is missing."""
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
        columns = self._journal.entries[unit]["arms"][PLAIN]["records"]
        return [token for step in steps_in(columns, place) for token in step.tokens]

    def _entry(self, name: str) -> tuple[int, int]:
        """Return the unit that answered a prompt, and the prompt's place in it."""
        for unit, entry in self._journal.entries.items():
            if entry["error"] is None and name in entry["prompts"]:
                return unit, entry["prompts"].index(name)
        raise ValueError(f"{name} has no answer that its next turn could go on from")
