"""The tables of a run, every column worked out from the steps that are written by hand."""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from experiments.advise.advice_parts import Parts
from experiments.harness import recorded_runs, run_outcome
from experiments.harness import running as harness
from experiments.harness.arms import PLAIN
from experiments.harness.findings import causes, run_tables, step_columns, summary
from experiments.harness.findings.causes import Widening, cause_table
from experiments.harness.findings.step_columns import device_table, device_work, reason, reason_table, stage_table
from experiments.harness.recorded_runs import AssumedCosts
from experiments.harness.run_outcome import Outcome, OutsideLoops, decoding_seconds, decoding_time
from experiments.studies import lengths
from specdec.stats import Stats, Table
from specdec.stats.report.intervals import paired_ratio
from specdec.theory import WidthCurve
from tests.support.line_mutants import Differences, differences, line_mutants, together
from tests.support.runs.hand_run import DRAFTED, LONGEST, NEW, PEER, PHASES, Hand, HandRun, hand, run_of

ARMS = (PLAIN, DRAFTED)


def _rows(table: Table | None) -> Sequence[Mapping[str, Any]]:
    assert table is not None
    return table.rows


def _flat(rows: Sequence[Mapping[str, Any]], key: str = "arm") -> dict[str, Any]:
    """Return the cells of a table by "row, column"."""
    return {f"{row[key]}, {column}": value for row in rows for column, value in row.items() if column != key}


def _wall(runs: Sequence[HandRun]) -> float:
    return sum(run.wall for run in runs)


def _few(value: float, units: int) -> str:
    return f"{value:.2f} (n = {units})"


def _outside(runs: Sequence[HandRun]) -> tuple[int, int, float]:
    """Return the steps, tokens and seconds of batches of one without the token that goes round in a loop."""
    steps = [step for run in runs for step in run.steps if 9 not in step.rows[0].tokens]
    return len(steps), sum(step.emitted for step in steps), sum(sum(step.seconds.values()) for step in steps)


def _as_fast_outside(made: Hand, arm: str) -> float:
    """Return plain decoding's time for the arm's tokens outside loops, over the arm's."""
    plain, own = ([_outside(unit) for unit in made.by_unit(name)] for name in (PLAIN, arm))
    as_many = sum(p[2] / p[1] * o[1] for p, o in zip(plain, own, strict=True))
    return as_many / sum(unit[2] for unit in own)


def speeds() -> Differences:
    """The table of speeds: tokens a second, speed-ups by kind of prompt, outside loops, and what was checked."""
    made, expected = hand(with_peer=True), {}
    for arm in (*ARMS, PEER):
        for kind, units in (("code", 2), ("chat", 1), ("all", 3)):
            name = "end to end" if kind == "all" else kind
            ratio = _wall(made.runs(PLAIN, kind)) / _wall(made.runs(arm, kind))
            expected[f"{arm}, {name}"] = "1" if arm == PLAIN else _few(ratio, units)
        tokens = 2 * (6 + 8 + 8)
        expected |= {
            f"{arm}, tokens/s": round(tokens / _wall(made.runs(arm)), 1),
            f"{arm}, bootstrap": expected[f"{arm}, end to end"],
            f"{arm}, decoding alone": "1" if arm == PLAIN else None,
            f"{arm}, identical": "3/3",
            f"{arm}, no loops": "1" if arm == PLAIN else "-",
        }
    expected[f"{DRAFTED}, no loops"] = _few(_as_fast_outside(made, DRAFTED), 3)
    alone = _decoding(made.runs(PLAIN)) / _decoding(made.runs(DRAFTED))
    expected[f"{DRAFTED}, decoding alone"] = _few(alone, 3)
    names = ("tokens/s", "decoding alone", "end to end", "bootstrap", "no loops", "code", "chat")
    expected |= {**{f"gone, {name}": None for name in names}, "gone, identical": "refused: no room"}
    return differences(_flat(run_tables.speed_table(made.outcome, {"gone": "no room"}).rows), expected)


def draws() -> Differences:
    """Speeds of arms that emit texts of their own: of as many tokens, the prompts' times as they are."""
    made = hand()
    arms = [entry["arms"] for entry in made.outcome.done]
    # The drafting arm answers each prompt as it did the next one.
    answers = [one[DRAFTED] for one in arms]
    for one, answer in zip(arms, answers[1:] + answers[:1], strict=True):
        one[DRAFTED] = answer
        for kept in one.values():
            kept |= {"repeats_plain": False, "sound": kept["identical"]}
    plain, own = (made.by_unit(arm) for arm in ARMS)
    pairs = [*zip(plain, own[1:] + own[:1], strict=True)]
    before = [sum(run.prefill for run in unit) for unit in plain]
    more = [_emitted(theirs) / _emitted(ours) for ours, theirs in pairs]
    whole = sum(b + (_wall(unit) - b) * m for b, unit, m in zip(before, plain, more, strict=True))
    times = sum(_decoding(ours) * m for (ours, _), m in zip(pairs, more, strict=True))
    expected = {
        "end to end": _few(whole / _wall(made.runs(DRAFTED)), 3),
        "decoding alone": _few(times / _decoding(made.runs(DRAFTED)), 3),
        "checked": "3/3",
    }
    found = _flat(run_tables.speed_table(made.outcome, {}).rows)
    back = made.outcome.decoding_speedup(PLAIN, against=DRAFTED)
    assert back is not None
    found |= {f"{DRAFTED}, value": made.outcome.speedup(DRAFTED).value, f"{DRAFTED}, back": back.value}
    expected["value"] = whole / _wall(made.runs(DRAFTED))
    fewer = (_decoding(theirs) / m for (_, theirs), m in zip(pairs, more, strict=True))
    expected["back"] = sum(fewer) / _decoding(made.runs(PLAIN))
    return differences({name: found[f"{DRAFTED}, {name}"] for name in expected}, expected)


def _emitted(runs: Sequence[HandRun]) -> int:
    return sum(step.emitted for run in runs for step in run.steps)


def _decoding(runs: Sequence[HandRun]) -> float:
    return sum(run.seconds - run.prefill for run in runs)


def rounds() -> Differences:
    """Three prompts in six rounds: pairs are whole rounds, of one arm against another, in both ratios."""
    made = hand(rounds=6)
    (found,) = run_tables.against_rows(made.outcome, DRAFTED)
    plain, own = ([sum(unit[number].wall for unit in made.by_unit(arm)) for number in range(6)] for arm in ARMS)
    ratio = sum(own) / sum(plain)
    expected = {"arm": PLAIN, "verdict": "slower", "to tell": None}
    cells = {name: found[name] for name in expected}
    values = {"value": float(found["end to end"].split(" ")[0])}
    times, alone = made.outcome.times(DRAFTED), made.outcome.decoding_speedup(DRAFTED)
    decoding = [[sum(_decoding([unit[n]]) for unit in made.by_unit(arm)) for n in range(6)] for arm in ARMS]
    of_chat = made.outcome.decoding_speedup(DRAFTED, "chat")
    assert alone is not None
    assert of_chat is not None
    wanted = paired_ratio(*decoding)
    chat = _decoding(made.runs(PLAIN, "chat")) / _decoding(made.runs(DRAFTED, "chat"))
    return differences(
        {**cells, **values, "plain": times[0], "own": times[1]}
        | {"alone": [alone.value, alone.low, alone.num_units], "cell": found["decoding alone"], "chat": of_chat.value},
        {**expected, "value": round(ratio, 2), "plain": plain, "own": own}
        | {"alone": [wanted.value, wanted.low, 6], "cell": str(paired_ratio(*decoding[::-1])), "chat": chat},
    )


def draws_by_rounds() -> Differences:
    """Decoding alone of few prompts in many rounds, of an arm that emits other texts: for as many tokens."""
    made = hand(count=2, rounds=6)
    first, second = made.outcome.done
    second["arms"][DRAFTED] = first["arms"][DRAFTED]
    found = made.outcome.decoding_speedup(DRAFTED)
    assert found is not None
    plain, (own, _) = made.runs(PLAIN), made.by_unit(DRAFTED)
    ratio = _decoding(plain) / _emitted(plain) / (_decoding(own) / _emitted(own))
    return differences({"value": found.value, "units": found.num_units}, {"value": ratio, "units": 6})


class _Counts:
    """What an arm's runs add up to, counted step by step."""

    def __init__(self, runs: Sequence[HandRun]) -> None:
        self.runs, self.steps = runs, [step for run in runs for step in run.steps]
        self.rows = [row for step in self.steps for row in step.rows]
        self.calls, self.emitted = len(self.steps), sum(step.emitted for step in self.steps)
        self.drafted = sum(row.drafted for row in self.rows)
        self.accepted = sum(row.accepted for row in self.rows)
        self.recovered = sum(row.accepted < row.drafted for row in self.rows)
        self.levels = sum(step.depth for step in self.steps)

    @property
    def tau(self) -> float:
        return self.emitted / len(self.rows)

    def tau_full(self, longest: int) -> float:
        """Over the rows that had room for the longest draft and the token after it."""
        full = [row for row in self.rows if NEW - row.before > longest]
        return sum(len(row.tokens) for row in full) / len(full)

    @property
    def alpha(self) -> float | None:
        judged = self.accepted + self.recovered
        return self.accepted / judged if judged else None

    def theory(self) -> float:
        alpha = self.alpha or 0.0
        return sum(sum(alpha**i for i in range(row.drafted + 1)) for row in self.rows) / len(self.rows)

    def a_call(self, *phases: str) -> float:
        """Return the seconds of some phases of a call."""
        other = sum(run.other for run in self.runs) if "other" in phases else 0.0
        return (sum(run.phase(*(set(phases) - {"other"})) for run in self.runs) + other) / self.calls


def reasons() -> Differences:
    """The parts of a step, of batches in which rows end at different times."""
    made, expected = hand(count=5, batch=2), {}
    plain = _Counts(made.runs(PLAIN))
    once, beside = plain.a_call("score"), plain.a_call("propose", "verify", "commit", "other")
    for arm, longest in ((PLAIN, 0), (DRAFTED, LONGEST)):
        own = _Counts(made.runs(arm))
        rest, drafting, scoring = (
            own.a_call(*p) / once for p in (("verify", "commit", "other"), ("propose",), ("score",))
        )
        rows = len(own.rows) / own.calls / (len(plain.rows) / plain.calls)
        faster = rows * (1 + beside / once) / (scoring + drafting + rest)
        expected |= {
            f"{arm}, tau": own.tau,
            f"{arm}, tau full": own.tau_full(longest),
            f"{arm}, alpha": own.alpha,
            f"{arm}, used": own.accepted / own.drafted if own.drafted else None,
            f"{arm}, nodes": sum(1 + step.depth for step in own.steps) / own.calls,
            f"{arm}, T ms": 1e3 * once,
            f"{arm}, v": scoring,
            f"{arm}, c": own.a_call("propose") * own.calls / own.levels / once if own.levels else None,
            f"{arm}, propose/T": drafting,
            f"{arm}, other/T": rest,
            f"{arm}, rows": rows,
            f"{arm}, predicted": own.tau * faster,
            f"{arm}, from alpha": own.theory() * faster if own.drafted else None,
            **{f"{arm}, {phase} ms": 1e3 * own.a_call(phase) for phase in (*PHASES, "other")},
            f"{arm}, decoding alone": _decoding(plain.runs) / plain.emitted / (_decoding(own.runs) / own.emitted),
        }
    return differences(_flat(reason_table(made.outcome).rows), expected)


def work() -> Differences:
    """Tokens and nodes of a pass, and time by phase."""
    made, expected = hand(), {}
    for arm in ARMS:
        own = _Counts(made.runs(arm))
        tau = {kind: _Counts(made.runs(arm, kind)).tau for kind in ("code", "chat", "all")}
        outside = [_outside(unit) for unit in made.by_unit(arm)]
        expected |= {
            f"{arm}, code": _few(tau["code"], 2),
            f"{arm}, chat": _few(tau["chat"], 1),
            f"{arm}, all": _few(tau["all"], 3),
            f"{arm}, bootstrap": _few(tau["all"], 3),
            f"{arm}, no loops": _few(sum(o[1] for o in outside) / sum(o[0] for o in outside), 3),
            f"{arm}, drafted": own.drafted / len(own.rows),
            f"{arm}, scouts": 0.0,
            f"{arm}, extra nodes": own.drafted / len(own.rows),
            f"{arm}, judge": "native: standard; standard",
            f"{arm}, drafter": f"native: {arm}",
        }
    times = {
        arm: {
            "prefill": 1e3 * sum(run.prefill for run in own.runs) / own.emitted,
            **{name: 1e3 * sum(run.phase(name) for run in own.runs) / own.emitted for name in PHASES},
            "other": 1e3 * sum(run.other for run in own.runs) / own.emitted,
        }
        for arm, own in ((arm, _Counts(made.runs(arm))) for arm in ARMS)
    }
    found = summary.phase_times(made.outcome)
    return together(
        work=differences(_flat(run_tables.work_table(made.outcome).rows), expected),
        **{arm: differences(found[arm], times[arm]) for arm in ARMS},
    )


def accepted() -> Differences:
    """The columns of acceptance, of both rounds."""
    made = hand()
    rows = _Counts(made.runs(DRAFTED)).rows
    proposed = {k: [row for row in rows if row.drafted > k] for k in range(LONGEST)}
    given = {k: [row for row in proposed[k] if row.accepted >= k] for k in range(LONGEST)}
    expected = {
        "accept_len": 44 / 24,
        **{f"accept_rate@{k}": sum(r.accepted > k for r in proposed[k]) / len(proposed[k]) for k in range(LONGEST)},
        "verify_rate": (20 + 24) / (44 + 24),
        "proposed": 44 / 24,
        "tokens/answer": 22 / 3,
        **{f"cond_accept@{k}": sum(r.accepted > k for r in given[k]) / len(given[k]) for k in range(LONGEST)},
        "drafts": 18,
        "drafted": 44,
        "steps": 24,
        "cut": 0,
        "ends": "eos 1, length 2",
    }
    found = {row["arm"]: row for row in step_columns.acceptance_table(made.outcome).rows}[DRAFTED]
    return differences({name: value for name, value in found.items() if name != "arm"}, expected)


def ragged() -> Differences:
    """The columns that count rows and answers, of batches in which rows end at different times."""
    made = hand(count=5, batch=2)
    own, rows = _Counts(made.runs(DRAFTED)), step_columns.acceptance_table(made.outcome).rows
    tokens, steps = zip(*[(_emitted(unit), len(_Counts(unit).rows)) for unit in made.by_unit(DRAFTED)], strict=True)
    expected = {
        "accept_len": own.tau,
        "proposed": own.drafted / len(own.rows),
        "tokens/answer": own.emitted / 2 / 5,
        "steps": len(own.rows),
        "tokens and steps": ([*tokens], [*steps]),
        "drafts of plain": 0,
    }
    found = rows[1] | {"tokens and steps": made.outcome.tokens_and_steps(DRAFTED), "drafts of plain": rows[0]["drafts"]}
    return differences({name: found[name] for name in expected}, expected)


def kept() -> Differences:
    """What a summary keeps of each arm, peers among them."""
    made = hand(with_peer=True)
    found = {arm: summary._arm_summary(made.outcome, arm) for arm in (*ARMS, PEER)}
    own, first = _Counts(made.runs(DRAFTED)), [run_of(DRAFTED, unit, r) for unit in made.units for r in (0, 1)]
    to_first = [run.prefill + sum(run.steps[0].seconds.values()) for run in first]
    expected = {
        "tokens_per_second": 44 / _wall(made.runs(DRAFTED)),
        "identical": 3,
        "prompts": 3,
        "claim": "exact",
        "rule": "standard",
        "block_efficiency": own.tau,
        "block_efficiency_full": own.tau_full(LONGEST),
        "acceptance_rate": own.alpha,
        "draft_utilisation": own.accepted / own.drafted,
        "verify_rate": (20 + 24) / (44 + 24),
        "time_to_first_token": sum(to_first) / len(to_first),
        "survival_by_position": {1: 5 / 9, 2: 3 / 8, 3: 2 / 5},
        "acceptance_by_rank": {1: own.alpha},
    }
    told = {name: found[DRAFTED][name] for name in expected}
    speed = {
        f"{name}, {kind}": (one["value"], one["num_units"])
        for name in ("decoding_alone", "end_to_end")
        for kind, one in found[DRAFTED][name].items()
    }
    ratios = {
        f"{name}, {kind}": (of(made.runs(PLAIN, kind)) / of(made.runs(DRAFTED, kind)), units)
        for name, of in (("decoding_alone", _decoding), ("end_to_end", _wall))
        for kind, units in (("code", 2), ("chat", 1), ("all", 3))
    }
    return together(
        drafted=differences(told, expected),
        speed=differences(speed, ratios),
        peer=differences(
            {name: found[PEER][name] for name in ("tokens_per_second", "claim", "decoding_alone")},
            {"tokens_per_second": 44 / _wall(made.runs(PEER)), "claim": "another program", "decoding_alone": None},
        ),
    )


def _records(passes: Sequence[tuple[int, float]]) -> dict[str, list[Any]]:
    """Return the records of passes of one row: nodes, seconds."""
    nodes, seconds = zip(*passes, strict=True)
    count = len(passes)
    columns = {"round": [0] * count, "step": [*range(count)], "num_rows": [1] * count}
    return {**columns, "num_nodes": [*nodes], "seconds_score": [*seconds]}


def widened() -> Differences:
    """t(W)/t(1), of passes of as many rows, whose time every row has a share of."""
    made = hand(count=5, batch=2, rounds=3)
    found = Widening.of(made.outcome.records(PLAIN), made.outcome.records(DRAFTED))
    assert found is not None
    passes: dict[str, dict[tuple[int, int], list[float]]] = {arm: {} for arm in ARMS}
    for arm in ARMS:
        for step in _Counts(made.runs(arm)).steps:
            passes[arm].setdefault((len(step.rows), 1 + step.depth), []).append(step.seconds["score"])
    counts = Counter({shape: len(times) for shape, times in passes[DRAFTED].items()})
    shape = counts.most_common(1)[0][0]
    once = median(passes[PLAIN][shape[0], 1])
    alone = median(passes[DRAFTED][1, shape[1]]) / median(passes[PLAIN][1, 1])
    cost = median(passes[DRAFTED][shape]) / once
    expected = {"shape": shape, "cost": cost, "fewer": (1, shape[1], alone), "passes": passes}
    (row,) = _rows(cause_table(made.outcome))
    fewer = found.fewer
    told = {"shape": (found.rows, found.nodes), "cost": found.cost}
    told |= {"fewer": fewer and (fewer.rows, fewer.nodes, fewer.cost)}
    # A fixed price, and one for each of 4 rows of 5 nodes: 1 + 20 x over 1 + 4 x is 2 if x is 1 / 12.
    guess = Widening(4, 5, 2.0).of_one_row
    expected |= {"of one row": (1 + 5 / 12) / (1 + 1 / 12), "row": (*shape, cost)}
    told |= {"passes": {arm: causes._passes(made.outcome.records(arm)) for arm in ARMS}}
    once_wide = _records([(1, 3.0)] * 3), _records([(3, 4.5), (5, 9.0), (3, 6.0), (3, 4.5)])
    most = Widening.of(*([one] for one in once_wide))
    expected["most frequent"] = (3, 1.5)
    told["most frequent"] = most and (most.nodes, most.cost)
    told |= {"of one row": guess, "row": (row["rows"], row["W"], row["t(W)/t(1)"])}
    return differences(told, expected)


def by_length() -> Differences:
    """The table by length of the prompt."""
    made = hand()
    for number, entry in enumerate(made.outcome.done):
        entry["kind"] = str(64 + number // 2 * 64)
    rows = lengths.tables_of(Outcome(ARMS, made.outcome.done))[0].rows
    found, expected = {}, {}
    for row, kind in zip(rows, ("code", "chat"), strict=True):
        plain, own = (_Counts(made.runs(arm, kind)) for arm in ARMS)
        once, units = plain.a_call("score"), 2 if kind == "code" else 1
        found |= {f"{kind}, {name}": value for name, value in row.items() if name != "arm"}
        wanted = {
            "prompt": 64 if kind == "code" else 128,
            "decoding alone": _few(_decoding(plain.runs) / _decoding(own.runs), units),
            "end to end": _few(_wall(plain.runs) / _wall(own.runs), units),
            "tau": _few(own.tau, units),
            "alpha": own.alpha,
            "T ms": 1e3 * once,
            "v": own.a_call("score") / once,
            "c": own.a_call("propose") * own.calls / own.levels / once,
            "propose/T": own.a_call("propose") / once,
            "other/T": own.a_call("verify", "commit", "other") / once,
        }
        expected |= {f"{kind}, {name}": value for name, value in wanted.items()}
    return differences(found, expected)


def devices() -> Differences:
    """What a step made a device do: twelve steps."""
    made = hand(rounds=1)
    counts = {"uploads": 10, "downloads": 3, "captures": 2, "idle_seconds": 0.1}
    counts |= {"passes_in_graphs": 6, "passes_outside": 4, "computed_nodes": 20, "padded_nodes": 4}
    stage = {"passes": 4, "steps": 5, "drafted": 10, "accepted": 6, "emitted": 11, "seconds": 0.2, "inner_seconds": 0.1}
    for entry in made.outcome.done:
        entry["arms"][DRAFTED]["stats"] |= {"device": counts, "stages": {"inner": stage}}
    runs = made.runs(DRAFTED)
    nodes = sum(1 + step.depth for run in runs for step in run.steps)
    known = sum(row.drafted for run in runs for row in run.rows) + 12
    expected = {
        "arm": DRAFTED,
        "copies up": 30 / 12,
        "copies down": 9 / 12,
        "waits": (9 + 6) / 12,
        "idle ms": 300 / 12,
        "idle": f"{0.3 / _decoding(runs):.0%}",
        "passes": 30 / 12,
        "in graphs": "60%",
        "captures": 6,
        "padding": f"{(12 + nodes - known) / 60:.0%}",
    }
    ragged = hand(count=2, batch=2, rounds=1)
    copies = {"uploads": 1, "downloads": 1, "idle_seconds": 0.0, "padded_nodes": 2}
    ragged.outcome.done[0]["arms"][DRAFTED]["stats"] |= {"device": copies}
    # Rows of 4 + 4, 4 + 1, 3 + 3 and 2 + 1 nodes in passes of 4, 4, 3 and 2 a row, and two nodes beside them.
    of_rows = _rows(device_table(ragged.outcome))[0]["padding"]
    (found,), (told,) = _rows(device_table(made.outcome)), _rows(stage_table(made.outcome))
    inner = {"arm": DRAFTED, "stage": "inner", "passes": 12, "tokens/step": 11 / 5, "used": 0.6}
    inner |= {"ms/pass": 50.0, "inner ms/pass": 25.0}
    return together(
        device=differences({**found, "of rows": of_rows}, {**expected, "of rows": f"{(2 + 3 + 1) / (26 + 2):.0%}"}),
        stage=differences(told, inner),
    )


def worth() -> Differences:
    """What drafts are worth at stated costs, of recorded text."""
    made = hand(count=5, batch=2)
    plain, own = (_Counts(made.runs(arm)) for arm in ARMS)
    rows = len(own.rows) / own.calls / (len(plain.rows) / plain.calls)
    nodes, drafted = sum(1 + step.depth for step in own.steps) / own.calls, own.levels / own.calls
    expected = {
        "tau": own.tau,
        "tau full": own.tau_full(LONGEST),
        "alpha": own.alpha,
        "used": own.accepted / own.drafted,
        "nodes": nodes,
        "drafted": drafted,
        "c": 0.25,
        "v": 1 + 0.125 * (nodes - 1),
        "rows": rows,
        "speed-up": own.tau * rows / (1 + 0.125 * (nodes - 1) + 0.25 * drafted),
        "identical": "5/5",
    }
    found = recorded_runs.worth(made.outcome, AssumedCosts({"": 0.5, DRAFTED: 0.25}, WidthCurve.linear(0.125))).rows
    plain_cells = {name: found[0][name] for name in ("c", "v", "speed-up")}
    return together(
        drafted=differences({name: value for name, value in found[1].items() if name != "arm"}, expected),
        plain=differences(plain_cells, {"c": 0.0, "v": 1.0, "speed-up": 1.0}),
    )


def parts() -> Differences:
    """The parts of a step as the advice has them."""
    made = hand(count=5, batch=2)
    plain, own = (_Counts(made.runs(arm)) for arm in ARMS)
    once, found = plain.a_call("score"), Parts.of(made.stats(PLAIN), made.stats(DRAFTED))
    expected = Parts(
        own.tau,
        len(own.rows) / own.calls / (len(plain.rows) / plain.calls),
        own.a_call("propose") / once,
        own.a_call("score") / once,
        own.a_call("verify", "commit", "other") / once,
        plain.a_call("propose", "verify", "commit", "other") / once,
        once,
    )
    return differences(vars(found), vars(expected))


def sentences() -> Differences:
    """The first lines of a run's report."""
    made, many, sure = hand(), hand(count=6, rounds=1), hand(rounds=6)
    experiments = (made, many, sure)
    of_all, _, of_rounds = (_wall(one.runs(PLAIN)) / _wall(one.runs(DRAFTED)) for one in experiments)
    alone, six_alone, rounds_alone = (_decoding(one.runs(PLAIN)) / _decoding(one.runs(DRAFTED)) for one in experiments)
    facts = {
        "arguments": {"oracle": "code", "temperature": 0, "batch_size": 1, "max_new_tokens": 8},
        "device": "cpu",
        "backend": "eager",
        "threads": 1,
    }
    heading = summary.heading_of(made.outcome, facts)
    first, second = summary.conclusion(made.outcome).splitlines()
    # The interval of the delta method lies above 1, that of the bootstrap does not.
    undecided, (row,) = summary.conclusion(many.outcome), run_tables.against_rows(many.outcome, PLAIN)
    many.outcome.done[2]["arms"][DRAFTED]["identical"] = [False]
    on = "No arm is told apart from plain decoding as faster on"
    none = {count: f"{on} {count} prompts; the best is {DRAFTED}: decoding alone " for count in (3, 6)}
    best = f"{DRAFTED}, the best of 1 on 3 prompts, is faster than plain decoding: decoding alone {rounds_alone:.2f} ["
    told = summary.conclusion(sure.outcome)
    found = {
        "conclusion": first,
        "of several": summary.conclusion(hand(with_peer=True).outcome).splitlines()[0],
        "undecided": undecided.startswith(f"{none[6]}{six_alone:.2f} ["),
        "verdict": (row["verdict"], row["to tell"]),
        "best": (told.startswith(best), f"], end to end {of_rounds:.2f} [" in told),
        "agreement": second,
        "no agreement": summary.agreement(many.outcome),
        "sizes": heading.rpartition("; ")[2],
        "too few": "No intervals: fewer than 5 units of one prompt." in heading,
    }
    expected = {
        "conclusion": f"{none[3]}{_few(alone, 3)}, end to end {_few(of_all, 3)}.",
        "of several": f"{none[3]}{_few(alone, 3)}, end to end {_few(of_all, 3)}.",
        "undecided": True,
        "verdict": ("not told apart", 7),
        "best": (True, True),
        "agreement": "6 of 6 outputs, of 2 arms, are plain decoding's, token for token.",
        "no agreement": "11 of 12 outputs, of 2 arms, are plain decoding's, token for token; 1 are OTHERS.",
        "sizes": "weights 2.5 MB, cache 1.5 MB.",
        "too few": True,
    }
    return differences(found, expected)


STATISTICS = (
    speeds, draws, rounds, draws_by_rounds, reasons, work, accepted, ragged, kept, widened, by_length, devices,
    worth, parts, sentences,
)  # fmt: skip
MUTANTS = line_mutants(
    (Outcome.performers, "in self.done if", "in self.done[:1] if", work, f"work: {DRAFTED}, judge"),
    (
        Outcome.tokens_per_second,
        'entry["arms"][arm]["num_tokens"] * len(entry["arms"][arm]["seconds"])',
        'entry["arms"][arm]["num_tokens"]',
        speeds,
        f"{DRAFTED}, tokens/s",
    ),
    (
        Outcome.speedup_outside,
        "plain.seconds / plain.tokens * own.tokens",
        "plain.seconds",
        speeds,
        f"{DRAFTED}, no loops",
    ),
    (OutsideLoops.of, "counts[outside].sum()", "counts.sum()", work, f"work: {DRAFTED}, no loops"),
    (Outcome.seconds, "sum(sum(", "sum(min(", speeds, f"{DRAFTED}, end to end"),
    (run_tables.speed_table, "outcome.speedup(arm, kind)", "outcome.speedup(arm)", speeds, f"{DRAFTED}, code"),
    (run_outcome.check_cells, "{sum(passed)}", "{len(outcome.done) - 1}", speeds, f"{DRAFTED}, identical"),
    (Outcome._scaled_times, "before + (seconds - before) * more", "seconds * more", draws, "value"),
    (
        Outcome.decoding_speedup,
        "decoding_seconds(theirs) * ours.",
        "decoding_seconds(theirs) * theirs.",
        draws,
        "decoding alone",
    ),
    (Outcome.decoding_speedup, "seconds * more", "seconds", draws_by_rounds, "value"),
    (Outcome.decoding_speedup, "if self.by_rounds", "if False", rounds, "alone"),
    (Outcome.of_kind, ' if kind in (ALL, entry["kind"])', "", rounds, "chat"),
    (run_outcome.speed_cells, "decoding_speedup(arm, kind, against)", "decoding_speedup(arm, kind)", rounds, "cell"),
    (decoding_time, ' - stats.seconds["prefill"]', "", reasons, f"{DRAFTED}, decoding alone"),
    (decoding_seconds, "stats.num_emitted", "stats.num_steps", draws, "back"),
    (Outcome.rounds, "sum(seconds)", "min(seconds)", rounds, "plain"),
    (Outcome.times, "self._times(arm, kind)", "self._scaled_times(against, arm, kind)", rounds, "own"),
    (Outcome.speedup, "self.times(arm, kind, against)", "self.times(arm, kind)", rounds, "value"),
    (run_tables.against_rows, "ALL, against, method", "ALL, PLAIN, method", rounds, "verdict"),
    (reason, 'plain.seconds_per_call("score")', 'stats.seconds_per_call("score")', reasons, f"{DRAFTED}, T ms"),
    (reason, "seconds_per_call(phase)", "seconds_per_call()", reasons, f"{DRAFTED}, verify ms"),
    (Stats.draft_cost_ratio, "self.num_draft_passes", "self.num_drafted", reasons, f"{DRAFTED}, c"),
    (Stats.block_efficiency_full, "self.num_emitted_full", "self.num_emitted", reasons, f"{DRAFTED}, tau full"),
    (Stats.acceptance_rate, "self.num_accepted + self.num_recovered", "self.num_drafted", reasons, f"{DRAFTED}, alpha"),
    (Stats.theoretical_block_efficiency, "self.num_steps", "self.target_calls", reasons, f"{DRAFTED}, from alpha"),
    (Stats.seconds_per_call, "self.target_calls", "self.num_steps", parts, "once"),
    (Parts.of, "in_flight(plain, stats)", "plain.num_requests", parts, "rows"),
    (Parts.speedup, " * (1 + self.plain)", "", reasons, f"{PLAIN}, predicted"),
    (summary.phase_times, "stats.num_emitted", "stats.num_steps", work, f"{DRAFTED}: score"),
    (
        run_tables.work_table,
        "stats.num_drafted / stats.num_steps",
        "stats.num_drafted / stats.num_emitted",
        work,
        f"work: {DRAFTED}, drafted",
    ),
    (
        Outcome.tokens_and_steps,
        '("num_emitted", "num_steps")',
        '("num_emitted", "target_calls")',
        ragged,
        "tokens and steps",
    ),
    (Stats.block_efficiency, "self.num_steps", "self.target_calls", ragged, "accept_len"),
    (step_columns._row, "/ num_answers", "/ len(outcome.done)", ragged, "tokens/answer"),
    (
        step_columns._row,
        "stats.num_drafted / stats.num_steps",
        "stats.num_drafted / stats.target_calls",
        ragged,
        "proposed",
    ),
    (step_columns._row, "sum(stats.steps_by_depth[1:])", "sum(stats.steps_by_depth)", ragged, "drafts of plain"),
    (step_columns._row, "survival.get(k + 1)", "survival.get(k)", accepted, "accept_rate@1"),
    (step_columns._row, "conditional.get(k + 1)", "survival.get(k + 1)", accepted, "cond_accept@1"),
    (step_columns.ends_of, "rounds[0]", "[*rounds[0], *rounds[-1]]", accepted, "ends"),
    (Stats.survival_by_position, "steps_by_depth[i:]", "steps_by_depth[i - 1:]", accepted, "accept_rate@0"),
    (Stats.verify_rate, "self.num_accepted + self.num_steps, ", "self.num_accepted, ", accepted, "verify_rate"),
    (Stats.time_to_first_token, "self.num_first_tokens", "self.num_steps", kept, "drafted: time_to_first_token"),
    (
        harness._arm_entry,
        "[run.seconds for run in runs]",
        "[min(run.seconds for run in runs)] * len(runs)",
        kept,
        "drafted: tokens_per_second",
    ),
    (harness._arm_entry, "pool(stats).as_dict()", "stats[0].as_dict()", kept, "drafted: time_to_first_token"),
    (causes._passes, "rows * records", "records", widened, "passes"),
    (Widening.of, "key=lambda shape: len(passes[shape])", "key=lambda shape: shape[1]", widened, "most frequent"),
    (Widening.of_one_row, "(self.rows * (self.nodes - self.cost))", "(self.nodes - self.cost)", widened, "of one row"),
    (lengths.tables_of, "outcome.stats(PLAIN, length)", "outcome.stats(PLAIN)", by_length, "chat, T ms"),
    (device_work, "(padded + ragged)", "padded", devices, "device: of rows"),
    (
        device_work,
        'counts["passes_in_graphs"] / passes',
        'counts["passes_outside"] / passes',
        devices,
        "device: in graphs",
    ),
    (
        step_columns.stage_table,
        'stage["emitted"] / max(stage["steps"], 1)',
        'stage["emitted"] / max(stage["passes"], 1)',
        devices,
        "stage: tokens/step",
    ),
    (
        step_columns.stage_table,
        '1e3 * stage["seconds"] / ',
        '1e3 * (stage["seconds"] + stage["inner_seconds"]) / ',
        devices,
        "stage: ms/pass",
    ),
    (AssumedCosts.speedup, "tau * rows", "tau", worth, "drafted: speed-up"),
    (recorded_runs._passes_per_step, "stats.num_draft_passes", "stats.num_drafted", worth, "drafted: drafted"),
    (
        summary.conclusion,
        "key=lambda arm: speedups[arm].value)\n    told",
        "key=lambda arm: -speedups[arm].value)\n    told",
        sentences,
        "of several",
    ),
    (run_tables.against_rows, "verdict(delta, bootstrap)", "verdict(delta)", sentences, "verdict"),
    (summary.heading_of, "(memory.cache_bytes or 0)", "(memory.weight_bytes or 0)", sentences, "sizes"),
    (summary.agreement, "{sum(passed)} of", "{len(passed)} of", sentences, "no agreement"),
)
