"""One cell of the advice, a batch size and a temperature: every strategy predicted, then measured on other prompts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any

from experiments.advise.advice_parts import Parts, missing
from experiments.advise.calibrating import (
    ON_ALL,
    CalibrationRun,
    Trees,
    calibrate,
    cost_of_nodes,
    outcome_of,
    shapes_to_read,
)
from experiments.advise.predicting import WORTH, best, in_the_way, obstacle, predict
from experiments.harness.arguments import settings_of
from experiments.harness.arms import PLAIN, units_of
from experiments.harness.building import build_shared, engine_arms, runnable_arms
from experiments.harness.journal import Piece
from experiments.harness.models import AnyModel, draft_model
from experiments.harness.own_places import check_names
from experiments.harness.rule_choice import no_filters, sampling_of
from experiments.harness.run_outcome import ALL, DECODING_ALONE, END_TO_END, Outcome, check_cells, speed_cells
from experiments.peers import RefusedArm
from experiments.strategies import STRATEGIES, strategy_of
from experiments.strategies.strategy import LENGTH
from experiments.strategies.tree_shapes import tree_source
from specdec import DraftSource, Oracle
from specdec.prompts import NamedPrompt
from specdec.stats import Stats, count_of
from specdec.stats.report import Interval, bootstrap_ratio, paired_ratio, verdict
from specdec.theory import WidthCurve

TREES = "tree"


def unadvised(name: str) -> str | None:
    """Return why a strategy's best drafts cannot be predicted; None: they can."""
    strategy = STRATEGIES[name]
    if strategy.asks:
        return "it drafts with a head, and advice takes none"
    if name == "merged":
        return "it joins the chains of two sources into a tree, whose cost does not follow from their length"
    if name != TREES and not strategy.has_length:
        return "it has no draft length that could be chosen"
    return None


# Strategies that draft chains of up to a given length.
CHAINS = tuple(name for name in STRATEGIES if name != TREES and unadvised(name) is None)
# Of these, those whose drafts are as long as they can be: a policy's end where more would not pay.
FIXED = tuple(name for name in CHAINS if name != "threshold")

_RANKS, _MOST_NODES, _DEEPEST = 4, 16, 8
_SHAPES = shapes_to_read(_RANKS, _DEEPEST)


@dataclass(frozen=True)
class Cell(Piece):
    """A batch size and a temperature."""

    batch_size: int
    temperature: float


@dataclass(frozen=True)
class Advice:
    """What is best of a strategy, before it is measured.

    Attributes:
        name: of the strategy.
        what: the length or shape that should pay most.
        parts: of its steps, predicted.
        drafts: such drafts, in the plural.
        why_not: what is in the way; None: it should pay.
        draft: makes the source.
    """

    name: str
    what: str
    parts: Parts
    drafts: str
    why_not: str | None
    draft: DraftSource


def halves(prompts: Sequence[NamedPrompt]) -> tuple[list[NamedPrompt], list[NamedPrompt]]:
    """Return two halves of the prompts, each in their order and of one kind: every second one of each of their kinds.

    If a kind has an odd number, the extra prompt goes to the halves in turn.
    """
    kinds = [*dict.fromkeys(prompt.kind for prompt in prompts)]
    by_kind = sorted(range(len(prompts)), key=lambda number: kinds.index(prompts[number].kind))
    known, other = ([replace(prompts[i], kind=ALL) for i in sorted(by_kind[first::2])] for first in (0, 1))
    return known, other


class Adviser:
    """Advise cell by cell: predict on one half of the prompts, measure on the other.

    Args:
        arguments: of the command line.
        oracle: shared by all cells.
        prompts: those that fit the oracle, at least two full batches.
    """

    def __init__(self, arguments: Mapping[str, Any], oracle: Oracle, prompts: Sequence[NamedPrompt]) -> None:
        self.arguments, self.oracle = arguments, oracle
        self.names: list[str] = arguments["strategies"] or [*CHAINS, TREES]
        self.known, self.other = halves(prompts)
        self._cost_of_nodes = cache(lambda rows: cost_of_nodes(oracle, rows))

    def choose(self, cells: Sequence[Cell]) -> dict[str, str]:
        """Build every source once, before anything is measured; return the strategies that are left out, and why.

        Only strategies that were not asked for by name are left out.

        Raises:
            ValueError: this oracle cannot have a strategy that was asked for, or whose options were given, or a cell
                cannot be sampled; with the reason.
        """
        asked, (first, *others) = self.arguments["strategies"], map(self._of_cell, cells)
        for arguments in (first, *others):
            sampling_of(arguments)
        if asked is not None:
            sources = {strategy_of(name).name: self._source(cells[0], name, 1) for name in asked}
            check_names([PLAIN, *(strategy_of(name).name for name in asked)])
            engine_arms(first, self.oracle, sources)
            return {}
        arms = [*runnable_arms((*CHAINS, TREES), first, self.oracle)]
        left_out = {arm.name: arm.words for arm in arms if isinstance(arm, RefusedArm)}
        self.names = [arm.name for arm in arms if arm.name not in left_out]
        return left_out

    def measure(self, cell: Cell) -> dict[str, Any]:
        """Return what the journal keeps of a cell: a row for every strategy.

        Raises:
            RuntimeError: a prompt failed, or an exact output differs.
        """
        advised, arguments = self.advise(cell), self.arguments
        sources: dict[str, DraftSource | None] = {PLAIN: None, **{one.name: one.draft for one in advised}}
        arms = engine_arms(self._of_cell(cell), self.oracle, sources)
        outcome = outcome_of(arms, self.other, cell.batch_size, arguments["seed"], arguments["max_new_tokens"])
        if problems := outcome.problems():
            raise RuntimeError("; ".join(problems))
        plain = outcome.stats(PLAIN)
        assert plain is not None
        return {"rows": [_row(one, outcome, plain) for one in advised]}

    def _draft_model(self, cell: Cell) -> AnyModel:
        return draft_model(settings_of(self._of_cell(cell), TREES))

    def _of_cell(self, cell: Cell) -> dict[str, Any]:
        own = {"temperature": cell.temperature, "batch_size": cell.batch_size}
        filters = {} if cell.temperature else no_filters()  # greedy decoding has none
        return {**self.arguments, **own, **filters}

    def _chains(self, name: str) -> dict[str, int]:
        """Return the arms that a strategy is calibrated with, and the length of their drafts."""
        return {f"{name}, {length}": length for length in sorted({1, self.arguments["longest"]})}

    def _source(self, cell: Cell, name: str, length: int) -> DraftSource:
        return build_shared(name, self._of_cell(cell), self.oracle, **{LENGTH: length})

    def advise(self, cell: Cell) -> list[Advice]:
        """Return what should pay most of every strategy."""
        names, nodes = self.names, self._cost_of_nodes(min(cell.batch_size, len(self.known)))
        sources: dict[str, DraftSource | None] = {PLAIN: None}
        on_all = []
        for name in names:
            if name == TREES:
                model = self._draft_model(cell)
                sources |= {arm: tree_source(model, shape) for arm, shape in _SHAPES.items()}
                on_all += [*ON_ALL]
            else:
                chains = self._chains(name)
                sources |= {arm: self._source(cell, name, length) for arm, length in chains.items()}
                on_all.append([*chains][-1])
        units = units_of(self.known, cell.batch_size, seed=self.arguments["seed"])
        arms = engine_arms(self._of_cell(cell), self.oracle, sources)
        found = calibrate(arms, on_all, units, self.arguments["max_new_tokens"])
        return [
            self._tree(cell, found, nodes) if name == TREES else self._chain(cell, name, found, nodes) for name in names
        ]

    def _chain(self, cell: Cell, name: str, found: CalibrationRun, nodes: WidthCurve) -> Advice:
        """Return the best length of a strategy."""
        arms, lengths = [*self._chains(name)], range(1, self.arguments["longest"] + 1)
        predicted = predict(found.steps(arms[-1]), found.costs(arms, nodes), lengths)
        length = best(predicted)
        source, drafts = self._source(cell, name, length), f"drafts of {length}"
        arm, what = strategy_of(name).name, count_of(length, "token")
        return Advice(arm, what, predicted[length], drafts, obstacle(predicted), source)

    def _tree(self, cell: Cell, found: CalibrationRun, nodes: WidthCurve) -> Advice:
        """Return the best tree that branches, of a small transformer."""
        trees = Trees.of(found, nodes, _SHAPES)
        shape = trees.best(_MOST_NODES, _DEEPEST, branching=True)
        parts = trees.parts(shape)
        source = tree_source(self._draft_model(cell), shape)
        what = f"{shape.num_nodes} nodes, {shape.max_depth} deep"
        drafts = f"trees of {shape.num_nodes} nodes and {count_of(shape.max_depth, 'level')}"
        return Advice(TREES, what, parts, drafts, None if parts.speedup >= WORTH else in_the_way(drafts, parts), source)


def failure_reason(one: Advice, measured: Parts, alone: Interval, intervals: Sequence[Interval]) -> str | None:
    """Return why a strategy was not measured as faster; None if it was.

    If the prediction says that it does not pay, it has the reason; else the measured parts have it.

    Args:
        one: of the strategy.
        measured: the parts that it had.
        alone: its speed decoding alone.
        intervals: of its speed end to end; both decide.
    """
    found = verdict(*intervals)
    if found == "faster":
        return None
    if one.parts.speedup < WORTH:
        return one.why_not
    if measured.speedup < WORTH:
        return f"predicted to pay; measured, {in_the_way(one.drafts, measured)}"
    delta, bootstrap = intervals
    return f"it pays {DECODING_ALONE}, {alone}, and {END_TO_END} it is {found}: {delta}, bootstrap {bootstrap}"


def _row(one: Advice, outcome: Outcome, plain: Stats) -> dict[str, Any]:
    stats, alone = outcome.stats(one.name), outcome.decoding_speedup(one.name)
    assert stats is not None
    assert alone is not None
    intervals = [outcome.speedup(one.name, ALL, PLAIN, method) for method in (paired_ratio, bootstrap_ratio)]
    measured = Parts.of(plain, stats)
    return {
        "strategy": one.name,
        "best": one.what,
        "tau": one.parts.tokens,
        "v": one.parts.scoring,
        "drafting": one.parts.drafting,
        "rest": one.parts.rest,
        "predicted": one.parts.speedup,
        **speed_cells(outcome, one.name),
        "bootstrap": str(intervals[1]),
        "verdict": verdict(*intervals),
        **check_cells(outcome, one.name),
        "why not": failure_reason(one, measured, alone, intervals),
        "missing": [*missing(one.parts, measured).values()],
        "measured": alone.value,
        "intervals": [asdict(interval) for interval in intervals],
    }
