"""One cell of the advice, a batch size and a temperature: every strategy predicted, then measured on other prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from experiments.advise.predicting import WORTH, Costs, Steps, best, obstacle
from experiments.arguments import settings_of
from experiments.arms import PLAIN, Arm, EngineArm, units_of
from experiments.harness import WARM_UP_TOKENS, measure
from experiments.models import load_model
from experiments.outcome import ALL, Outcome
from experiments.strategies import STRATEGIES
from experiments.summary import reason
from experiments.tree_shapes import tree_source
from experiments.trees import TreeCalibration, best_of, calibrate_trees
from specdec import DraftSource, Oracle, SamplingParams, SpeculativeDecoder, optimal_tree
from specdec.calibrating import pass_seconds
from specdec.intervals import FEWEST_UNITS, bootstrap_ratio, paired_ratio, verdict
from specdec.prompts import NamedPrompt
from specdec.stats import Stats, pool
from specdec.theory import WidthCurve, expected_tree_tokens

LENGTH = "num_draft_tokens"
TREES = "tree"
# Strategies that draft chains of a given length; merged chains are trees.
CHAINS = tuple(
    name
    for name, strategy in STRATEGIES.items()
    if name != "merged" and any(option.key == LENGTH for option in strategy.options)
)
_RANKS, _MOST_NODES, _DEEPEST = 4, 16, 8


@dataclass(frozen=True)
class Cell:
    """A batch size and a temperature.

    Attributes:
        index: place in the journal.
        problem: why it cannot be measured; None: it can.
    """

    index: int
    batch_size: int
    temperature: float
    problem: str | None = None
    prompts: tuple[NamedPrompt, ...] = field(default=(), repr=False)

    @property
    def kind(self) -> str:
        """Its name."""
        return f"batch {self.batch_size}, temperature {self.temperature:g}"


@dataclass(frozen=True)
class Advised:
    """What is best of a strategy, before it is measured.

    Attributes:
        name: of the strategy.
        what: the length or shape that should pay most.
        predicted: its speed-up.
        why_not: what is in the way; None: it should pay.
        draft: makes the source.
        tokens, width, cost: tau, v and c.
    """

    name: str
    what: str
    predicted: float
    why_not: str | None
    draft: DraftSource
    tokens: float
    width: float
    cost: float


class Adviser:
    """Predicts and measures the strategies of one oracle.

    Args:
        arguments: of the command line.
        oracle: to be advised on.
        prompts: every other one is calibrated on, the others are measured.
    """

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle = arguments, oracle
        self.known, self.other = list(prompts[::2]), list(prompts[1::2])

    def check(self, cell: Cell) -> None:
        """Build every source once, before anything is measured.

        Raises:
            ValueError: one cannot be had for this oracle, with the reason.
        """
        for name in self.arguments["strategies"]:
            STRATEGIES[name].build(self._settings(cell, name), self.oracle)

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Return the journal entry of a cell: a row for every strategy."""
        advised = self.advised(cell)
        arms: list[Arm] = [EngineArm(PLAIN, self.oracle, None, self._sampling(cell))]
        arms += [EngineArm(one.name, self.oracle, one.draft, self._sampling(cell)) for one in advised]
        outcome = self._outcome(cell, arms)
        if problems := outcome.problems():
            raise RuntimeError("; ".join(problems))
        plain = outcome.stats(PLAIN)
        assert plain is not None
        return {
            "unit": cell.index,
            "error": None,
            "kind": cell.kind,
            "rows": [_row(one, outcome, plain) for one in advised],
        }

    def _sampling(self, cell: Cell) -> SamplingParams:
        return SamplingParams(temperature=cell.temperature, top_p=self.arguments["top_p"] if cell.temperature else 1.0)

    def _settings(self, cell: Cell, name: str) -> dict[str, Any]:
        own = {"temperature": cell.temperature, "batch_size": cell.batch_size}
        return {**settings_of({**self.arguments, **own}, name)}

    def advised(self, cell: Cell) -> list[Advised]:
        """Return what should pay most of every strategy that was asked for."""
        nodes = self._cost_of_nodes(min(cell.batch_size, len(self.known)))
        plain, _ = self._run(cell, None)
        found = []
        for name in self.arguments["strategies"]:
            found.append(self._tree(cell) if name == TREES else self._chain(cell, name, nodes, plain))
        return found

    def _cost_of_nodes(self, rows: int) -> WidthCurve:
        """Return the time of passes by all their nodes: of fewer rows with a node each, then of wider rows."""
        fewer = [2**i for i in range(rows.bit_length()) if 2**i < rows]
        widths = range(1, self.arguments["longest"] + 2)
        seconds = [pass_seconds(self.oracle, [1], size)[0] for size in fewer] + pass_seconds(self.oracle, widths, rows)
        return WidthCurve.of_seconds([*fewer, *(rows * width for width in widths)], seconds)

    def _chain(self, cell: Cell, name: str, nodes: WidthCurve, plain: Stats) -> Advised:
        """Return the best length of a strategy, from one run with the longest drafts."""
        settings, lengths = self._settings(cell, name), range(1, self.arguments["longest"] + 1)
        strategy = STRATEGIES[name]
        long = strategy.build({**settings, LENGTH: lengths[-1]}, self.oracle)
        drafted, steps = self._run(cell, long)
        costs = Costs.of(plain, drafted, nodes, steps)
        chosen = best(steps, costs, lengths)
        return Advised(
            name,
            f"{chosen.length} tokens",
            chosen.speedup,
            obstacle(steps, costs, lengths),
            strategy.build({**settings, LENGTH: chosen.length}, self.oracle),
            chosen.tokens,
            chosen.width,
            costs.draft,
        )

    def _tree(self, cell: Cell) -> Advised:
        """Return the tree that theory takes for the best, of a small transformer."""
        settings = self._settings(cell, TREES)
        model = load_model(settings["model"], settings)
        asked = {**self.arguments, "temperature": cell.temperature, "batch_size": cell.batch_size}
        asked |= {"top_p": self._sampling(cell).top_p, "calibrate_on": len(self.known), "ranks": _RANKS}
        found = calibrate_trees({**asked, "max_nodes": _MOST_NODES}, self.oracle, model, self.known)
        shape = optimal_tree(
            found.acceptance_by_rank,
            width_cost=found.width_cost,
            draft_cost_ratio=found.draft_cost_ratio,
            max_nodes=_MOST_NODES,
            max_depth=_DEEPEST,
            other_cost=found.other_cost,
        )
        shape = shape if shape.num_nodes else best_of(1, found, max_depth=1)
        tokens = expected_tree_tokens(shape, found.acceptance_by_rank)
        speedup = found.speedup(shape, tokens)
        reason_against = None if speedup >= WORTH else _tree_obstacle(found, tokens)
        source = tree_source(model, shape)
        what, width = f"{shape.num_nodes} nodes, {shape.max_depth} deep", found.width_cost(shape.max_nodes + 1)
        return Advised(TREES, what, speedup, reason_against, source, tokens, width, found.draft_cost_ratio)

    def _run(self, cell: Cell, draft: DraftSource | None) -> tuple[Stats, Steps]:
        """Decode the prompts that are calibrated on; return the statistics and the steps."""
        arm = EngineArm("", self.oracle, draft, self._sampling(cell))
        seeds = [(self.arguments["seed"], number) for number in range(len(self.known))]
        arm.run(self.known[:1], seeds[:1], WARM_UP_TOKENS)
        return _decoded(arm.decoder, self.known, seeds, self.arguments["max_new_tokens"], arm.sampling, cell)

    def _outcome(self, cell: Cell, arms: Sequence[Arm]) -> Outcome:
        """Decode the other prompts with all arms, interleaved, in enough units or rounds for an interval."""
        units = units_of(self.other, cell.batch_size)
        seed, new = self.arguments["seed"], self.arguments["max_new_tokens"]
        for arm in arms:
            arm.run(units[0].prompts, [(seed, number) for number in units[0].numbers], WARM_UP_TOKENS)
        rounds = 1 if len(units) >= FEWEST_UNITS else FEWEST_UNITS
        entries = [measure(unit, arms, seed, new, rounds) for unit in units]
        return Outcome([arm.name for arm in arms], entries)


def _decoded(
    decoder: SpeculativeDecoder,
    prompts: Sequence[NamedPrompt],
    seeds: Sequence[tuple[int, int]],
    max_new_tokens: int,
    sampling: SamplingParams,
    cell: Cell,
) -> tuple[Stats, Steps]:
    """Decode prompts batch by batch, as they are measured later."""
    stats, records = [], []
    for first in range(0, len(prompts), cell.batch_size):
        part = slice(first, first + cell.batch_size)
        texts = [prompt.text for prompt in prompts[part]]
        result = decoder.generate(texts, max_new_tokens, sampling, list(seeds[part]))
        stats.append(result.stats)
        records.append(result.records.columns())
    return pool(stats), Steps.of(records)


def _tree_obstacle(found: TreeCalibration, tokens: float) -> str:
    rate = found.acceptance_by_rank[0]
    return (
        f"the best tree yields {tokens:.2f} tokens a step (acceptance {rate:.2f}); a level of it costs "
        f"{found.draft_cost_ratio:.2f} of a pass"
    )


def _row(one: Advised, outcome: Outcome, plain: Stats) -> dict[str, Any]:
    stats = outcome.stats(one.name)
    assert stats is not None
    intervals = [outcome.speedup(one.name, ALL, PLAIN, method) for method in (paired_ratio, bootstrap_ratio)]
    why, same = reason(plain, stats), outcome.identical(one.name)
    return {
        "strategy": one.name,
        "best": one.what,
        "tau": one.tokens,
        "v": one.width,
        "c": one.cost,
        "predicted": one.predicted,
        "measured": why["measured"],
        "with prompts": str(intervals[0]),
        "bootstrap": str(intervals[1]),
        "verdict": verdict(*intervals),
        "identical": f"{sum(same)}/{len(same)}",
        "why not": one.why_not,
        "intervals": [asdict(interval) for interval in intervals],
    }
