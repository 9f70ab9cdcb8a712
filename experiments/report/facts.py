"""Where a run comes from: its command, its machine, its versions."""

import shlex
from typing import Any

from experiments.report import markup
from experiments.report.runs import Run
from experiments.strategies import STRATEGIES
from specdec.stats.report import provenance as facts_now

_MACHINE = ("processor", "cores", "threads", "device", "backend", "platform", "time", "commit", "python")
# A run that stands is not run afresh.
_LEFT_OUT = ("fresh",)


def _is_asked(name: str, value: Any, experiment: str) -> bool:
    """Tell whether an argument is an option of an experiment's command line, and was not left open."""
    strategy = name.rpartition(".")[0]
    # An experiment of one strategy has no options of others: it derives their arguments from its own.
    is_derived = experiment in STRATEGIES and strategy not in ("", experiment)
    # These options take one value at least.
    is_empty = name in ("peer", "template_arg") and value == []
    return value is not None and not is_derived and name not in _LEFT_OUT and not is_empty


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
        if _is_asked(name, value, experiment):
            words += [_flag(name, experiment), *_words(value)]
    return shlex.join(words)


def commit_note(run: Run) -> str:
    """Return which code computed a run's tables for the page, if it is not surely that of the run; else nothing."""
    now, then = facts_now({})["commit"], run.facts.get("commit")
    if now == then and then is not None and "+" not in then:
        return ""
    here, there = (f"commit {commit}" if commit else "an unknown commit" for commit in (now, then))
    return (
        f"Tables, reasons and pictures were computed for this page by {here}, from times and counts that {there} "
        "measured."
    )


def provenance(run: Run) -> str:
    """Return the command, the machine, the prompts and the versions of a run, as HTML."""
    machine = {name: run.facts.get(name) for name in _MACHINE}
    packages = {name: version for name, version in run.facts.get("packages", {}).items() if version is not None}
    command = f"<pre>{markup.escape(command_of(run))}</pre>"
    folded = f"{_prompts(run)}{markup.fold('Packages', markup.pairs(packages))}"
    return f"{command}{markup.pairs(machine)}{folded}"


def _prompts(run: Run) -> str:
    """Return under which template the prompts were put, where answers end, and the hash of the ids, as HTML."""
    facts = dict(run.facts.get("chat") or {})
    template = facts.pop("template", None)
    own = {"template": None} if template is None else {f"template, {name}": value for name, value in template.items()}
    shown = {name: str(value) for name, value in (own | facts).items() if value not in (None, [], {})}
    return markup.fold("Prompts", markup.pairs(shown)) if shown else ""
