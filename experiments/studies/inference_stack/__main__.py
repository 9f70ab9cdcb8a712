"""From naive decoding to speculation, one idea an arm, on one gate: the same ids.

``python -m experiments.studies.inference_stack`` decodes greedily with every arm at every batch size. It measures first
calls, in new processes with an empty cache of torch's compiler; compares the ids of all prompts of the gate with the
naive arm's; and times interleaved rounds. It prints tables and draws ``stack.png``. An arm that writes other ids is
printed as failed, not as fast. All figures are in ``results.json`` in --out, and figures in it are not measured again,
so an interrupted run goes on; --fresh begins anew.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack

from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.studies.inference_stack import stack_tables
from experiments.studies.inference_stack.fresh import CACHE
from experiments.studies.inference_stack.stack_arms import prepare_compiler
from experiments.studies.inference_stack.stack_registry import STACK
from experiments.studies.inference_stack.stack_study import (
    NAIVE_IDS,
    TIME,
    StackOptions,
    StackStudy,
    choose_arms,
)
from experiments.studies.inference_stack.stack_timing import measure_rooflines, medians
from experiments.studies.inference_stack.study_frame import open_results, parse_study, study_report
from specdec.stats.report import Shown, show


def report(study: StackStudy) -> list[Shown]:
    """Return all tables."""
    parts = {
        "Best arm over the naive one": stack_tables.ratio_rows(study),
        **{f"Batch {batch}": stack_tables.stack_rows(study, batch) for batch in study.options.batches},
        "Who drives the loop": stack_tables.loop_rows(study),
        "When a first call has paid for itself": stack_tables.payback_rows(study),
        **{f"Ablation: {name}": rows for name, rows in stack_tables.ablation_rows(study).items()},
        "Arms": stack_tables.idea_rows(study),
    }
    return study_report(study.options, study.subject, study.results, parts, study.failures)


def draw(study: StackStudy) -> None:
    """Write the picture of the stack; an arm without times, or that has not passed the gate, has no bar."""
    panels = {}
    names = [name for name in (*STACK, *study.subject.sources) if name in study.arms]
    for batch in study.options.batches:
        timed = {name: study.times(batch, name) for name in names}
        new = batch * study.subject.num_new
        bars = [(name, None if found is None else new / medians(found)["seconds"]) for name, found in timed.items()]
        if any(speed is not None for _, speed in bars):
            panels[f"batch {batch}"] = bars
    if panels:
        stack_tables.draw(study.options.out / "stack.png", panels, sum(name in STACK for name in names))


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print the tables, draw the picture; 1 if an arm failed."""
    options = parse_study(StackOptions, "inference_stack", __doc__, argv)
    with ExitStack() as stack:
        with refusing("inference_stack"):
            subject, arms = choose_arms(options)
            results = stack.enter_context(open_results(options, NAIVE_IDS))
        study = StackStudy(options, results, subject, arms)
        os.environ[CACHE] = str((options.out / "compiler").resolve())
        prepare_compiler()
        if TIME in options.parts:
            measure_rooflines(study.subject, study.results)
        study.run()
        draw(study)
        show(report(study))
        return int(bool(study.failures))


if __name__ == "__main__":
    as_program(main)
