"""Statistics of a batch and of each of its requests, records as they are written, and rows of the advice, by hand."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from experiments.advise import cells
from experiments.advise.advice_parts import Parts
from experiments.advise.cells import Advice
from experiments.harness.arms import PLAIN
from experiments.harness.findings import summary
from specdec.stats import Stats, StatsRecorder, pool
from specdec.stats.reduction import Reduction
from tests.support.line_mutants import Differences, differences, line_mutants, together
from tests.support.runs.hand_run import DRAFTED, PHASES, hand, run_of, stats_of, texts
from tests.support.runs.hand_steps import chain_step


def requests() -> Differences:
    """What two requests of a batch have of its counts, calls and seconds."""
    run = run_of(DRAFTED, texts(2), 0)
    whole = stats_of(run)
    parts: dict[str, Differences] = {}
    for number, own in enumerate(whole.requests):
        steps = [step for step in run.steps if any(row.request == number for row in step.rows)]
        rows = [row for step in steps for row in step.rows if row.request == number]
        shares = {phase: sum(step.seconds[phase] / len(step.rows) for step in steps) for phase in PHASES}
        shares["prefill"] = run.prefill / 2
        measured = sum(shares.values())
        first = run.prefill + sum(run.steps[0].seconds.values())
        expected = {
            "num_requests": 1,
            "num_steps": len(rows),
            "target_calls": len(steps),
            "prefill_calls": 1,
            "num_drafted": sum(row.drafted for row in rows),
            "num_accepted": sum(row.accepted for row in rows),
            "num_emitted": sum(len(row.tokens) for row in rows),
            "num_recovered": sum(row.accepted < row.drafted for row in rows),
            "num_bonus": sum(row.accepted == row.drafted for row in rows),
            "num_draft_passes": sum(row.drafted for row in rows),
            "num_scored_nodes": sum(1 + step.depth for step in steps),
            "first_token_seconds": first,
            **shares,
            # In proportion to what was measured.
            "other": run.other * measured / (run.seconds - run.other),
        }
        found = {**vars(own), **own.seconds}
        parts[f"request {number}"] = differences({name: found[name] for name in expected}, expected)
    return together(**parts)


def prefills() -> Differences:
    """Prompts of two requests in two passes, the second one's in both; memory of pooled runs; tokens that were cut."""
    recorder = StatsRecorder(2)
    recorder.add_prefill(2.0, np.array([0, 1]))
    recorder.add_prefill(1.0, np.array([1]), calls=2)
    recorder.infos += [chain_step([0, 1], [5, 6], [1, 0], [1, 0]), chain_step([1], [7], [0], [0])]
    recorder.elapsed += [9.0, 15.0]
    whole = recorder.finish(16.0)
    small, large = (replace(whole, cache_bytes=size, weight_bytes=2 * size, requests=()) for size in (10, 30))
    both = pool([large, small])
    found = {
        "seconds": (whole.seconds["prefill"], *(one.seconds["prefill"] for one in whole.requests)),
        "calls": (whole.prefill_calls, *(one.prefill_calls for one in whole.requests)),
        "first": (whole.num_first_tokens, whole.first_token_seconds, whole.time_to_first_token),
        "memory": (both.cache_bytes, both.weight_bytes),
        "cut": Stats(truncated={"eos": 2, "stop": 3}).num_truncated,
    }
    expected = {
        "seconds": (3.0, 1.0, 2.0),
        "calls": (3, 1, 3),
        "first": (2, 18.0, 9.0),
        "memory": (30, 60),
        "cut": 5,
    }
    return differences(found, expected)


def counts() -> Differences:
    """Counts, histograms and ratios of a batch, and of two batches together."""
    run = run_of(DRAFTED, texts(2), 0)
    whole, rows, both = stats_of(run), run.rows, pool([stats_of(run), stats_of(run_of(PLAIN, texts(1), 1))])
    judged = {k: [row for row in rows if row.drafted > k and row.accepted >= k] for k in range(3)}
    # Nodes of a draft come from two sources in turns.
    turns = {"lookup": 0, "ngram": 1}
    drafted = {name: sum(len(range(first, row.drafted, 2)) for row in rows) for name, first in turns.items()}
    kept = {name: sum(len(range(first, row.accepted, 2)) for row in rows) for name, first in turns.items()}
    found = {
        "calls": whole.target_calls,
        "draft passes": whole.num_draft_passes,
        "scored": whole.num_scored_nodes,
        "by depth": whole.steps_by_depth,
        "tried": whole.tried_at_position,
        "kept": whole.accepted_at_position,
        "ranks": (whole.tried_at_rank, whole.accepted_at_rank),
        "drafted by": whole.drafted_by_source,
        "kept by": whole.accepted_by_source,
        "tokens/s": whole.tokens_per_second,
        "width cost": whole.width_cost(2.0),
        "memory": (both.cache_bytes, both.weight_bytes),
        "pooled": (both.num_emitted, both.steps_by_depth, both.seconds["score"]),
        "empty": pool([]) == Stats(),
    }
    plain = run_of(PLAIN, texts(1), 1)
    expected = {
        "calls": len(run.steps),
        "draft passes": sum(step.depth for step in run.steps),
        "scored": sum(1 + step.depth for step in run.steps),
        "by depth": tuple(sum(row.drafted == depth for row in rows) for depth in range(4)),
        "tried": tuple(len(judged[k]) for k in range(3)),
        "kept": tuple(sum(row.accepted > k for row in judged[k]) for k in range(3)),
        "ranks": ((sum(map(len, judged.values())),), (sum(row.accepted for row in rows),)),
        "drafted by": drafted,
        "kept by": kept,
        "tokens/s": sum(len(row.tokens) for row in rows) / run.seconds,
        "width cost": run.phase("score") / len(run.steps) / 2.0,
        "memory": (1_500_000, 2_500_000),
        "pooled": (
            14 + 6,
            (2 + 6, *(sum(row.drafted == depth for row in rows) for depth in range(1, 4))),
            run.phase("score") + plain.phase("score"),
        ),
        "empty": True,
    }
    return differences(found, expected)


def records() -> Differences:
    """What is written of every step: whose it is, how its answer ended, and times if they mean something."""
    made, written = hand(count=5, batch=2), list[dict[str, list[Any]]]()
    made.outcome.done[0]["arms"][DRAFTED]["finish_reasons"][1] = ["stop", "stop"]

    @contextmanager
    def kept() -> Iterator[Any]:
        saved = SimpleNamespace(to_parquet=lambda path: None)
        yield SimpleNamespace(Dataset=SimpleNamespace(from_dict=lambda columns: written.append(columns) or saved))

    with patch.object(summary, "without_bars", kept):
        summary.write_records(made.outcome, Path("records.parquet"))
        summary.write_records(made.outcome, Path("records.parquet"), timed=False)
    expected: dict[str, list[Any]] = {name: [] for name in ("arm", "prompt", "kind", "end", "emitted", "score")}
    for unit, some in enumerate(made.units):
        for arm in (PLAIN, DRAFTED):
            for number in range(2):
                for step in run_of(arm, some, number).steps:
                    for row in step.rows:
                        end = "length" if len(some[row.request].tokens) == 8 else "eos"
                        is_changed = (unit, arm, number) == (0, DRAFTED, 1)
                        values = arm, some[row.request].name, some[0].kind, "stop" if is_changed else end
                        values = *values, len(row.tokens), step.seconds["score"] / len(step.rows)
                        for column, value in zip(expected.values(), values, strict=True):
                            column.append(value)
    names = ("arm", "prompt", "kind", "finish_reason", "num_emitted", "seconds_score")
    found = {name: written[0][column] for name, column in zip(expected, names, strict=True)}
    lacking = sorted(set(written[0]) - set(written[1]))
    times = [f"seconds_{phase}" for phase in sorted(PHASES)]
    return differences({**found, "untimed": lacking}, {**expected, "untimed": times})


def advice() -> Differences:
    """A row of the advice: what was predicted beside what was measured."""
    made = hand(rounds=6)
    foretold = Parts(3.0, 1.0, 0.5, 1.2, 0.1, 0.2)
    draft: Any = None
    row = cells._row(Advice(DRAFTED, "3 tokens", foretold, "drafts of 3", None, draft), made.outcome, made.stats(PLAIN))
    runs = {arm: made.runs(arm) for arm in (PLAIN, DRAFTED)}
    taken = {arm: sum(run.seconds - run.prefill for run in runs[arm]) for arm in runs}
    walls = {arm: sum(run.wall for run in runs[arm]) for arm in runs}
    expected = {
        "strategy": DRAFTED,
        "best": "3 tokens",
        "tau": 3.0,
        "v": 1.2,
        "drafting": 0.5,
        "rest": 0.1,
        "predicted": 3.0 / 1.8 * 1.2,
        # As many tokens in both: prefill left out.
        "measured": taken[PLAIN] / taken[DRAFTED],
        "decoding alone": f"{taken[PLAIN] / taken[DRAFTED]:.2f}",
        "end to end": f"{walls[PLAIN] / walls[DRAFTED]:.2f}",
        "verdict": "faster",
        "identical": "3/3",
        "why not": None,
    }
    found = {name: row[name] for name in expected}
    found |= {name: row[name].split(" ")[0] for name in ("decoding alone", "end to end")}
    return differences(found, expected)


STATISTICS = (requests, prefills, counts, records, advice)
MUTANTS = line_mutants(
    (StatsRecorder._prefill_shares, "taken / len(requests)", "taken", requests, "request 0: prefill"),
    (StatsRecorder._requests, "share * sum(measured.values())", "share", requests, "request 1: other"),
    (StatsRecorder._first_tokens, '[trace.columns["step"][at]]', "[at]", requests, "request 1: first_token_seconds"),
    (
        Reduction.sum,
        "np.float64 else sums.astype",
        "np.float64 else sums[::-1].astype",
        requests,
        "request 0: num_emitted",
    ),
    (StatsRecorder._run, "info.num_nodes for", "info.num_nodes * len(info.requests) for", counts, "scored"),
    (StatsRecorder._seconds, "sum(seconds for seconds", "max(seconds for seconds", prefills, "seconds"),
    (pool, "max((b for b", "min((b for b", prefills, "memory"),
    (Stats.num_truncated, "sum(self", "max(self", prefills, "cut"),
    (Stats.tokens_per_second, "self.num_emitted", "self.num_steps", counts, "tokens/s"),
    (Stats.width_cost, "scoring / pass_seconds", "scoring * pass_seconds", counts, "width cost"),
    (pool, "default=None)", "default=None) and sum(kept['num_requests'])", counts, "memory"),
    (summary.write_records, 'kept["finish_reasons"][number][i]', 'kept["finish_reasons"][0][i]', records, "end"),
    (summary.write_records, 'entry["prompts"][i] for i', 'entry["prompts"][0] for i', records, "prompt"),
    (summary.write_records, 'if timed or not name.startswith("seconds")', "", records, "untimed"),
    (cells._row, '"predicted": one.parts.speedup', '"predicted": measured.speedup', advice, "predicted"),
)
