"""Measure trees of many shapes and sizes beside plain decoding and beside what theory predicts for them.

The run is first calibrated on some of its prompts. It measures acceptance by rank under a wide tree, the cost of a
pass's width, and the time of steps with two chains and with a small, a deep and a wide tree. From these follow the tree
that should pay best and, for each size, the tree that should yield most tokens. These are measured together with the
shapes asked for. Growing shapes have no prediction.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from exactspec.ending import as_program
from exactspec.parser import positive, refusing
from experiments.advise.calibrating import ON_ALL, Trees, best_of, calibrate, cost_of_nodes, shapes_to_read
from experiments.harness.arguments import paired_parser
from experiments.harness.arms import PLAIN, decodable_prompts, units_of
from experiments.harness.building import engine_arms
from experiments.harness.journal import JOURNAL
from experiments.harness.models import load_model
from experiments.harness.run_outcome import DECODING_ALONE, END_TO_END, SPEEDS, Outcome, speed_cells
from experiments.harness.running import conduct
from experiments.harness.study import Plan, Study
from experiments.strategies.tree_shapes import FORMS, shapes_of, tree_source
from specdec import Oracle, Paths, TreeShape
from specdec.prompts import NamedPrompt
from specdec.stats import Table
from specdec.stats.report import Shown
from specdec.system import write_whole
from specdec.theory import expected_tree_tokens

SHAPES = ("chain:2", "chain:4", "chain:6", "kary:4x1", "kary:2x2", "kary:3x2", "kary:2x3", "grown:8x2", "grown:16x4")
SIZES = (2, 4, 8, 16)
OPTIMUM, BEST = "optimum", "best of "
COLUMNS = {
    "nodes, depth": "of the shape",
    "nodes per step": "drafted nodes, fewer where the budget ends",
    "tau": "tokens per verify pass",
    "tau full": "the same over steps whose draft the budget did not shorten, which theory predicts",
    **SPEEDS,
    f"tau, theory; {DECODING_ALONE}, theory": "from the calibration alone, which saw the first prompts only; a growing "
    "shape has none",
}


def calibrate_trees(
    arguments: Mapping[str, Any], oracle: Oracle, model: Oracle, prompts: Sequence[NamedPrompt]
) -> Trees:
    """Return what runs of plain decoding, chains and trees tell about other trees, at the batch size of the run."""
    chosen = [replace(prompt, kind="all") for prompt in prompts[: arguments["calibrate_on"]]]
    size, shapes = min(arguments["batch_size"], len(chosen)), shapes_to_read(arguments["ranks"], arguments["max_depth"])
    sources = {PLAIN: None, **{name: tree_source(model, shape) for name, shape in shapes.items()}}
    arms = engine_arms(arguments, oracle, sources)
    found = calibrate(arms, ON_ALL, units_of(chosen, size, seed=arguments["seed"]), arguments["max_new_tokens"])
    return Trees.of(found, cost_of_nodes(oracle, size), shapes)


def calibration_of(folder: Path, fresh: bool, make: Callable[[], Trees]) -> Trees:
    """Return the calibration of the run that was interrupted in a folder, or a new one."""
    path = folder / "calibration.json"
    if path.exists() and (folder / JOURNAL).exists() and not fresh:
        return Trees.from_dict(json.loads(path.read_text(encoding="utf-8")))
    made = make()
    write_whole(path, json.dumps(asdict(made), indent=1) + "\n")
    return made


def all_shapes(asked: Mapping[str, TreeShape], arguments: Mapping[str, Any], found: Trees) -> dict[str, TreeShape]:
    """Return the shapes to measure, by the names of their arms; those asked for come first."""
    shapes = {**asked}
    for size in arguments["sizes"]:
        shapes[f"{BEST}{size}"] = best_of(found.acceptance_by_rank, size, arguments["max_depth"])
    return {**shapes, OPTIMUM: found.best(arguments["max_nodes"], arguments["max_depth"])}


def tree_for_theory(shape: TreeShape, found: Trees) -> Paths | None:
    """Return a shape as a tree that theory can predict; None if it grows, or has ranks that were not calibrated."""
    tree = None if shape.paths is None else Paths(shape.paths)
    return None if tree is None or tree.ranks.max(initial=-1) >= len(found.acceptance_by_rank) else tree


def rows_of(outcome: Outcome, shapes: Mapping[str, TreeShape], found: Trees) -> Iterator[dict[str, Any]]:
    """Return a row per shape: its size, tokens per step by theory and by measurement, and the same of the speed-up."""
    for name, shape in shapes.items():
        stats, tree = outcome.stats(name), tree_for_theory(shape, found)
        assert stats is not None
        yield {
            "shape": name,
            "nodes": shape.max_nodes,
            "depth": shape.max_depth,
            "nodes per step": stats.num_drafted / stats.num_steps,
            "tau": stats.block_efficiency,
            "tau full": stats.block_efficiency_full,
            "tau, theory": None if tree is None else expected_tree_tokens(tree, found.acceptance_by_rank),
            **speed_cells(outcome, name),
            f"{DECODING_ALONE}, theory": None if tree is None else found.parts(tree).speedup,
        }  # fmt: skip


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = paired_parser(__doc__)
    add = parser.add_argument
    add("--model", default="code-draft", help="draft model: embedded name or checkpoint directory (%(default)s)")
    add("--shapes", nargs="*", default=list(SHAPES), metavar="SHAPE", help=f"trees: {FORMS} ({' '.join(SHAPES)})")
    add("--sizes", nargs="*", type=positive, default=list(SIZES), help="nodes of theory's best trees (%(default)s)")
    add("--max-nodes", type=positive, default=32, help="most nodes of the optimum (%(default)s)")
    add("--max-depth", type=positive, default=8, help="greatest depth of theory's trees (%(default)s)")
    add("--ranks", type=positive, default=4, help="siblings to calibrate (%(default)s)")
    add("--calibrate-on", type=positive, default=12, help="prompts to calibrate on, the first ones (%(default)s)")
    return vars(parser.parse_args(argv))


def _report(
    arguments: Mapping[str, Any],
    shapes: Mapping[str, TreeShape],
    found: Trees,
    outcome: Outcome,
    folder: Path,
) -> list[Shown]:
    """Write theory's part beside the measured one into the folder, and return it as a table."""
    rows = [*rows_of(outcome, shapes, found)]
    kept = {
        "calibration": asdict(found),
        "shapes": {name: str(shape) for name, shape in shapes.items()},
        "rows": rows,
    }
    write_whole(folder / "trees.json", json.dumps(kept, indent=1) + "\n")
    rates = ", ".join(f"{rate:.3f}" for rate in found.acceptance_by_rank)
    level = found.chain_costs.drafting.level + found.chain_costs.drafting.node
    calibration = f"Calibrated: acceptance by rank {rates}; c {level:.3f} after the first; optimum {shapes[OPTIMUM]}."
    brief = ("shape", "tau full", "tau, theory", DECODING_ALONE, END_TO_END)
    return [Table("Trees beside theory", rows, calibration, brief=brief, legend=COLUMNS)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment and print its tables.

    Raises:
        SystemExit: fewer than 2 new tokens, or arguments that cannot be run; with the reason.
    """
    arguments = parse(argv)
    with ExitStack() as stack:
        with refusing("trees"):
            if arguments["max_new_tokens"] < 2:
                raise ValueError("--max-new-tokens must be 2 or more: a request's last token has no draft")
            asked_shapes = shapes_of(arguments["shapes"], "--shapes")
            study = Study.open(Plan("trees", arguments), stack)
            oracle, model = study.oracle, load_model(arguments["model"], arguments)
            firsts = [prompt for prompt in study.prompts if prompt.turn == 1]
            fitting = decodable_prompts(oracle, firsts, arguments["max_new_tokens"])
            found = calibration_of(
                study.folder, arguments["fresh"], lambda: calibrate_trees(arguments, oracle, model, fitting)
            )
            shapes = all_shapes(asked_shapes, arguments, found)
            sources = {PLAIN: None, **{name: tree_source(model, shape) for name, shape in shapes.items()}}
            arms = engine_arms(arguments, oracle, sources)
        return conduct(study, arms, partial(_report, arguments, shapes, found))


if __name__ == "__main__":
    as_program(main)
