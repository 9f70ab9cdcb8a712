"""Where a run comes from: its command, its machine, its versions."""

import shlex
from typing import Any

from experiments.report import markup
from experiments.report.runs import Run

_MACHINE = ("processor", "cores", "threads", "device", "backend", "platform", "time", "commit", "python")
# A run that stands is not run afresh.
_LEFT_OUT = ("fresh",)


def _words(value: Any) -> list[str]:
    """Return a value as a command line gives it."""
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _flag(name: str, experiment: str) -> str:
    """Return the option of an argument; strategies that share a command line have their name before their own."""
    strategy, _, key = name.rpartition(".")
    prefix = f"{strategy}-" if strategy and strategy != experiment else ""
    return f"--{prefix}{key}".replace("_", "-")


def command_of(run: Run) -> str:
    """Return the command that does a run again, with every option that was not left open."""
    experiment = str(run.facts["experiment"])
    words = ["python", "-m", f"experiments.{experiment}"]
    for name, value in run.arguments.items():
        # Without peers the option is not given: it takes one at least.
        if value is not None and name not in _LEFT_OUT and (name, value) != ("peer", []):
            words += [_flag(name, experiment), *_words(value)]
    return shlex.join(words)


def provenance(run: Run) -> str:
    """Return the command, the machine and the versions of a run, as HTML."""
    machine = {name: run.facts.get(name) for name in _MACHINE}
    packages = {name: version for name, version in run.facts.get("packages", {}).items() if version is not None}
    command = f"<pre>{markup.escape(command_of(run))}</pre>"
    return f"{command}{markup.pairs(machine)}{markup.folded('Packages', markup.pairs(packages))}"
