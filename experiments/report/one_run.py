"""The section of one run: what it concludes, verdicts, pictures, reasons, its tables, where it comes from."""

from collections.abc import Sequence
from typing import Any

from experiments.findings.causes import cause_sentences
from experiments.findings.legends import OWN_TABLES, UNTIMED, against_legend, against_note
from experiments.findings.summary import against_rows, heading_of, headline, tables_of
from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import speed_words
from experiments.report import markup
from experiments.report.facts import commit_note, provenance
from experiments.report.figures import figures_of, section_with
from experiments.report.length_tables import drafts_chains, longest_of
from experiments.report.pictures import pictures_of
from experiments.report.runs import Run
from experiments.report.section import Section
from experiments.report.why import sentences
from specdec.stats import Table

_SHORTER = (
    "What is said of shorter drafts than an arm's own charges drafting in proportion to their length: too little, "
    "where a draft costs something once. experiments.advise measures both."
)


def verdicts(run: Run) -> list[Table]:
    """Return the speed of every arm over plain decoding, both ratios, and the verdict; none without times."""
    rows = against_rows(run.outcome, PLAIN) if run.is_timed else []
    return [Table("Verdicts", rows, against_note(PLAIN), legend=against_legend(PLAIN))] if rows else []


def further(run: Run, common: Sequence[Table]) -> list[Table]:
    """Return the tables that an experiment has beside those of all experiments."""
    known = {one.key for one in common}
    return [
        Table(name, rows, legend=OWN_TABLES.get(name, {}))
        for name, rows in run.summary.items()
        if name not in known and isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows)
    ]


def _body(one: Table) -> str:
    notes = [markup.paragraph(text, "muted") for text in (*one.note.split("\n\n"), one.explanation) if text]
    return "\n".join([markup.table(one.rows, one.title), *notes])


def _why(run: Run) -> str:
    if not run.is_timed:
        return markup.paragraph(f"No reasons of speed: {UNTIMED}")
    told = {arm: sentences(run, arm) for arm in run.drafting}
    told |= {arm: words for arm in run.peers if (words := cause_sentences(run.outcome, arm))}
    titles = {arm: f"{arm}: {speed_words(run.outcome, arm)}" for arm in told}
    told |= {arm: [f"Refused: {words}"] for arm, words in run.facts.get("refused", {}).items()}
    arms = (markup.fold(titles.get(arm, arm), markup.items(texts), "reasons") for arm, texts in told.items())
    is_told = any(drafts_chains(stats) and longest_of(stats) > 1 for stats in run.drafting.values())
    return f"{''.join(arms)}{markup.paragraph(_SHORTER) if is_told else ''}"


def data_of(run: Run) -> dict[str, Any]:
    """Return a run's data in the page: its summary, and the verdicts that follow from its units."""
    return {"summary": run.summary, "verdicts": [row for one in verdicts(run) for row in one.rows]}


def section_of(run: Run) -> Section:
    """Return the section of a run."""
    common = tables_of(run.outcome, run.facts)
    pictures = pictures_of(run)
    own, *others = [*verdicts(run), *common, *further(run, common)]
    contents = {
        own.title: _body(own),
        "Pictures": figures_of(pictures, run.anchor),
        "Why": _why(run),
        **{one.title: _body(one) for one in others},
        "Provenance": provenance(run),
    }
    parts = {f"{run.anchor}-{number}": title for number, title in enumerate(contents, start=1)}
    problems = run.summary["problems"]
    body = [
        *([markup.paragraph("The run ended with problems:", "lead"), markup.items(problems)] if problems else []),
        *(markup.paragraph(text, "lead") for text in headline(run.outcome, run.is_timed)),
        markup.paragraph(heading_of(run.outcome, run.facts), "muted"),
        *(markup.paragraph(text, "muted") for text in [commit_note(run)] if text),
        *(f"{markup.heading(title, anchor)}\n{contents[title]}" for anchor, title in parts.items()),
    ]
    return section_with(run.anchor, run.label, "\n".join(body), pictures, data_of(run), parts)
