"""Corners of a run's tables: conversations as units, draws by rounds, checks that fail, what few passes tell."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from experiments.advise import advice_parts as advise_parts
from experiments.advise.advice_parts import Parts, missing
from experiments.harness import recorded_runs
from experiments.harness.arms import PLAIN
from experiments.harness.draw_checks import LawEvidence, sum_of
from experiments.harness.findings import run_tables, step_columns, summary
from experiments.harness.findings.causes import Widening
from experiments.harness.recorded_runs import AssumedCosts
from experiments.harness.run_outcome import Outcome
from specdec.stats.report.intervals import Interval, bootstrap_ratio, paired_ratio
from tests.support.line_mutants import Differences, differences, line_mutants
from tests.support.runs.hand_run import DRAFTED, Hand, HandRun, hand


def _as_draws(made: Hand, answers: Sequence[int]) -> list[list[HandRun]]:
    """Give the drafting arm other units' answers, as draws of its own; return their runs, by unit."""
    arms, runs = [entry["arms"] for entry in made.outcome.done], made.by_unit(DRAFTED)
    chosen = [arms[at][DRAFTED] for at in answers]
    for one, kept in zip(arms, chosen, strict=True):
        one[DRAFTED] = kept
        for each in one.values():
            each |= {"repeats_plain": False, "sound": each["identical"]}
    return [runs[at] for at in answers]


def _tokens(runs: Sequence[HandRun]) -> int:
    """Return the tokens of a round."""
    return sum(step.emitted for step in runs[0].steps)


def _sums(of: Callable[[list[HandRun]], float], units: Sequence[list[HandRun]]) -> list[float]:
    """Return a figure of two conversations: the first and the third unit are one, the second is another."""
    first, second, third = map(of, units)
    return [first + third, second]


def conversations() -> Differences:
    """Units that hold turns of one conversation count as one: their times, tokens and steps add up."""
    made = hand()
    made.outcome.done[2]["began"] = made.outcome.done[0]["unit"]
    plain, own = made.by_unit(PLAIN), made.by_unit(DRAFTED)

    def outside(units: Sequence[list[HandRun]]) -> list[list[float]]:
        steps = [[step for run in unit for step in run.steps if 9 not in step.rows[0].tokens] for unit in units]
        kinds: list[Callable[[Any], float]] = [
            len, lambda some: sum(s.emitted for s in some), lambda some: sum(sum(s.seconds.values()) for s in some)
        ]  # fmt: skip
        return [[of(steps[0]) + of(steps[2]), of(steps[1])] for of in kinds]

    (_, tokens, seconds), (steps, made_, taken) = outside(plain), outside(own)
    as_fast = sum(s / t * m for s, t, m in zip(seconds, tokens, made_, strict=True)) / sum(taken)
    fast, efficient = made.outcome.speedup_outside(DRAFTED), made.outcome.block_efficiency_outside(DRAFTED)
    assert fast is not None
    assert efficient is not None
    found: dict[str, Any] = {
        "times": made.outcome.times(DRAFTED),
        "tokens and steps": made.outcome.tokens_and_steps(DRAFTED),
        "outside": (fast.value, fast.num_units),
        "tau outside": (efficient.value, efficient.num_units),
    }
    walls = [_sums(lambda unit: sum(run.wall for run in unit), units) for units in (plain, own)]
    expected: dict[str, Any] = {
        "times": (walls[0], walls[1]),
        "tokens and steps": (
            _sums(lambda unit: 2 * _tokens(unit), own),
            _sums(lambda unit: sum(len(run.steps) for run in unit), own),
        ),
        "outside": (as_fast, 2),
        "tau outside": (sum(made_) / sum(steps), 2),
    }
    theirs = _as_draws(made, [1, 2, 1])
    before = _sums(lambda unit: sum(run.prefill for run in unit), plain)
    more = [a / b for a, b in zip(_sums(_tokens, theirs), _sums(_tokens, plain), strict=True)]
    found["draws"] = made.outcome.times(DRAFTED)[0]
    expected["draws"] = [b + (wall - b) * m for b, wall, m in zip(before, walls[0], more, strict=True)]
    return differences(found, expected)


def draws_by_rounds() -> Differences:
    """Draws of few prompts: a round of plain decoding for as many tokens, the prompts' mean time as it is."""
    made = hand(rounds=6)
    theirs, plain = _as_draws(made, [1, 2, 1]), made.by_unit(PLAIN)
    before = sum(run.prefill for unit in plain for run in unit) / 6
    more = sum(map(_tokens, theirs)) / sum(map(_tokens, plain))
    walls = [sum(unit[number].wall for unit in plain) for number in range(6)]
    found = {"times": made.outcome.times(DRAFTED)[0], "by rounds": made.outcome.by_rounds}
    # Five of anything are enough, four are not.
    found["enough"] = [hand(count, number).outcome.by_rounds for count, number in ((5, 5), (4, 5), (4, 4))]
    expected = {"times": [before + (wall - before) * more for wall in walls], "by rounds": True}
    return differences(found, expected | {"enough": [False, True, False]})


def checked() -> Differences:
    """What is kept of outputs that failed their check, of draws, of calibrations; tokens that the end cut off."""
    made = hand()
    entries = [entry["arms"][DRAFTED] for entry in made.outcome.done]
    for entry, calibration, passed in zip(entries, ("a", "a", "b"), (True, False, True), strict=True):
        entry |= {"calibration": calibration, "identical": [passed]}
    entries[1]["stats"] |= {"num_scouts": 48}
    entries[0]["records"]["num_emitted"][0] -= 1
    entries[2]["records"]["num_emitted"][1] -= 1
    row, (_, work) = step_columns.acceptance_table(made.outcome).rows[1], run_tables.work_table(made.outcome).rows
    untimed, timed = summary._summary_without_times(made.outcome, DRAFTED), summary._arm_summary(made.outcome, DRAFTED)
    found: dict[str, Any] = {
        "calibrations": timed["calibrations"],
        "identical": (timed["identical"], timed["prompts"], untimed["identical"], untimed["prompts"]),
        "seconds": [name for name in untimed["stats"] if "seconds" in name],
        "lacking": sorted(set(timed) - set(untimed)) + sorted(set(timed["stats"]) - set(untimed["stats"])),
        "cut": row["cut"],
        "scouts": (work["scouts"], work["extra nodes"]),
        "settings": made.outcome.settings(DRAFTED),
    }
    _as_draws(made, [0, 1, 2])
    for entry in entries:
        entry["law"] = vars(LawEvidence(4, 0, 0.5, 0.25))
    kept = summary._checks(made.outcome, DRAFTED)
    found["draws"] = (kept["sound"], kept["prompts"], kept["law"]["tokens"], kept["law"]["hotter"])
    settings = hand().outcome.settings(PLAIN)
    expected: dict[str, Any] = {
        "calibrations": ["a", "b"],
        "identical": (2, 3, 2, 3),
        "seconds": [],
        "lacking": [
            *(
                "calibrations",
                "claim",
                "decoding_alone",
                "end_to_end",
                "rule",
                "time_to_first_token",
                "tokens_per_second",
            ),
            *("first_token_seconds", "seconds", "stages"),
        ],
        "cut": 2,
        "scouts": (48 / 24, 44 / 24 + 48 / 24),
        "settings": settings,
        "draws": (2, 3, 12, 1.5),
    }
    return differences(found, expected)


def told() -> Differences:
    """The conclusion of several arms: the surest, if the best is not told apart; the largest of all e-values."""
    speedups = {"a": Interval(2.0, 0.9, 4.0, 6), "b": Interval(1.5, 1.2, 1.9, 6), "c": Interval(1.25, 1.1, 1.4, 6)}
    e_values = {"a": 0.5, "b": 3.25, "c": None}

    def law(arm: str) -> Any:
        value = e_values.get(arm)
        return None if value is None else SimpleNamespace(e_value=value)

    fake: Any = SimpleNamespace(
        arms=(PLAIN, *speedups), speedup=lambda arm, *_, **__: speedups[arm], has_draws=True, law=law,
        decoding_speedup=lambda arm, *_: None if arm == "a" else speedups["c"],
        clusters=lambda: [[{"prompts": ["of two turns"]}]],
        check_results=lambda arm: [True, arm != "b"],
    )  # fmt: skip
    first, second = summary.conclusion(fake).splitlines()
    one_kind = hand(count=2)
    row = run_tables.speed_table(one_kind.outcome, {}).rows[0]
    headings = [summary._few(hand(count, 1).outcome, "prompt") for count in (4, 5)]
    five = [[1.0, 2.0, 3.0, 2.0, 1.5], [1.0, 1.5, 2.5, 1.0, 1.0]]
    found = {
        "first": first,
        "second": second,
        "columns": [*row],
        "few": [bool(heading) for heading in headings],
        "five units": [method(*five).low is None for method in (paired_ratio, bootstrap_ratio)],
    }
    expected = {
        "first": "b is faster than plain decoding on 1 prompt (2 outputs an arm): decoding alone "
        "1.25 [1.10, 1.40], end to end 1.50 [1.20, 1.90]; a is not told apart from it: end to end 2.00 (n = 6, wide).",
        "second": "7 of 8 outputs, of 4 arms, have their length and come again with their seed; they are draws of one "
        "law, not one text, and the largest e-value against that law is 3.2.",
        "columns": ["arm", "tokens/s", "decoding alone", "end to end", "bootstrap", "no loops", "identical"],
        "few": [True, False],
        "five units": [False, False],
    }
    return differences(found, expected)


def _passes(*passes: tuple[int, int, float]) -> list[dict[str, Any]]:
    """Return the records of passes: rows, nodes of a row, seconds."""
    columns: dict[str, list[Any]] = {name: [] for name in ("round", "step", "num_rows", "num_nodes", "seconds_score")}
    for step, (rows, nodes, seconds) in enumerate(passes):
        for _ in range(rows):
            for name, value in zip(columns, (0, step, rows, nodes, seconds / rows), strict=True):
                columns[name].append(value)
    return [columns]


def few_passes() -> Differences:
    """What is compared where passes are few: the arm's own narrow ones, and fewer rows from three of either kind on."""
    plain, one, wide = _passes(*[(1, 1, 2.0)] * 3), (1, 1, 2.0), (4, 5, 9.0)
    own = Widening.of(plain, _passes((4, 1, 3.0), wide, wide))
    fewer = Widening.of(_passes(*[one] * 3, (4, 1, 3.0)), _passes(wide, wide, *[(1, 5, 5.0)] * 3, wide, wide))
    two = Widening.of(_passes(*[one] * 2, (4, 1, 3.0)), _passes(wide, wide, wide, wide, *[(1, 5, 5.0)] * 3))
    rare = Widening.of(_passes(*[one] * 3, (4, 1, 3.0)), _passes(wide, wide, wide, *[(1, 5, 5.0)] * 2))
    none = Widening.of(plain, _passes(wide, wide))
    found = {
        "own": own and (own.rows, own.nodes, own.cost, own.fewer),
        "fewer": fewer and fewer.fewer and (fewer.fewer.rows, fewer.fewer.nodes, fewer.fewer.cost),
        "too few": (two and two.fewer, rare and rare.fewer),
        "nothing alike": none,
        "of one row": [Widening(4, 5, cost).of_one_row for cost in (0.75, 1.0, 5.0, 6.0)],
    }
    expected = {
        "own": (4, 5, 3.0, None),
        "fewer": (1, 5, 2.5),
        "too few": (None, None),
        "nothing alike": None,
        "of one row": [0.75, 1.0, 5.0, 6.0],
    }
    return differences(found, expected)


def _said(call: Callable[[], object]) -> str:
    """Return whether a call is refused."""
    try:
        call()
    except ValueError:
        return "refused"
    return "taken"


def stated() -> Differences:
    """Costs as a command line states them; and the parts that a prediction misses."""
    costs = AssumedCosts.of({"draft_cost": ["0.5", "x=0.25"], "width_cost": "0.125"})
    listed = AssumedCosts.of({"draft_cost": ["0"], "width_cost": "1,1.5,1.75"})
    assert costs is not None
    assert listed is not None
    wrong = [
        {"draft_cost": ["1"], "width_cost": None},
        {"draft_cost": None, "width_cost": "0"},
        {"draft_cost": ["x=1", "x=2"], "width_cost": "0"},
        {"draft_cost": ["-1"], "width_cost": "0"},
    ]
    was = Parts(3.0, 1.0, 0.5, 1.0, 0.1, 0.1, 0.01)
    found: dict[str, Any] = {
        "draft": dict(costs.draft),
        "width": (costs.width(3), listed.width(2), listed.width(3)),
        "nothing": AssumedCosts.of({}),
        "wrong": [_said(lambda one=one: AssumedCosts.of(one)) for one in wrong],  # type: ignore[misc]
        "close": missing(was, Parts(2.9, 1.0, 0.5, 1.0, 0.1, 0.1, 0.01)),
        "tokens": missing(was, Parts(2.0, 1.0, 0.5, 1.0, 0.1, 0.1, 0.01)),
        "rows": missing(was, Parts(3.0, 0.5, 0.5, 1.0, 0.1, 0.1, 0.01)),
        "less": missing(was, Parts(3.0, 1.0, 0.5, 0.5, 0.1, 0.1, 0.01)),
        # Right tokens leave 1.375 over 1.048 wrong, right scoring 1.571.
        "two": [*missing(was, Parts(2.0, 1.0, 0.5, 1.5, 0.1, 0.1, 0.01)).items()],
    }
    expected: dict[str, Any] = {
        "draft": {"": 0.5, "x": 0.25},
        "width": (1.25, 1.5, 1.75),
        "nothing": None,
        "wrong": ["refused"] * 4,
        "close": {},
        "tokens": {"tokens": "tau 2.00 instead of 3.00"},
        "rows": {"rows": "0.50 of plain decoding's rows in flight instead of 1.00"},
        "less": {"scoring": "scoring took 5.00 ms a step less than predicted"},
        "two": [("tokens", "tau 2.00 instead of 3.00"), ("scoring", "scoring took 5.00 ms a step more than predicted")],
    }
    return differences(found, expected)


STATISTICS = (conversations, draws_by_rounds, checked, told, few_passes, stated)
MUTANTS = line_mutants(
    (Outcome.clusters, 'entry.get("began", ', "(lambda _, own: own)(0, ", conversations, "times"),
    (Outcome.tokens_and_steps, "[sum(one[name]", "[max(one[name]", conversations, "tokens and steps"),
    (sum_of, "sum(vars", "max(vars", conversations, "outside"),
    (Outcome._scaled_times, "sum(_prefill(", "max(_prefill(", conversations, "draws"),
    (Outcome._scaled_times, "[(sum(own), sum(others))]", "[(max(own), sum(others))]", draws_by_rounds, "times"),
    (Outcome.by_rounds, "< FEWEST_UNITS", "<= FEWEST_UNITS", draws_by_rounds, "enough"),
    (Outcome.calibrations, " and one not in measured[:i]", "", checked, "calibrations"),
    (summary._checks, '{"identical": sum(passed)', '{"identical": len(passed)', checked, "identical"),
    (summary._summary_without_times, '"seconds" not in name and ', "", checked, "seconds"),
    (run_tables.work_table, "drafted + scouts", "drafted", checked, "scouts"),
    (step_columns.cut_steps, "emitted < accepted + 1", "emitted < accepted", checked, "cut"),
    (summary.conclusion, "sure = max(told", "sure = min(told", told, "first"),
    (summary.agreement, "largest = max(", "largest = min(", told, "second"),
    (run_tables.columns_of_kinds, "if len(outcome.kinds) > 1 else ()", "", told, "columns"),
    (summary._few, ">= FEWEST_UNITS", "> FEWEST_UNITS", told, "few"),
    (bootstrap_ratio, "n < FEWEST_UNITS", "n <= FEWEST_UNITS", told, "five units"),
    (Widening.of, "plain_like or own_like", "plain_like", few_passes, "own"),
    (Widening.of_one_row, "self.cost <= 1 or ", "", few_passes, "of one row"),
    (AssumedCosts.of, "len(found) < len(parts)", "False", stated, "wrong"),
    (recorded_runs._number, "0 <= value", "-9 <= value", stated, "wrong"),
    (advise_parts._absolute, "1e3 * parts.once * getattr", "1e3 * getattr", stated, "less"),
    (advise_parts._describe, "if measured > predicted", "if measured < predicted", stated, "less"),
    (missing, "key=distance", "key=lambda name: -distance(name)", stated, "two"),
    (advise_parts._gain, ' * parts["rows"]', "", stated, "rows"),
)
