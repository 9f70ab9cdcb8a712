"""Say what a pass has to do at least, how fast this machine could do it, and how fast it does.

Prints the bytes of caches and the work of attention by kind, and the roofline of this machine, measured in the same
run. For each batch size, context and width it says what bounds a pass and which share of the roofline the pass reaches;
then what long contexts, a sliding window and chunks of a prompt change, and what speculation would gain. For contexts
beyond the oracle's own it uses random weights of the same sizes, or, natively, those of a GGUF file.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import product

import torch

from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.bench.sections import machine
from experiments.harness.findings.model_shapes import shape_of, weight_types
from experiments.harness.thread_check import take_threads
from experiments.studies.limits import limit_tables as limits
from experiments.studies.limits.limit_options import LimitOptions, LimitSubject, parse
from experiments.studies.limits.limit_tables import draw_contexts, draw_roofline
from experiments.studies.limits.limit_timing import LimitPasses, Prefill, measure_flops, measure_passes, measure_prefill
from oracles.checkpoints.loading import LoadedOracle
from specdec.stats import Table
from specdec.stats.report import Shown, provenance, show
from specdec.system import hold, write_whole
from specdec.theory.limits import ModelShape

DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class LimitTimes:
    """What was measured.

    Attributes:
        flops: dtype -> FLOP/s of products.
        groups: passes, by batch size and then context.
        windowed: passes of the smallest batch with the window, by context.
        prefills: kind of attention -> sizes, times by chunk.
    """

    flops: dict[torch.dtype, float]
    groups: list[LimitPasses]
    windowed: list[LimitPasses]
    prefills: dict[str, tuple[ModelShape, list[Prefill]]]

    @property
    def single(self) -> list[LimitPasses]:
        """Return the passes of the smallest batch."""
        return [group for group in self.groups if group.batch == self.groups[0].batch]


def measure_all(subject: LimitSubject, options: LimitOptions) -> LimitTimes:
    """Measure the machine, the passes, and the passes and prompts with a window; one cache is resident at a time."""
    oracle, cut = subject.oracle, subject.with_window(options.window)
    flops = {dtype: measure_flops(dtype, options.rounds) for dtype in dict.fromkeys((oracle.dtype, *DTYPES))}
    rate = flops[oracle.dtype]
    groups = [
        measure_passes(oracle, batch, context, options.widths, options, rate)
        for batch, context in product(options.batch_sizes, options.contexts)
    ]
    widths = sorted({1, options.wide})
    batch = options.batch_sizes[0]
    windowed = [measure_passes(cut, batch, context, widths, options, rate) for context in options.contexts]
    kinds: dict[str, LoadedOracle] = {"the model's": oracle, f"window {options.window}": cut}
    prefills = {
        name: (shape_of(model), measure_prefill(model, options.prefill, options.chunks, options.rounds, name))
        for name, model in kinds.items()
    }
    return LimitTimes(flops, groups, windowed, prefills)


def tables_of(shape: ModelShape, found: LimitTimes, options: LimitOptions) -> list[Table]:
    """Return all tables."""
    groups, alphas, cost = found.groups, options.alphas, options.draft_cost
    prefill = limits.prefill_rows(found.prefills, options.prefill, found.single[0].roofline)
    tables: dict[str, tuple[str, Iterable[limits.Row]]] = {
        "Bytes of the cache": (limits.CACHE_NOTE, limits.cache_rows(shape, options.contexts, options.window)),
        "Attention with a cache and without": (
            limits.ATTENTION_NOTE, limits.attention_rows(shape, options.contexts)
        ),
        "The machine": (limits.MACHINE_NOTE, limits.machine_rows(found.flops, options.rounds)),
        "Passes and the roofline": (limits.PASSES_NOTE, limits.pass_rows(groups)),
        "Break-even width": (limits.WIDTH_NOTE, limits.width_rows(shape, groups)),
        "Passes by context": (limits.CONTEXT_NOTE, limits.context_rows(groups)),
        f"Gain of speculation by context, draft cost {cost}": (
            limits.GAINS_NOTE, limits.gain_rows(groups, alphas, cost)
        ),
        f"A sliding window of {options.window}": (
            limits.WINDOW_NOTE, limits.window_rows(found.single, found.windowed, options.wide)
        ),
        f"A prompt of {options.prefill} tokens in chunks": (limits.PREFILL_NOTE, prefill),
    }  # fmt: skip
    return [Table(title, [*rows], note) for title, (note, rows) in tables.items()]


def write(options: LimitOptions, subject: LimitSubject, found: LimitTimes) -> list[Shown]:
    """Write JSON and pictures into the folder, which is there, and return the tables."""
    oracle, folder = subject.oracle, options.out
    tables = tables_of(shape_of(oracle), found, options)
    draw_roofline(folder / "roofline.png", found.groups)
    draw_contexts(folder / "contexts.png", found.single, found.windowed, options)
    kept = {
        "provenance": provenance(asdict(options), "cpu", oracle.backend),
        "subject": subject.name,
        "shape": asdict(shape_of(oracle)),
        "tables": {one.title: one.rows for one in tables},
    }
    write_whole(folder / "limits.json", json.dumps(kept, indent=1) + "\n")
    kinds = " and ".join(sorted(weight_types(oracle)))
    model = f"{subject.name}: {oracle.backend}, weights in {kinds}"
    head = f"{model}; {machine()}; threads {torch.get_num_threads()}."
    return [head, *tables, f"Pictures and JSON: {folder}"]


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write, and print the tables."""
    options = parse(argv, __doc__)
    take_threads(options.threads)
    with refusing("limits"), hold(options.out, "--out"):
        subject = LimitSubject(options)
        show(write(options, subject, measure_all(subject, options)))
    return 0


if __name__ == "__main__":
    as_program(main)
