"""Measure trees of many shapes and sizes beside plain decoding and beside what theory predicts for them.

First the run is calibrated on some of its prompts: acceptance by rank under a wide tree, the cost of a pass's width,
and the cost of drafting a level. From these follow the tree that should pay best and, for each size, the tree that
should yield most tokens; they are measured with the shapes that were asked for. Growing shapes have no prediction.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from experiments.arguments import paired_parser, positive, refusing
from experiments.arms import PLAIN, Arm, EngineArm, problems_of, without_problems
from experiments.claims import claimed
from experiments.harness import WARM_UP_TOKENS, Plan, conduct, folder_of, prepare
from experiments.journal import JOURNAL, Journal
from experiments.models import load_model, load_oracle
from experiments.outcome import Outcome
from experiments.tree_shapes import shape_of, tree_source
from specdec import Kary, Oracle, Paths, SamplingParams, TreeShape, optimal_tree
from specdec.calibrating import pass_seconds
from specdec.prompts import NamedPrompt
from specdec.report import Points, curves, table
from specdec.theory import WidthCurve, expected_tree_tokens, predicted_speedup
from specdec.whole_file import write_whole

SHAPES = ("chain:2", "chain:4", "chain:6", "kary:4x1", "kary:2x2", "kary:3x2", "kary:2x3", "grown:8x2", "grown:16x4")
SIZES = (2, 4, 8, 16)
OPTIMUM, BEST = "optimum", "best of "
COLUMNS = (
    "nodes, depth: of the shape; per step: drafted, fewer where the budget ends; tau: tokens per verify pass (full: "
    "over steps whose draft the budget did not shorten, which theory predicts); theory: from the calibration alone, "
    "which saw the first prompts only; a shape that grows has none."
)


@dataclass(frozen=True)
class TreeCalibration:
    """What theory needs to know.

    Attributes:
        acceptance_by_rank: of one position, the earlier siblings rejected.
        width_cost: v(n), time of a pass of n nodes over that of one, at the batch size of the run.
        draft_cost_ratio: time of drafting a level over that of a pass of one node.
        other_cost: all that is neither drafting nor scoring, per step, over the same.
        plain_cost: the same of plain decoding.
    """

    acceptance_by_rank: list[float]
    width_cost: WidthCurve
    draft_cost_ratio: float
    other_cost: float
    plain_cost: float

    @staticmethod
    def from_dict(plain: Mapping[str, Any]) -> "TreeCalibration":
        """Return what ``asdict`` wrote."""
        return TreeCalibration(**{**plain, "width_cost": WidthCurve.from_dict(plain["width_cost"])})

    def speedup(self, shape: TreeShape, tokens: float) -> float:
        """Return the predicted speed-up over plain decoding as it runs, its own overhead included."""
        width, propose = self.width_cost(shape.max_nodes + 1), self.draft_cost_ratio * shape.max_depth
        return predicted_speedup(tokens, width, propose, self.other_cost) * (1 + self.plain_cost)


def calibrate_trees(
    arguments: Mapping[str, Any], oracle: Oracle, model: Oracle, prompts: Sequence[NamedPrompt]
) -> TreeCalibration:
    """Return what a run of plain decoding and one of a wide tree tell, and the cost of width by itself.

    All three are of the batch size that will be run, or of as many rows as there are prompts to calibrate on.
    """
    sampling = SamplingParams(temperature=arguments["temperature"], top_p=arguments["top_p"])
    chosen = prompts[: arguments["calibrate_on"]]
    texts, size = [prompt.text for prompt in chosen], min(arguments["batch_size"], len(chosen))
    stats = []
    for shape in (None, Kary(arguments["ranks"], 2)):
        arm = EngineArm("", oracle, None if shape is None else tree_source(model, shape), sampling)
        seeds = [(arguments["seed"], i) for i in range(len(chosen))]
        arm.run(chosen[:1], seeds[:1], WARM_UP_TOKENS)
        new = arguments["max_new_tokens"]
        stats.append(arm.decoder.generate(texts, new, sampling, seeds, batch_size=size).stats)
    plain, wide = stats
    once = plain.seconds_per_call("score") or float("nan")
    plain_cost, other = ((one.seconds_per_call("verify", "commit", "other") or 0.0) / once for one in stats)
    rates = [wide.acceptance_by_rank.get(k) or 0.0 for k in range(1, arguments["ranks"] + 1)]
    widths = sorted({1, 2, 3, 5, 9, 13, 17, 25, 33, 1 + arguments["max_nodes"]})
    widths = [width for width in widths if width <= 1 + arguments["max_nodes"]]
    curve = WidthCurve.of_seconds(widths, pass_seconds(oracle, widths, size, arity=2), size)
    return TreeCalibration(rates, curve, wide.draft_cost_ratio(once) or 0.0, other, plain_cost)


def calibrated(folder: Path, fresh: bool, make: Callable[[], TreeCalibration]) -> TreeCalibration:
    """Return the calibration of the run that was interrupted in a folder, or a new one."""
    path = folder / "calibration.json"
    if path.exists() and (folder / JOURNAL).exists() and not fresh:
        return TreeCalibration.from_dict(json.loads(path.read_text(encoding="utf-8")))
    made = make()
    write_whole(path, json.dumps(asdict(made), indent=1) + "\n")
    return made


def best_of(size: int, found: TreeCalibration, max_depth: int) -> Paths:
    """Return the tree of so many nodes that should yield most tokens, whatever it costs."""
    rates = found.acceptance_by_rank
    return optimal_tree(rates, width_cost=lambda n: 1.0, draft_cost_ratio=0.0, max_nodes=size, max_depth=max_depth)


def all_shapes(arguments: Mapping[str, Any], found: TreeCalibration) -> dict[str, TreeShape]:
    """Return the shapes to be measured, by the names of their arms."""
    shapes = {text: shape_of(text) for text in arguments["shapes"]}
    for size in arguments["sizes"]:
        shapes[f"{BEST}{size}"] = best_of(size, found, arguments["max_depth"])
    optimum = optimal_tree(
        found.acceptance_by_rank,
        width_cost=found.width_cost,
        draft_cost_ratio=found.draft_cost_ratio,
        max_nodes=arguments["max_nodes"],
        max_depth=arguments["max_depth"],
        other_cost=found.other_cost,
    )
    return shapes if not optimum.num_nodes else {**shapes, OPTIMUM: optimum}


def predicted_tokens(shape: TreeShape, found: TreeCalibration) -> float | None:
    """Return theory's tokens per step of a static tree; None if it says nothing."""
    tree = None if shape.paths is None else Paths(shape.paths)
    if tree is None or tree.ranks.max(initial=-1) >= len(found.acceptance_by_rank):
        return None
    return expected_tree_tokens(tree, found.acceptance_by_rank)


def rows_of(outcome: Outcome, shapes: Mapping[str, TreeShape], found: TreeCalibration) -> list[dict[str, Any]]:
    """Return a row per shape: its size, tokens per step by theory and by measurement, and the same of the speed-up."""
    rows = []
    for name, shape in shapes.items():
        stats, tokens = outcome.stats(name), predicted_tokens(shape, found)
        assert stats is not None
        rows.append({
            "shape": name,
            "nodes": shape.max_nodes,
            "depth": shape.max_depth,
            "nodes per step": stats.num_drafted / stats.num_steps,
            "tau": stats.block_efficiency,
            "tau full": stats.block_efficiency_full,
            "tau, theory": tokens,
            "speed-up": str(outcome.speedup(name)),
            "speed-up, theory": None if tokens is None else found.speedup(shape, tokens),
        })  # fmt: skip
    return rows


def theory_by_size(found: TreeCalibration, largest: int, max_depth: int) -> tuple[Points, Points]:
    """Return tokens per step, and the speed-up, of theory's best tree of every size up to the largest, by its nodes."""
    trees = [best_of(size, found, max_depth) for size in range(1, largest + 1)]
    tokens = [(tree.num_nodes, expected_tree_tokens(tree, found.acceptance_by_rank)) for tree in trees]
    return tokens, [(nodes, found.speedup(tree, tau)) for tree, (nodes, tau) in zip(trees, tokens, strict=True)]


def draw(
    path: Path, outcome: Outcome, rows: Sequence[Mapping[str, Any]], found: TreeCalibration, max_depth: int
) -> None:
    """Write a picture: tokens per step and speed-up against size, measured points beside theory's best trees."""
    tokens, speeds = theory_by_size(found, max(row["nodes"] for row in rows), max_depth)
    kinds = dict.fromkeys(_kind(row["shape"]) for row in rows)
    taus = {k: [(r["nodes"], r["tau full"]) for r in rows if _kind(r["shape"]) == k and r["tau full"]] for k in kinds}
    made = {k: [(r["nodes"], outcome.speedup(r["shape"]).value) for r in rows if _kind(r["shape"]) == k] for k in kinds}
    panels = {"tokens per step": (taus, tokens), "speed-up over plain decoding": (made, speeds)}
    curves(path, "draft nodes", "best tree by theory", panels)


def _kind(name: str) -> str:
    """Return the series that an arm belongs to."""
    return "best" if name.startswith(BEST) else name.partition(":")[0]


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments."""
    parser = paired_parser(__doc__)
    add = parser.add_argument
    add("--model", default="code-draft", help="draft model: embedded name or checkpoint directory (%(default)s)")
    add("--shapes", nargs="*", default=list(SHAPES), metavar="SHAPE", help=f"({' '.join(SHAPES)})")
    add("--sizes", nargs="*", type=positive, default=list(SIZES), help="of theory's best trees (%(default)s)")
    add("--max-nodes", type=positive, default=32, help="of the optimum (%(default)s)")
    add("--max-depth", type=positive, default=8, help="of theory's trees (%(default)s)")
    add("--ranks", type=positive, default=4, help="siblings that are calibrated (%(default)s)")
    add("--calibrate-on", type=positive, default=12, help="prompts, the first ones (%(default)s)")
    return vars(parser.parse_args(argv))


def _report(
    arguments: Mapping[str, Any],
    shapes: Mapping[str, TreeShape],
    found: TreeCalibration,
    outcome: Outcome,
    folder: Path,
) -> str:
    """Write theory's part beside the measured one into the folder, and return it as text."""
    rows = rows_of(outcome, shapes, found)
    draw(folder / "trees.png", outcome, rows, found, arguments["max_depth"])
    kept = {
        "calibration": asdict(found),
        "shapes": {name: str(shape) for name, shape in shapes.items()},
        "rows": rows,
    }
    (folder / "trees.json").write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    rates = ", ".join(f"{rate:.3f}" for rate in found.acceptance_by_rank)
    best = shapes.get(OPTIMUM, "none: no tree is predicted to pay")
    calibration = f"Calibrated: acceptance by rank {rates}; c {found.draft_cost_ratio:.3f}; optimum {best}."
    return f"{table(rows, markdown=True)}\n\n{COLUMNS}\n\n{calibration}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment and print its tables."""
    arguments = parse(argv)
    plan = Plan("trees", tuple(arguments["shapes"]), (), arguments)
    with ExitStack() as stack:
        with refusing("trees"):
            prompts = prepare(arguments)
            folder = stack.enter_context(claimed(folder_of(plan, prompts)))
            journal = Journal(folder / JOURNAL, arguments["fresh"])
            oracle = load_oracle(arguments)
            model = load_model(arguments["model"], arguments)
            chosen = without_problems(prompts, problems_of(oracle, prompts, arguments["max_new_tokens"])).values()
            found = calibrated(folder, arguments["fresh"], lambda: calibrate_trees(arguments, oracle, model, [*chosen]))
            shapes = all_shapes(arguments, found)
            sampling = SamplingParams(temperature=arguments["temperature"], top_p=arguments["top_p"])
            arms: list[Arm] = [EngineArm(PLAIN, oracle, None, sampling)]
            arms += [EngineArm(name, oracle, tree_source(model, shape), sampling) for name, shape in shapes.items()]
        return conduct(plan, journal, prompts, oracle, arms, partial(_report, arguments, shapes, found))


if __name__ == "__main__":
    sys.exit(main())
