"""A study of a loaded model that is no run of paired arms: its folder and journal, its prompts, its JSON file."""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from experiments.harness.arms import those_that_fit
from experiments.harness.conversations import as_conversations, prompt_facts
from experiments.harness.journal import AnyPiece, Journal, Piece, hold_journal
from experiments.harness.models import AnyModel, load_oracle
from experiments.harness.running import Plan, folder_of, measure_all, prepare
from specdec.prompts import NamedPrompt
from specdec.stats.report import provenance
from specdec.system import write_whole


@dataclass(frozen=True)
class Study:
    """What a study measures, and where its results lie.

    Attributes:
        plan: of the study.
        journal: of its units; the results go into its folder.
        oracle: that is measured.
        prompts: those that it can decode, as they are put to it.
    """

    plan: Plan
    journal: Journal
    oracle: AnyModel
    prompts: list[NamedPrompt]

    @staticmethod
    def open(plan: Plan, stack: ExitStack) -> "Study":
        """Return the study of a plan, whose folder is held until the stack unwinds.

        Raises:
            ValueError: the arguments cannot be used.
        """
        arguments = plan.arguments
        prompts = prepare(arguments)
        journal = stack.enter_context(hold_journal(folder_of(plan, prompts), arguments.get("fresh", False)))
        oracle = load_oracle(arguments)
        asked = as_conversations(prompts, oracle, arguments)
        return Study(plan, journal, oracle, those_that_fit(oracle, asked, arguments["max_new_tokens"]))

    @property
    def folder(self) -> Path:
        """Where the results lie."""
        return self.journal.path.parent

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Where the figures come from."""
        facts = provenance(self.plan.arguments, self.oracle.device, self.oracle.backend)
        return facts | {"chat": prompt_facts(self.oracle, self.prompts)}

    @property
    def machine(self) -> str:
        """The machine, and how the model computes on it, as a sentence without its full stop."""
        return f"{self.facts['processor']}, {self.facts['backend']} passes, threads {self.facts['threads']}"

    def measure(self, units: Sequence[AnyPiece], measure_one: Callable[[AnyPiece], dict[str, Any]]) -> list[Any]:
        """Measure what the journal lacks; return the entries of the units that did not fail."""
        measure_all(units, self.journal, measure_one, self.plan.name)
        entries = [self.journal.entries[unit.index] for unit in units]
        return [entry for entry in entries if entry["error"] is None]

    def write(self, name: str, found: Mapping[str, Any], indent: int | None = 1) -> None:
        """Write what was found into a JSON file of the folder, after where it comes from."""
        write_whole(self.folder / name, json.dumps({"provenance": self.facts, **found}, indent=indent) + "\n")

    def finish(self, units: Sequence[Piece], problems: Sequence[str] = ()) -> int:
        """Say where the results lie, and end the journal; return 1 if there are problems, or if a unit failed."""
        print(f"\nWritten: {self.folder}")
        if problems:
            print("\n".join(["FAILED:", *problems]), file=sys.stderr)
            return 1
        return self.journal.finish(unit.index for unit in units)
