"""The causes of slow speculation, by name: which of them an arm's figures show, and what would help."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import median
from typing import Any

import numpy as np

from experiments.advise.advice_parts import Parts
from experiments.harness.arms import PLAIN
from experiments.harness.findings.step_columns import device_work
from experiments.harness.run_outcome import Outcome
from experiments.harness.settings import Settings
from specdec.stats import Stats, Table

Records = Mapping[str, Sequence[Any]]

# This many passes of a shape, of either kind, are enough to time it.
_ENOUGH = 3


@dataclass(frozen=True)
class Widening:
    """The arm's most frequent pass with drafts that has a plain pass of as many rows, beside that plain pass.

    Attributes:
        rows: in flight.
        nodes: W, of each row, padding included.
        cost: t(W)/t(1), a ratio of medians.
        fewer: the same for the fewest rows that have enough passes of W nodes and of one; None: there are none.
    """

    rows: int
    nodes: int
    cost: float
    fewer: "Widening | None" = None

    @staticmethod
    def of(plain: Sequence[Records], own: Sequence[Records]) -> "Widening | None":
        """Return it, from the records of every unit; None if there is nothing to compare.

        A pass is wide if it has more than one node a row. It is compared with plain decoding's pass of as many rows. If
        plain decoding never had as many rows in flight, the arm's own passes without drafts take its place.
        """
        ones, passes = _passes(plain), _passes(own)
        wide = [shape for shape in passes if shape[1] > 1]
        plain_like = [shape for shape in wide if (shape[0], 1) in ones]
        own_like = [shape for shape in wide if (shape[0], 1) in passes]
        if not (alike := plain_like or own_like):
            return None
        rows, nodes = max(alike, key=lambda shape: len(passes[shape]))
        once = median((ones if plain_like else passes)[rows, 1])
        fewer = None
        for few in range(rows - 1, 0, -1):
            single = ones.get((few, 1), []) + passes.get((few, 1), [])
            several = passes.get((few, nodes), [])
            if min(len(single), len(several)) >= _ENOUGH:
                fewer = Widening(few, nodes, median(several) / median(single))
        return Widening(rows, nodes, median(passes[rows, nodes]) / once, fewer)

    @property
    def of_one_row(self) -> float:
        """What t(W)/t(1) would be for one row, if a pass costs a fixed price and a price for each node."""
        if self.cost <= 1 or self.cost >= self.nodes:
            return self.cost
        node = (self.cost - 1) / (self.rows * (self.nodes - self.cost))  # over the fixed price
        return (1 + node * self.nodes) / (1 + node)


def _passes(units: Sequence[Records]) -> dict[tuple[int, int], list[float]]:
    """Return (rows, nodes of a row) -> seconds of every such pass."""
    found: dict[tuple[int, int], list[float]] = {}
    for records in units:
        _, first = np.unique(np.column_stack([records["round"], records["step"]]), axis=0, return_index=True)
        for at in first:
            rows = records["num_rows"][at]
            # Every row has an equal share of a pass's time.
            found.setdefault((rows, records["num_nodes"][at]), []).append(rows * records["seconds_score"][at])
    return found


# A cost is a cause if an arm would gain this much without it: passes as cheap as plain ones, drafts twice as fast.
GAIN = 1.1
# More passes outside of graphs, more waits than one a step, and a larger idle share are causes.
OUTSIDE, MORE_WAITS, IDLE = 0.05, 1.05, 0.1
# Below this acceptance no chain yields two tokens a step.
ACCEPTANCE = 0.5


class Cause(StrEnum):
    """A common cause of slow speculation."""

    GRAPHS = "verify leaves the graph path"
    PASS = "verify costs more than a pass"
    DRAFT = "draft too dear"
    BATCH = "batch growth"
    WAITS = "synchronisations"
    ACCEPTANCE = "low acceptance"
    EXPERTS = "expert unions"
    BASELINE = "unequal baselines"


HELP: Mapping[Cause, str] = {
    Cause.GRAPHS: "a pass outside a graph pays for starting every operation: --backend graphed, and drafts whose "
    "shapes recur (a fixed length, a tree of a shape known beforehand, at most 128 nodes)",
    Cause.PASS: "fewer nodes a step, by shorter drafts or smaller trees; docs/guides/limits.md has the width that "
    "is free",
    Cause.DRAFT: "a smaller model, fewer of its layers, or weights of fewer bits; lookups and n-grams cost next to "
    "nothing",
    Cause.BATCH: "shorter drafts for more rows, and none above some batch size, which exactspec crossover measures",
    Cause.WAITS: "sources that draft on the host, or a model's chains of a fixed length; docs/internals/cuda.md says "
    "what each source takes",
    Cause.ACCEPTANCE: "a source that is closer to the target, or none for such texts; a draft length that follows "
    "acceptance",
    Cause.EXPERTS: "fewer nodes a step; in a large batch plain passes read most experts anyway",
    Cause.BASELINE: "a baseline of the same settings: --against ARM pairs with another arm",
}


@dataclass(frozen=True)
class ArmFigures:
    """What a run says of an arm; None: the run does not say it.

    Attributes:
        settings, baseline: how the arm and plain decoding computed.
        stats: of an arm of ours.
        parts: of its steps, beside plain decoding's.
        widening: what a wider pass cost it.
        work: what its steps made a device do, see ``device_work``.
    """

    settings: Settings
    baseline: Settings
    stats: Stats | None = None
    parts: Parts | None = None
    widening: Widening | None = None
    work: Mapping[str, Any] | None = None

    @staticmethod
    def of(outcome: Outcome, arm: str) -> "ArmFigures":
        """Return those of an arm beside plain decoding."""
        plain, stats = outcome.stats(PLAIN), outcome.stats(arm)
        settings, baseline = outcome.settings(arm), outcome.settings(PLAIN)
        if plain is None or stats is None:
            return ArmFigures(settings, baseline)
        widening = Widening.of(outcome.records(PLAIN), outcome.records(arm))
        work = device_work(stats, outcome.num_scored_nodes(arm))
        return ArmFigures(settings, baseline, stats, Parts.of(plain, stats), widening, work)

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """Settings in which the arm and plain decoding differ: the arm's value, then plain's."""
        return self.settings.differing_from(self.baseline)

    def gain(self, **parts: float) -> float:
        """Return how many times as fast the arm would be if these parts of its step were as given."""
        return replace(self.parts, **parts).speedup / self.parts.speedup if self.parts else 1.0

    @property
    def wide(self) -> Widening | None:
        """What a wider pass cost, if the arm would gain without it: its passes may take longer for other reasons."""
        if self.parts is None or self.widening is None:
            return None
        as_narrow = max(self.parts.scoring / self.widening.cost, 1.0)
        return self.widening if self.gain(scoring=as_narrow) >= GAIN else None


def _graphs(figures: ArmFigures) -> str | None:
    work = figures.work
    if work is None or work["copies up"] is None:  # a CPU has no graphs to leave
        return None
    if work["in graphs"] is None:
        return f"{figures.settings.backend} passes run in no graph"
    if 1 - work["in graphs"] <= OUTSIDE:
        return None
    return f"{1 - work['in graphs']:.0%} of its passes ran outside of graphs ({work['captures']:.0f} captures)"


def _pass(figures: ArmFigures) -> str | None:
    wide = figures.wide
    if wide is None:
        return None
    return f"a pass of {wide.nodes} nodes a row takes {wide.cost:.2f} times as long as one of 1"


def _draft(figures: ArmFigures) -> str | None:
    parts = figures.parts
    if parts is not None and figures.gain(drafting=parts.drafting / 2) >= GAIN:
        return f"drafting takes {parts.drafting:.2f} of a plain pass a step"
    return None


def _batch(figures: ArmFigures) -> str | None:
    wide = figures.wide
    if wide is None or wide.rows == 1:
        return None
    told = f"with {wide.rows} rows {wide.nodes} nodes take {wide.cost:.2f} times as long as 1"
    if wide.fewer is not None:
        few, cost = wide.fewer.rows, wide.fewer.cost
        return f"{told}, with {few} {cost:.2f} times" if wide.cost >= GAIN * cost else None
    alone = wide.of_one_row
    return f"{told}, with one row it would be about {alone:.2f} times" if wide.cost >= GAIN * alone else None


def _waits(figures: ArmFigures) -> str | None:
    work = figures.work
    if work is None or work["waits"] is None or (work["waits"] <= MORE_WAITS and work["idle"] < IDLE):
        return None
    told = f"a step waited {work['waits']:.1f} times for the device"
    return f"{told}, which was idle at least {work['idle']:.0%} of the time"


def _acceptance(figures: ArmFigures) -> str | None:
    alpha = None if figures.stats is None else figures.stats.acceptance_rate
    if figures.stats is None or not figures.stats.num_drafted or alpha is None or alpha >= ACCEPTANCE:
        return None
    return f"{alpha:.2f} of the draft tokens reached are accepted"


def _experts(figures: ArmFigures) -> str | None:
    wide, experts = figures.wide, figures.settings.num_experts
    if wide is None or experts <= 1:
        return None
    more = f"{wide.rows * wide.nodes} nodes read more of them than {wide.rows}"
    return f"a layer chooses from {experts} experts, and {more}: {wide.cost:.2f} times as long"


def _baseline(figures: ArmFigures) -> str | None:
    told = ", ".join(f"{name} {own} beside {other}" for name, (own, other) in figures.differences.items())
    return told.replace("_", " ") or None


_FINDERS: Mapping[Cause, Callable[[ArmFigures], str | None]] = dict(
    zip(Cause, (_graphs, _pass, _draft, _batch, _waits, _acceptance, _experts, _baseline), strict=True)
)


def causes_of(figures: ArmFigures) -> dict[Cause, str]:
    """Return the causes that an arm's figures show, each with the figures in words."""
    told = {cause: finder(figures) for cause, finder in _FINDERS.items()}
    return {cause: words for cause, words in told.items() if words is not None}


def cause_sentences(outcome: Outcome, arm: str) -> list[str]:
    """Return a sentence for every cause that an arm's figures show, and what would help."""
    found = causes_of(ArmFigures.of(outcome, arm))
    return [f"{cause.capitalize()}: {words}. What helps: {HELP[cause]}." for cause, words in found.items()]


_COLUMNS = {
    "compared with": "plain decoding, and the settings in which it differs",
    "rows, W": "rows, and nodes of each, of the most frequent pass with drafts that has a plain pass of as many rows",
    "t(W)/t(1)": "the median time of such a pass over that of the plain one",
    "causes": "the common causes of slow speculation that the figures show; a cost is one if the arm would gain "
    f"{GAIN - 1:.0%} without it",
}


def cause_table(outcome: Outcome) -> Table | None:
    """Return, for each arm but plain decoding, what it is compared with, what a wider pass cost it, and its causes.

    None: plain decoding ran alone.
    """
    rows = []
    for arm in outcome.arms:
        if arm != PLAIN:
            figures = ArmFigures.of(outcome, arm)
            wide, differences = figures.widening, ", ".join(figures.differences).replace("_", " ")
            rows.append(
                {
                    "arm": arm,
                    "compared with": f"{PLAIN}, other {differences}" if differences else PLAIN,
                    "rows": wide and wide.rows,
                    "W": wide and wide.nodes,
                    "t(W)/t(1)": wide and wide.cost,
                    "causes": ", ".join(causes_of(figures)) or None,
                }
            )
    if not rows:
        return None
    note = f"Plain decoding ran with {outcome.settings(PLAIN)}."
    brief = ("arm", "compared with", "W", "t(W)/t(1)", "causes")
    return Table("Causes", rows, note, "causes", brief, _COLUMNS)
