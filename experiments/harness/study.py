"""An experiment under way: its plan, its folder and journal, its prompts; how it begins, measures and ends."""

import json
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from tqdm import tqdm

from experiments.harness.arguments import fingerprint, prompts_of
from experiments.harness.arms import decodable_prompts
from experiments.harness.conversations import as_conversations, prompt_facts
from experiments.harness.journal import AnyPiece, Journal, Piece, hold_journal
from experiments.harness.models import load_oracle
from experiments.harness.settings import without_full_collections
from experiments.harness.thread_check import take_threads
from experiments.harness.turns import prompts_by_seed, seeds_of
from oracles.checkpoints.placement import checkpoint_place
from specdec import Oracle
from specdec.prompts import NamedPrompt, load_prompts
from specdec.stats.report import asked_form, code_commit, device_name, processor, provenance
from specdec.system import write_whole

# Returns the prompts that arguments ask for.
Choose = Callable[[Mapping[str, Any]], list[NamedPrompt]]


@dataclass(frozen=True)
class Plan:
    """What an experiment is: its name, its arguments, and where its results go.

    Attributes:
        name: of the experiment.
        arguments: option -> value.
        strategies: names of those that ``running.build_arms`` sets beside plain decoding.
        peers: other programs beside them.
        variants: whether the strategies' variants are arms too.
        asked: whether the strategies were asked for by name; if not, those that the oracle cannot have are left out.
        way: command that goes on with it after an interruption; None: that of this process.
    """

    name: str
    arguments: dict[str, Any]
    strategies: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    variants: bool = False
    asked: bool = True
    way: str | None = None


def prepare(arguments: Mapping[str, Any], choose: Choose | None = None) -> list[NamedPrompt]:
    """Set the number of threads, warn if they lack cores, and return the prompts asked for; see ``Study.open``."""
    take_threads(arguments["threads"])
    if choose is not None:
        return choose(arguments)
    return load_prompts(prompts_of(arguments), arguments["column"], arguments["num_prompts"])


def folder_of(plan: Plan, prompts: Sequence[NamedPrompt]) -> Path:
    """Return where an experiment's results go: its name, and a key of what is measured, on which kind of machine.

    Raises:
        ValueError: torch knows no such device.
    """
    machine = processor(), device_name(checkpoint_place(plan.arguments["device"]))
    key = fingerprint(plan.arguments, [plan.name, *machine, *prompts])
    return Path(plan.arguments["out"]) / f"{plan.name}-{key}"


@dataclass(frozen=True)
class Study:
    """What an experiment measures, and where its results lie.

    Attributes:
        plan: of the experiment.
        journal: of its units; the results go into its folder.
        oracle: that is measured.
        prompts: as they are put to it.
    """

    plan: Plan
    journal: Journal
    oracle: Oracle
    prompts: list[NamedPrompt]

    @staticmethod
    def open(
        plan: Plan,
        stack: ExitStack,
        load: Callable[[Mapping[str, Any]], Oracle] = load_oracle,
        choose: Choose | None = None,
    ) -> "Study":
        """Return the experiment of a plan, whose folder is held until the stack unwinds.

        Args:
            plan: of the experiment.
            stack: see above.
            load: returns the oracle that the arguments ask for.
            choose: returns their prompts; None: ``--prompts`` names them.

        Raises:
            ValueError: the arguments or the form of tables that the environment asks for cannot be used, or two prompts
                would have one name.
        """
        arguments = plan.arguments
        seeds = seeds_of(arguments)
        asked_form()  # now: at the end it would cost the tables
        code_commit()  # now: files may change while the run goes on
        prompts = prepare(arguments, choose)
        fresh = arguments.get("fresh", False)
        journal = stack.enter_context(hold_journal(folder_of(plan, prompts), fresh, plan.way))
        oracle = load(arguments)
        asked = as_conversations(prompts, oracle, arguments)
        prompts_by_seed(asked, seeds)  # now: some studies measure before they ask for it
        return Study(plan, journal, oracle, asked)

    @property
    def folder(self) -> Path:
        """Where the results lie."""
        return self.journal.path.parent

    @cached_property
    def fitting(self) -> list[NamedPrompt]:
        """The prompts that can be decoded; the others are named on stderr, with the reason.

        Raises:
            ValueError: there is none.
        """
        return decodable_prompts(self.oracle, self.prompts, self.plan.arguments["max_new_tokens"])

    @cached_property
    def facts(self) -> dict[str, Any]:
        """Where the figures come from."""
        facts = provenance(self.plan.arguments, self.oracle.device, self.oracle.backend)
        return facts | {"chat": prompt_facts(self.oracle, self.fitting)}

    @property
    def machine(self) -> str:
        """The machine, and how the model computes on it, as a sentence without its full stop."""
        return f"{self.facts['processor']}, {self.facts['backend']} passes, threads {self.facts['threads']}"

    def measure(self, units: Sequence[AnyPiece], measure_one: Callable[[AnyPiece], dict[str, Any]]) -> list[Any]:
        """Measure what the journal lacks; return the entries of the units that did not fail.

        A unit that fails is recorded with its error, and the others go on.

        Args:
            units: of the experiment.
            measure_one: returns what is kept of a unit, besides ``Piece.entry``.
        """
        journal, left = self.journal, [unit for unit in units if not self.journal.is_done(unit.index)]
        num_done = len(units) - len(left)
        if num_done:
            print(f"resumed: {num_done} of {len(units)} units stand in {journal.path}", file=sys.stderr)
        with without_full_collections():
            for unit in tqdm(left, desc=self.plan.name, initial=num_done, total=len(units), unit="unit"):
                try:
                    entry = unit.entry(unit.problem) if unit.problem else unit.entry() | measure_one(unit)
                except Exception:  # whatever failed is journalled, other prompts go on, and the run ends with status 1
                    entry = unit.entry(traceback.format_exc())
                journal.append(entry)
        entries = [journal.entries[unit.index] for unit in units]
        return [entry for entry in entries if entry["error"] is None]

    def write(self, name: str, found: Mapping[str, Any], indent: int | None = 1) -> None:
        """Write what was found into a JSON file of the folder, after where it comes from."""
        write_whole(self.folder / name, json.dumps({"provenance": self.facts, **found}, indent=indent) + "\n")

    def finish(self, units: Sequence[Piece] = (), problems: Sequence[str] = ()) -> list[str]:
        """End the journal if there are no problems and no unit failed; return what went wrong, for ``tell``.

        It comes before anything is printed, so the experiment is complete even if nobody reads the output to its end.
        """
        entries = [self.journal.entries[unit.index] for unit in units]
        failed = [f"{entry['kind']}: {entry['error'].strip().splitlines()[-1]}" for entry in entries if entry["error"]]
        if not (wrong := [*problems, *failed]):
            self.journal.close()
        return wrong

    def tell(self, wrong: Sequence[str]) -> int:
        """Say where the results lie, and what went wrong; return the status: 1 if something did."""
        print(f"\nWritten: {self.folder}")
        if wrong:
            print("\n".join(["FAILED:", *wrong]), file=sys.stderr)
        return 1 if wrong else 0
