"""What fewer bits cost and save: every precision as an oracle, and as a draft for the float32 oracle.

``python -m experiments.studies.precision`` decodes greedily with every precision of a checkpoint at every batch size
and counts the outputs that differ from the float32 oracle's. It measures bits per byte of held-out code, and speeds in
interleaved rounds. It also lets views of fewer bits draft for the float32 oracle, whose text must not change. All
figures are in ``results.json`` in --out, and figures in it are not measured again, so an interrupted run goes on;
--fresh begins anew.
"""

from collections.abc import Sequence
from contextlib import ExitStack

from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.studies.inference_stack.study_frame import open_results, study_report
from experiments.studies.inference_stack.subjects import build_subject
from experiments.studies.precision import precision_tables
from experiments.studies.precision.precision_arms import parse
from experiments.studies.precision.precision_study import PrecisionStudy
from specdec.stats.report import Shown, show


def report(study: PrecisionStudy) -> list[Shown]:
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
    failed = precision_tables.failures(results, options)
    return study_report(options, study.subject, results, parts, failed, options.not_run)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, and print the tables; return 1 if something failed."""
    with ExitStack() as stack:
        with refusing("precision"):
            options = parse(argv, __doc__)
            subject = build_subject(options.subject, "cpu", options.num_prompts, options.gate_prompts)
            study = PrecisionStudy(options, stack.enter_context(open_results(options)), subject)
        study.run()
        show(report(study))
    return int(bool(precision_tables.failures(study.results, options)))


if __name__ == "__main__":
    as_program(main)
