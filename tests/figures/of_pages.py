"""How runs are measured, and what pages, guards and predictions make of them, worked out from hand-written steps."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest.mock import patch

import numpy as np

from experiments.advise.advice_parts import Parts
from experiments.advise.predicting import Costs, Line, _fit
from experiments.advise.shortening import Work
from experiments.bench import benchmark_figures
from experiments.guard import ACCEPT_LEN, SPEED, Figure, Finding, figures_of, judge
from experiments.harness import running as harness
from experiments.harness import study
from experiments.harness.arms import PLAIN, Measurement
from experiments.harness.journal import Journal
from experiments.harness.running import _measure
from experiments.harness.study import Plan, Study
from experiments.harness.turns import Turns
from experiments.report import pictures, why
from experiments.report.runs import Run
from experiments.studies.crossover import batch_sizes
from experiments.studies.crossover.batch_sizes import PHASES, PassTimes, StepParts
from oracles.tabular import TabularLM
from specdec.prompts import NamedPrompt
from specdec.stats import Stats
from specdec.stats.report.intervals import Interval, paired_ratio, ratio_change
from specdec.theory import WidthCurve
from tests.support.line_mutants import Differences, differences, line_mutants, together
from tests.support.runs.hand_run import DRAFTED, Hand, HandArm, HandRun, hand, texts


class _Asked(HandArm):
    """An arm that notes what it is asked: its name, the prompt, how many tokens, the seeds."""

    def __init__(self, name: str, asked: list[tuple[str, str, int, Any]]) -> None:
        super().__init__(name, texts(3))
        self._asked = asked

    def run(self, prompts: Sequence[NamedPrompt], seeds: Sequence[tuple[int, int]], max_new_tokens: int) -> Measurement:
        self._asked.append((self.name, prompts[0].name, max_new_tokens, list(seeds)))
        return super().run(prompts, seeds, max_new_tokens)


@contextmanager
def _quiet() -> Iterator[None]:
    with patch.object(study, "tqdm", lambda values, **_: values):
        yield


def order() -> Differences:
    """What arms are asked: a short warm-up of all; then units and rounds, each begun by another arm."""
    asked: list[tuple[str, str, int, Any]] = []
    arguments = {"trace": 0, "seed": 7, "max_new_tokens": 12, "repeats": 2, "batch_size": 1}
    prompts = [NamedPrompt(text.name, text.kind, [1]) for text in texts(3)]  # type: ignore[arg-type]
    with TemporaryDirectory() as folder, _quiet():
        arms = [_Asked(name, asked) for name in (PLAIN, DRAFTED)]
        journal = Journal(Path(folder) / "journal.jsonl")
        made = Study(Plan("compare", arguments), journal, TabularLM.random(3, 1, seed=0), prompts)
        _measure(made, Turns({7: prompts}, journal), arms)
    rest = []
    for name, number, first in (("p0", 0, PLAIN), ("p1", 1, DRAFTED), ("p2", 2, PLAIN)):
        other = DRAFTED if first == PLAIN else PLAIN
        rest += [(arm, name, 12, [(7, number)]) for arm in (first, other, other, first)]
    found = {"warm-up": [call[:3] for call in asked[:2]], "measured": asked[2:], "units": len(journal.entries)}
    expected = {"warm-up": [(PLAIN, "p0", 8), (DRAFTED, "p0", 8)], "measured": rest, "units": 3}
    return differences(found, expected)


def _run(made: Hand, **facts: Any) -> Run:
    arguments = {"oracle": "code", "temperature": 0, "batch_size": 1}
    summary = {"provenance": {"arguments": arguments, **facts}, "problems": []}
    return Run(Path(), "run", "run", summary, made.outcome)


def reasons() -> Differences:
    """What a page says of an arm: shares of its step, faster drafts, and what would let it break even."""
    made = hand(count=5, batch=2)
    told = Parts.of(made.stats(PLAIN), made.stats(DRAFTED))
    drafting, scoring, rest = told.drafting, told.scoring, told.rest
    step = drafting + scoring + rest
    slow = Parts(tokens=1.2, rows=0.9, drafting=0.5, scoring=1.5, rest=0.25, plain=0.25)
    depths = {"num_steps": 10, "num_drafted": 20, "steps_by_depth": (0, 0, 10), "tried_at_rank": (12,)}
    pairs = Stats(**depths, num_accepted=2, num_recovered=18)  # type: ignore[arg-type]
    found = {
        "shares": why.shares(told),
        "told": why._step(told, "speeds")[1],
        "faster drafts": why._step(told, "speeds")[2],
        "plain steps": why._step(told, "speeds")[0].partition("takes ")[2],
        # Steps may cost 1.2 x 0.9 x 1.25 = 1.35: less than a pass. With cheap passes half of the drafting is left.
        "no draft": why._affordable(slow),
        "some draft": why._affordable(replace(slow, scoring=0.9, plain=1.4 / 1.08 - 1)),
        # 1 + alpha + alpha^2 = 2, and no alpha makes 4.
        "needed": why._break_even(slow, pairs),
        "alpha": why.acceptance_for(pairs, 1.75),
        "none": why.acceptance_for(pairs, 4.0),
    }
    times = 1 + _beside(made)
    gains = [told.tokens * told.rows * times / (scoring + part * drafting + rest) for part in (0.5, 0)]
    expected = {
        "told": f"Drafting takes {drafting / step:.0%}, scoring takes {scoring / step:.0%}, the rest takes "
        f"{rest / step:.0%} of a step.",
        "faster drafts": f"A draft twice as fast would give {gains[0]:.2f}x, a free one {gains[1]:.2f}x.",
        "shares": {"drafting": drafting / step, "scoring": scoring / step, "the rest": rest / step},
        "plain steps": f"{step / times:.2f} times as long as a plain step.",
        "no draft": "With these tokens a step not even a free draft breaks even: scoring and the rest cost more.",
        "some draft": "To break even, drafting may take 50% of the time that it takes.",
        "needed": "At these costs a step must emit 2.00 tokens to break even, in place of 1.20: an acceptance of 0.62 "
        "by theory, in place of 0.10.",
        "alpha": 0.5,
        "none": None,
    }
    return differences(
        {**found, **found.pop("shares")},  # type: ignore[dict-item]
        {**expected, **expected.pop("shares")},  # type: ignore[dict-item]
    )


def _beside(made: Hand) -> float:
    """Return what a plain step takes beside its pass, in passes."""
    runs = made.runs(PLAIN)
    beside = sum(run.phase("propose", "verify", "commit") + run.other for run in runs)
    return beside / sum(run.phase("score") for run in runs)


def drawn() -> Differences:
    """What pictures show: passes by their nodes, acceptance by position, accepted tokens."""
    made = hand(count=5, batch=2, rounds=1)
    curve = why._curve(made.stats(PLAIN), made.stats(DRAFTED))
    plain, own = ([step for run in made.runs(arm) for step in run.steps] for arm in (PLAIN, DRAFTED))
    once, wide = (np.mean([step.seconds["score"] for step in steps]) for steps in (plain, own))
    # Mean width of a call times mean rows of a call.
    nodes = [
        float(np.mean([1 + step.depth for step in steps]) * np.mean([len(step.rows) for step in steps]))
        for steps in (plain, own)
    ]
    rows = [row for step in own for row in step.rows]
    tried = {k: [row for row in rows if row.drafted > k and row.accepted >= k] for k in range(3)}
    histogram: Any = pictures.acceptance_histogram(_run(made))
    talks = hand(count=6, rounds=1)
    talks.outcome.done[5]["began"] = talks.outcome.done[0]["unit"]
    first = pictures._rates(_run(talks), DRAFTED, "position")[0]
    units = [[row for run in unit for row in run.rows] for unit in talks.by_unit(DRAFTED)]
    counts = [[sum(getattr(row, name) > 0 for row in unit) for unit in units] for name in ("accepted", "drafted")]
    bounds = paired_ratio(*([one[0] + one[5], *one[1:5]] for one in counts))
    found = {
        "widths": curve.num_nodes,
        "costs": curve.costs,
        "lengths": [*why.predictions(_run(made), DRAFTED)],
        "chains": [why.drafts_chains(made.stats(arm)) for arm in (PLAIN, DRAFTED)],
        "rates": [(point.x, point.y) for point in pictures._rates(_run(made), DRAFTED, "position")],
        "conversations": first.low,
        "histogram": {trace["name"]: trace["x"][0] for trace in histogram.traces},
    }
    expected = {
        "widths": (1, *map(round, nodes)),
        "costs": (1.0, 1.0, float(wide / once)),
        "lengths": [1, 2, 3],
        "chains": [False, True],
        "rates": [(k + 1, sum(row.accepted > k for row in tried[k]) / len(tried[k])) for k in range(3)],
        "conversations": bounds.low,
        "histogram": {str(k): sum(row.accepted == k for row in rows) / len(rows) for k in range(4)},
    }
    return differences(found, expected)


def guarded() -> Differences:
    """A guard's figures and rows: what fell, beside which bound, at which rate."""
    made = hand(count=8, rounds=1)
    before = _run(hand(count=8, rounds=2))
    told = {(one.arm, one.name): one for one in figures_of(_run(made), before, True, 0.1)}
    lengths_, speed = told[DRAFTED, ACCEPT_LEN], told[DRAFTED, SPEED]
    tokens = [sum(step.emitted for run in unit for step in run.steps) for unit in made.by_unit(DRAFTED)]
    steps = [len([row for run in unit for row in run.rows]) for unit in made.by_unit(DRAFTED)]
    units = 12
    slower = Figure("x", SPEED, ([1.0] * units, [1.5] * units), ([1.0] * units, [1.0] * units), 0.95)
    fine = Figure("x", SPEED, ([1.0] * units, [1.01] * units), ([1.0] * units, [1.0] * units), 0.95)
    (fell, kept) = judge([slower, fine])
    change = ratio_change(slower.new, slower.old, 0.99)
    row = Finding(slower, change, 0.25, 0.005).row()
    found = {
        "accept_len": (lengths_.new, lengths_.bound),
        "speed": (speed.new, speed.old, speed.bound),
        # The interval has to lie below the bound, not only below 1.
        "fell": (fell.fell, kept.fell, Finding(slower, Interval(0.93, 0.9, 0.97, 12), 0.001, 0.005).fell),
        "rate": (fell.rate, fell.change.level, fell.p_value),
        "change": (fell.change.value, fell.change.high),
        "row": {name: row[name] for name in ("run", "reference", "p", "fell")},
    }
    walls = [[sum(run.wall for run in unit) for unit in made.by_unit(arm)] for arm in (PLAIN, DRAFTED)]
    whole = hand(count=8, rounds=2)
    olds = [[sum(run.wall for run in unit) for unit in whole.by_unit(arm)] for arm in (PLAIN, DRAFTED)]
    expected = {
        "accept_len": ((tokens, steps), 1.0),
        "speed": ((walls[0], walls[1]), (olds[0], olds[1]), 0.9),
        "fell": (True, False, False),
        # 1 % over both figures; an interval of both sides; 2 ** -12 of all swaps is as low.
        "rate": (0.005, 0.99, 2**-12),
        "change": (1 / 1.5, change.high),
        "row": {"run": "0.667", "reference": "1.000", "p": "0.25", "fell": "no"},
    }
    return differences(found, expected)


def needs() -> Differences:
    """The figures of strategies' pages: what a step costs, below what it pays, and what one part would have to be."""
    plain = {"tau": "1", "v": "1.00", "c": "0", "propose/T": "0.00", "other/T": "0.20"}
    row = {"tau": "2.00", "v": "1.50", "c": "0.25", "propose/T": "0.80", "other/T": "0.50"}
    costs = benchmark_figures.with_costs({"plain": plain, "x": row, "peer": {"tau": "-"}})
    section = "\n\n".join(
        f"| arm | {one} | {two} |\n| --- | --- | --- |\n| x | {first} | {second} |\n"
        for one, two, first, second in (("tau", "v", 2, 1), ("v", "c", 9, 3))
    )
    found = {
        "cost": (costs["x"]["cost"], costs["x"]["pays below"], costs["peer"]),
        # 2.8 plain passes a step, of which 2.4 would be even.
        "needs": benchmark_figures.needs_of(row, plain),
        "dear": benchmark_figures.needs_of({**row, "tau": "1.10", "propose/T": "0.25"}, plain),
        "cells": benchmark_figures.cells_of(section, "arm"),
    }
    expected = {
        "cost": ("2.80", "2.40", {"tau": "-"}),
        "needs": {"tau": "2.00 → 2.33", "v": "1.50 → 1.10", "c": "0.25 → 0.125"},
        # 2.25 passes a step, of which 1.32 would be even: a chain of one token yields at most 2.
        "dear": {"tau": "1.10 → 1.88", "v": "1.50 → 0.57", "c": "0.25 → none"},
        "cells": {"x": {"arm": "x", "tau": "2", "v": "1", "c": "3"}},
    }
    return differences(found, expected)


def predicted() -> Differences:
    """The work of runs, and costs that follow from it."""
    made = hand(count=5, batch=2)
    read = Work.of(made.stats(DRAFTED))
    steps = [step for run in made.runs(DRAFTED) for step in run.steps]
    rows = [row for step in steps for row in step.rows]
    line = Line(0.5, 0.25, 0.125)
    curve = WidthCurve((1, 5), (1.0, 2.0))
    costs = Costs(curve, line, Line(0.25), 0.2, (0.1, 0.8), 0.01)
    parts = costs.parts(Work(2.0, 3.0, 9.0, 4.0), Work(1.0, 4.0, 4.0, 0.0))
    # v of 9 nodes is 1 + 8 / 4, and of the four rows of plain decoding 1 + 3 / 4.
    scoring = 0.1 + 0.8 * 3.0 / 1.75
    work = {
        "tokens": sum(len(row.tokens) for row in rows) / len(rows),
        "rows": len(rows) / len(steps),
        "nodes": (sum(row.drafted for row in rows) + len(rows)) / len(steps),
        "levels": sum(step.depth for step in steps) / len(steps),
    }
    fits = {
        "line": line.at(Work(2.0, 3.0, 10.0, 4.0)),
        "fit": [round(value, 9) for value in _fit([[1.0, 2.0, 4.0], [1.0, 1.0, 1.0]], [0.7, 1.2, 2.2])],
        "one reading": _fit([[4.0], [1.0]], [2.0]),
    }
    return together(
        work=differences(vars(read), work),
        parts=differences(vars(parts), vars(Parts(2.0, 0.75, 0.5 + 1.0 + 9 * 0.125, scoring, 0.25, 0.2, 0.01))),
        fits=differences(fits, {"line": 0.5 + 4 * 0.25 + 10 * 0.125, "fit": [0.5, 0.2], "one reading": [0.5, 0.0]}),
    )


def _decoded(runs: Sequence[HandRun]) -> tuple[float, int]:
    """Return the seconds of decoding, and its tokens."""
    seconds = sum(run.seconds - run.prefill for run in runs)
    return seconds, sum(step.emitted for run in runs for step in run.steps)


def crossed() -> Differences:
    """A batch size of the crossover: its row, and how steps of two rows are timed."""
    made = hand(count=5, batch=2)
    times = batch_sizes.step_times(made.outcome, PLAIN, 0, 2)
    assert times is not None
    whole = [step for run in made.runs(PLAIN) for step in run.steps if len(step.rows) == 2]
    medians = {phase: float(np.median([step.seconds[phase] for step in whole])) for phase in PHASES[:-1]}
    calls = sum(len(run.steps) for run in made.runs(PLAIN))
    medians["other"] = sum(run.other for run in made.runs(PLAIN)) / calls
    a, b, c = (
        {**dict.fromkeys(PHASES, value), "score": score} for value, score in ((0.1, 2.0), (0.05, 9.0), (0.02, 9.0))
    )
    passes = PassTimes((1, 2), {1: (1.0, 1.5), 4: (1.2, 2.4)})
    row = batch_sizes._row(2, 3, made.outcome, DRAFTED, StepParts(a, b, c), passes)
    # Units are paired: plain decoding's time per token for as many tokens.
    units = [[_decoded(unit) for unit in made.by_unit(arm)] for arm in (PLAIN, DRAFTED)]
    as_many = sum(seconds / count * other for (seconds, count), (_, other) in zip(*units, strict=True))
    ratio = as_many / sum(seconds for seconds, _ in units[1])
    plain, own = ([len(step.rows) for run in made.runs(arm) for step in run.steps] for arm in (PLAIN, DRAFTED))
    tau, rows = sum(count for _, count in units[1]) / sum(own), float(np.mean(own) / np.mean(plain))
    # A pass of one row takes 1 or 1.2 where the pass of both takes 1.5 or 2.4.
    narrow = float(np.mean([1.5 if count == 2 else 1.0 for count in plain])) / 1.5
    wide = float(np.mean([2.4 if count == 2 else 1.2 for count in own])) / 1.5
    # Drafting takes 0.1 + 0.05 + 3 x 0.02, and so does each part of the rest; a plain step 4 x 0.1 and its pass of 2.
    foretold = tau * rows / (2 * wide + 0.21 + 3 * 0.21) * (0.4 + 2 * narrow)
    found = {
        name: row[name]
        for name in ("batch", "k", "tau", "v", "rows", "decoding alone", "predicted", "measured/predicted")
    }
    expected = {
        "batch": 2,
        "k": 3,
        "tau": tau,
        "v": 1.6,
        "rows": rows,
        "decoding alone": ratio,
        "predicted": foretold,
        "measured/predicted": ratio / foretold,
        "times": medians,
        # Between 4 and 16, in logarithms, half of the way from 1.25 to 0.75.
        "crossing": (8.0, 2.0, None),
    }
    points = [(4, 1.25), (16, 0.75)]
    found |= {"times": times}
    found["crossing"] = (
        batch_sizes.crossing(points),
        batch_sizes.crossing([(2, 0.9)]),
        batch_sizes.crossing(points[:1]),
    )
    return differences(found, expected)


STATISTICS = (order, reasons, drawn, guarded, needs, predicted, crossed)
MUTANTS = line_mutants(
    (_measure, "for arm in arms if first.problem is None else ():", "for arm in ():", order, "warm-up"),
    (harness.measure, "first = (unit.index + round_) % len(arms)", "first = 0", order, "measured"),
    (why.shares, '"the rest": parts.rest', '"the rest": 0.0', reasons, "drafting"),
    (why._step, "share * parts.drafting", "share", reasons, "faster drafts"),
    (why._step, "parts.tokens * parts.rows / parts.speedup", "parts.tokens / parts.speedup", reasons, "plain steps"),
    (why._affordable, "parts.tokens * parts.rows *", "parts.tokens *", reasons, "some draft"),
    (why._break_even, "parts.tokens / parts.speedup", "parts.tokens / parts.speedup**0.5", reasons, "needed"),
    (why._step, "(0.5, 0.0)", "(0.5, 0.1)", reasons, "faster drafts"),
    (why.longest_of, " - 1", "", drawn, "lengths"),
    (why.drafts_chains, "stats.num_drafted > 0", "True", drawn, "chains"),
    (batch_sizes.predict, "parts.seconds(length, REST) / once", "parts.seconds(length, REST)", crossed, "predicted"),
    (why.acceptance_for, "- tokens", "- 0.9 * tokens", reasons, "alpha"),
    (why._nodes, " * stats.num_steps / stats.target_calls", "", drawn, "widths"),
    (why._curve, "/ once", "/ 1.0", drawn, "costs"),
    (pictures._rates, "Point(place + 1,", "Point(place,", drawn, "rates"),
    (pictures._rates, "run.outcome.clusters()", "[[one] for one in run.outcome.done]", drawn, "conversations"),
    (pictures.acceptance_histogram, "count / counts.total()", "count / len(counts)", drawn, "histogram"),
    (figures_of, "reference.outcome.times(arm), 1 - tolerance", "reference.outcome.times(arm), 1.0", guarded, "speed"),
    (judge, "FALSE_ALARMS / len(figures)", "FALSE_ALARMS", guarded, "rate"),
    (Finding.fell, "< self.figure.bound", "< 1.0", guarded, "fell"),
    (Finding.row, "(self.figure.new, self.figure.old)", "(self.figure.old, self.figure.new)", guarded, "row"),
    (benchmark_figures.with_costs, "float(row['tau']) * costs[PLAIN]", "costs[PLAIN]", needs, "cost"),
    (benchmark_figures.needs_of, "1 + propose / c", "1 + propose", needs, "dear"),
    (
        benchmark_figures.cells_of,
        "{**row, **rows.get(row[key], {})}",
        "{**rows.get(row[key], {}), **row}",
        needs,
        "cells",
    ),
    (Work.of, "stats.num_drafted + stats.num_steps", "stats.num_drafted", predicted, "work: nodes"),
    (Line.at, "self.node * work.nodes", "self.node * work.rows", predicted, "fits: line"),
    (Costs.parts, "/ self.nodes.at(plain.rows)", "", predicted, "parts: scoring"),
    (_fit, "np.ones(len(taken))", "taken", predicted, "fits: fit"),
    (batch_sizes.step_times, "== rows", ">= 1", crossed, "times"),
    (batch_sizes.step_times, "np.median(steps, axis=1)", "np.min(steps, axis=1)", crossed, "times"),
    (batch_sizes.predict, "* (parts.seconds(0) / once - 1 + plain_cost)", "", crossed, "predicted"),
    (batch_sizes.in_flight, " / (plain.num_steps / plain.target_calls)", "", crossed, "rows"),
    (batch_sizes.crossing, "(above - 1) / (above - below)", "above / (above + below)", crossed, "crossing"),
    (batch_sizes._row, "(length, arm)", "(length, PLAIN)", crossed, "predicted"),
    (PassTimes.cost, "self.seconds[1][-1]", "self.seconds[1][0]", crossed, "v"),
)
