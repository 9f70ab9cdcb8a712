"""From naive decoding to speculation, one idea an arm, on one gate: the same ids.

``python -m experiments.inference_stack`` decodes greedily with every arm at every batch size: first calls in new
processes with an empty cache of torch's compiler, then the ids of all prompts of the gate against those of the naive
arm, then times in interleaved rounds. It prints tables and draws ``stack.png``. An arm that writes other ids is printed
as failed, not as fast. All figures lie in ``results.json`` in --out, and what is there is not measured again, so that a
run that was interrupted goes on; --fresh begins anew.
"""

import os
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import torch

from exactspec.parser import Parser
from experiments.bench.sections import machine
from experiments.harness.arguments import freeze, positive, refusing
from experiments.harness.claims import claim_folder
from experiments.harness.thread_check import warn_of_contention
from experiments.inference_stack import stack_tables, waterfall
from experiments.inference_stack.fresh import CACHE
from experiments.inference_stack.stack_arms import prepare_compiler
from experiments.inference_stack.stack_registry import GROUPS, STACK
from experiments.inference_stack.stack_results import FIGURES, Results
from experiments.inference_stack.stack_roofline import measure_rooflines
from experiments.inference_stack.stack_study import NAIVE_IDS, PARTS, TIME, Study, StudyOptions, choose_arms, reasons
from experiments.inference_stack.stack_timing import medians
from experiments.inference_stack.subjects import SUBJECTS
from experiments.limits.limit_options import cost
from specdec.stats import Table
from specdec.stats.report import Shown, provenance, show

# What says where and which figures are kept, and not what they depend on.
NOT_MEASURED = ("out", "fresh", "batches", "groups", "arms", "parts")


def parse(argv: Sequence[str] | None) -> StudyOptions:
    """Return what is asked for."""
    parser = Parser(__doc__)
    add = parser.add_argument
    add("--subject", choices=SUBJECTS, default="arithmetic", help="what is decoded (%(default)s)")
    add("--batches", type=positive, nargs="+", default=[1, 8, 32, 128], help="batch sizes (1 8 32 128)")
    add("--groups", choices=GROUPS, nargs="+", default=list(GROUPS), help="of arms (all)")
    add("--arms", nargs="+", metavar="ARM", help="of these groups (all)")
    add("--parts", choices=PARTS, nargs="+", default=list(PARTS), help="what to measure (all)")
    add("--rounds", type=positive, default=10, help="that are timed (%(default)s)")
    add("--warm-ups", type=positive, default=3, help="rounds before them (%(default)s)")
    add("--round-seconds", type=cost, default=0.3, help="a round lasts that long at least (%(default)s)")
    add("--num-prompts", type=positive, default=10_000, help="that the timed rounds draw from (%(default)s)")
    add("--gate-prompts", type=positive, help="on which ids are compared (all: 3,277 problems of arithmetic)")
    add("--side-gate-prompts", type=positive, default=256, help="the same for arms beside the stack (%(default)s)")
    add("--threads", type=positive, default=torch.get_num_threads(), help="torch threads (torch's own choice)")
    add("--device", default="cpu", help="cpu, cuda, cuda:1, ... (%(default)s)")
    add("--out", type=Path, help="folder for the figures (runs/inference_stack/SUBJECT)")
    add("--fresh", action="store_true", help="drop the figures that lie in --out")
    values = vars(parser.parse_args(argv))
    values["out"] = values["out"] or Path("runs") / "inference_stack" / values["subject"]
    return StudyOptions(**{name: freeze(value) for name, value in values.items()})


def report(study: Study) -> list[Shown]:
    """Return all tables."""
    subject, results, options, names = study.subject, study.results, study.options, study.arms
    batches = options.batches
    parts = {
        "Best arm over the naive one": stack_tables.ratio_rows(subject, results, batches, names),
        **{f"Batch {batch}": stack_tables.stack_rows(subject, results, batch, names) for batch in batches},
        "Who drives the loop": stack_tables.loop_rows(results, batches, names),
        "When a first call has paid for itself": stack_tables.payback_rows(subject, results, batches, names),
        **{f"Ablation: {name}": rows for name, rows in stack_tables.ablation_rows(results, batches, names).items()},
        "Arms": stack_tables.idea_rows(subject, names),
    }
    told: list[Shown] = [
        f"{machine()}; threads {options.threads}; {options.subject}: prompts of {subject.prompt_length} ids, "
        f"{subject.num_new} new ones; {options.rounds} rounds."
    ]
    if len(results.commits) > 1:
        told.append(f"The figures were measured at several commits: {', '.join(results.commits)}.")
    told += [Table(title, rows) for title, rows in parts.items() if rows]
    failed = reasons(results, batches, list(names))
    return [*told, *(["\n".join(["FAILED:", *(f"- {line}" for line in failed)])] if failed else [])]


def draw(study: Study) -> None:
    """Write the picture of the stack; an arm without times, or that has not passed the gate, has no bar."""
    panels = {}
    names = [name for name in (*STACK, *study.subject.sources) if name in study.arms]
    for batch in study.options.batches:
        timed = {name: stack_tables.times_of(study.results, batch, name) for name in names}
        new = batch * study.subject.num_new
        bars = [(name, None if found is None else new / medians(found)["seconds"]) for name, found in timed.items()]
        if any(speed is not None for _, speed in bars):
            panels[f"batch {batch}"] = bars
    if panels:
        waterfall.draw(study.options.out / "stack.png", panels, sum(name in STACK for name in names))


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, print the tables, draw the picture."""
    options = parse(argv)
    torch.set_num_threads(options.threads)
    warn_of_contention()
    signature = provenance({name: str(value) for name, value in vars(options).items()}, options.device)
    with ExitStack() as stack:
        with refusing("inference_stack"):
            subject, arms = choose_arms(options)
            stack.enter_context(claim_folder(options.out))
            if options.fresh:
                for name in (FIGURES, NAIVE_IDS):
                    (options.out / name).unlink(missing_ok=True)
            kept = {name: value for name, value in vars(options).items() if name not in NOT_MEASURED}
            study = Study(options, Results(options.out, kept, signature["commit"]), subject, arms)
        os.environ[CACHE] = str((options.out / "compiler").resolve())
        prepare_compiler()
        if TIME in options.parts:
            measure_rooflines(study.subject, study.results)
        study.run()
        study.results.sign(signature)
        draw(study)
        show(report(study))


if __name__ == "__main__":
    main()
