"""What fewer bits cost and save: every precision as an oracle, and as a draft of the float32 oracle.

``python -m experiments.precision`` decodes greedily with every precision of a checkpoint at every batch size and counts
the outputs that differ from the float32 oracle's, measures bits per byte of held-out code and speeds in interleaved
rounds, and drafts for the float32 oracle with views of fewer bits, whose text must stay what it was. All figures lie in
``results.json`` in --out, and what is there is not measured again, so that a run that was interrupted goes on; --fresh
begins anew.
"""

import sys
from collections.abc import Sequence
from contextlib import ExitStack

import torch

from experiments.bench.sections import machine
from experiments.harness.arguments import refusing
from experiments.harness.claims import claim_folder
from experiments.harness.thread_check import warn_of_contention
from experiments.inference_stack.stack_results import FIGURES, Results
from experiments.inference_stack.subjects import subject_named
from experiments.precision import precision_tables
from experiments.precision.precision_options import NOT_MEASURED, Options, parse
from experiments.precision.precision_study import Study
from specdec.stats import Table
from specdec.stats.report import Shown, provenance, show


def report(study: Study) -> list[Shown]:
    """Return all tables."""
    results, options, num_new = study.results, study.options, study.subject.num_new
    batches, arms = options.batches, options.arms
    parts = {
        "Precisions": precision_tables.kind_rows(arms),
        "As oracles: what they write": precision_tables.text_rows(results, batches, arms),
        **{
            f"As oracles: speed at batch {batch}": precision_tables.speed_rows(results, batch, arms, num_new)
            for batch in batches
        },
        **{
            f"As drafts of the float32 oracle: {subject}": precision_tables.draft_rows(
                results, subject, options.draft_batches, options.draft_names
            )
            for subject in options.draft_subjects
        },
    }
    told: list[Shown] = [
        f"{machine()}; threads {options.threads}; {options.subject}: prompts of {study.subject.prompt_length} ids, "
        f"{num_new} new ones; {options.rounds} rounds."
    ]
    if len(results.commits) > 1:
        told.append(f"The figures were measured at several commits: {', '.join(results.commits)}.")
    told += [Table(title, rows) for title, rows in parts.items() if rows]
    told += options.not_run
    failed = precision_tables.failures(results, options)
    return [*told, *(["\n".join(["FAILED:", *(f"- {line}" for line in failed)])] if failed else [])]


def open_study(options: Options, signature: dict[str, object]) -> Study:
    """Return the study, after checking what is asked for against the figures that are there."""
    subject = subject_named(options.subject, "cpu", options.num_prompts, options.gate_prompts)
    if options.fresh:
        (options.out / FIGURES).unlink(missing_ok=True)
    kept = {name: value for name, value in vars(options).items() if name not in NOT_MEASURED}
    return Study(options, Results(options.out, kept, str(signature["commit"])), subject)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; return 1 if something failed."""
    with ExitStack() as stack:
        with refusing("precision"):
            options = parse(argv, __doc__)
            stack.enter_context(claim_folder(options.out))
            torch.set_num_threads(options.threads)
            warn_of_contention()
            signature = provenance({name: str(value) for name, value in vars(options).items()}, "cpu")
            study = open_study(options, signature)
        study.run()
        study.results.sign(signature)
        show(report(study))
    return int(bool(precision_tables.failures(study.results, options)))


if __name__ == "__main__":
    sys.exit(main())
