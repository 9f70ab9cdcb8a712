"""The section of one run: what it concludes, verdicts, pictures, reasons, its tables, where it comes from."""

import html
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from exactspec.listing import modules
from experiments.harness.arms import PLAIN
from experiments.harness.findings.causes import cause_sentences
from experiments.harness.findings.run_tables import against_table
from experiments.harness.findings.summary import UNTIMED, heading_of, headline, tables_of
from experiments.harness.run_outcome import speed_words
from experiments.peers import strategies_read
from experiments.report import markup
from experiments.report.page import Section, figures_of, section_with
from experiments.report.pictures import pictures_of
from experiments.report.runs import Run
from experiments.report.why import drafts_chains, longest_of, sentences
from experiments.spec_bench.spec_bench_tables import LEGENDS
from specdec.stats import Table
from specdec.stats.report import provenance as facts_now

_MACHINE = ("processor", "cores", "threads", "device", "backend", "platform", "time", "commit", "python")
# A run that stands is not run afresh.
_LEFT_OUT = ("fresh",)


def _arguments_of(run: Run) -> dict[str, Any]:
    """Return the arguments of a run, without strategies that its oracle could not have and nobody asked for."""
    found, refused = dict(run.arguments), run.facts.get("refused", {})
    if found.get("strategies") is not None:
        found["strategies"] = [name for name in found["strategies"] if name not in refused]
    return found


def _is_asked(arguments: Mapping[str, Any], experiment: str, name: str) -> bool:
    """Tell whether an argument is an option that the run read, and that was given."""
    # An experiment of one strategy derives the arguments of others from its own; options of idle ones are refused.
    ran, peers = arguments.get("strategies") or (), arguments.get("peer") or ()
    is_read = name.rpartition(".")[0] in {"", experiment, *ran, *strategies_read(peers)}
    # These options take one value at least.
    is_empty = name in ("peer", "strategies", "template_arg") and arguments[name] == []
    return arguments[name] is not None and is_read and name not in _LEFT_OUT and not is_empty


def _words(value: Any) -> list[str]:
    """Return a value as a command line gives it."""
    if isinstance(value, bool):
        return ["yes" if value else "no"]
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def command_of(run: Run) -> str:
    """Return the command that repeats a run, with every option that it read and that was given."""
    experiment, arguments = str(run.facts["experiment"]), _arguments_of(run)
    words = ["python", "-m", modules().get(experiment, f"experiments.{experiment}")]
    for name, value in arguments.items():
        if _is_asked(arguments, experiment, name):
            words += [run.flag(name), *_words(value)]
    return shlex.join(words)


def commit_note(run: Run) -> str:
    """Return which code computed a run's tables for the page; nothing if it is certainly the run's own."""
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
    command = f"<pre>{html.escape(command_of(run))}</pre>"
    folded = f"{_prompts(run)}{markup.fold('Packages', markup.pairs(packages))}"
    return f"{command}{markup.pairs(machine)}{folded}"


def _prompts(run: Run) -> str:
    """Return under which template the prompts were put, where answers end, and the hash of the ids, as HTML."""
    facts = dict(run.facts.get("chat") or {})
    template = facts.pop("template", None)
    own = {"template": None} if template is None else {f"template, {name}": value for name, value in template.items()}
    shown = {name: str(value) for name, value in (own | facts).items() if value not in (None, [], {})}
    return markup.fold("Prompts", markup.pairs(shown)) if shown else ""


_SHORTER = (
    "What is said of shorter drafts than an arm's own takes drafting to cost in proportion to their length. That is "
    "too little if a draft also has a fixed cost; experiments.advise measures both."
)


def verdicts(run: Run) -> list[Table]:
    """Return both ratios of every arm over plain decoding, and the verdict; nothing without times."""
    found = against_table(run.outcome, PLAIN) if run.is_timed else None
    return [] if found is None else [replace(found, title="Verdicts")]


def further(run: Run, common: Sequence[Table]) -> list[Table]:
    """Return the tables that an experiment has besides the common ones."""
    known = {one.key for one in common}
    return [
        Table(name, rows, legend=LEGENDS.get(name, {}))
        for name, rows in run.summary.items()
        if name not in known and isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
    ]


def _body(one: Table) -> str:
    notes = [markup.paragraph(text, "muted") for text in (*one.note.split("\n\n"), one.explanation) if text]
    return "\n".join([markup.table(one.rows, one.title), *notes])


def _explanation(run: Run) -> str:
    if not run.is_timed:
        return markup.paragraph(f"No reasons of speed: {UNTIMED}")
    told = {arm: sentences(run, arm) for arm in run.drafting}
    told |= {arm: words for arm in run.peers if (words := cause_sentences(run.outcome, arm))}
    titles = {arm: f"{arm}: {speed_words(run.outcome, arm)}" for arm in told}
    told |= {arm: [f"Refused: {words}"] for arm, words in run.facts.get("refused", {}).items()}
    arms = (markup.fold(titles.get(arm, arm), markup.items(texts), "reasons") for arm, texts in told.items())
    is_told = any(drafts_chains(stats) and longest_of(stats) > 1 for stats in run.drafting.values())
    return f"{''.join(arms)}{markup.paragraph(_SHORTER) if is_told else ''}"


def section_of(run: Run) -> Section:
    """Return the section of a run."""
    common = tables_of(run.outcome, run.facts)
    pictures = pictures_of(run)
    told = verdicts(run)
    own, *others = [*told, *common, *further(run, common)]
    contents = {
        own.title: _body(own),
        "Pictures": figures_of(pictures, run.anchor),
        "Why": _explanation(run),
        **{one.title: _body(one) for one in others},
        "Provenance": provenance(run),
    }
    problems = run.summary["problems"]
    lead = [
        *([markup.paragraph("The run ended with problems:", "lead"), markup.items(problems)] if problems else []),
        *(markup.paragraph(text, "lead") for text in headline(run.outcome, run.is_timed)),
        markup.paragraph(heading_of(run.outcome, run.facts), "muted"),
        *(markup.paragraph(text, "muted") for text in [commit_note(run)] if text),
    ]
    data = {"summary": run.summary, "verdicts": [row for one in told for row in one.rows]}
    return section_with(run.anchor, run.label, contents, pictures, data, lead)
