"""Predictions: steps of shorter drafts, costs of any work from two runs, and the part that a prediction misses."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import drafts
from experiments.advise.advice_parts import CLOSE, Parts, missing
from experiments.advise.calibrating import WIDE, Trees, _mean_nodes, _siblings, shapes_to_read
from experiments.advise.predicting import (
    WORTH,
    Costs,
    Line,
    best,
    cure,
    in_the_way,
    obstacle,
    predict,
)
from experiments.advise.shortening import Steps, Work, shorten
from oracles import TabularLM
from specdec import Kary, Paths, SamplingParams, SpeculativeDecoder
from specdec.stats import Stats
from specdec.theory import WidthCurve, expected_tokens, expected_tree_tokens, optimal_gamma, walltime_improvement

ALPHA, LONGEST = 0.8, 8
FLAT = WidthCurve((1,), (1.0,))
FREE = Costs(FLAT, Line(level=0.05))


def decoded(
    alphas: Sequence[float], length: int, batch_size: int, rows: int, new: int, rule: str = "coupled"
) -> tuple[Steps, list[Stats]]:
    """Return the steps and the statistics of texts whose drafts are accepted with these rates."""
    records, stats = [], []
    for alpha in alphas:
        target, model = TabularLM.pair(8, 2, alpha, seed=3)
        decoder = SpeculativeDecoder(target, drafts.SmallTransformer(model, length), rule=rule)
        sampling, prompts = SamplingParams(temperature=1.0), [[i % 8, i % 3] for i in range(rows)]
        for first in range(0, rows, batch_size):
            result = decoder.generate(prompts[first : first + batch_size], new, sampling, seed=first)
            records.append(result.records.columns())
            stats.append(result.stats)
    return Steps.of(records), stats


@cache
def steps_of(batch_size: int, new: int = 400, alpha: float = ALPHA) -> Steps:
    """Return the steps of eight texts whose drafts are accepted with one rate everywhere."""
    steps, _ = decoded([alpha], LONGEST, 8, 8, new, "standard")
    # What a request drafts and accepts does not depend on the batch.
    return steps if batch_size == 8 else replace(steps, batch=steps.request // batch_size)


@pytest.mark.parametrize(
    ("drafted", "accepted", "length", "onward", "expected"),
    [
        ([4, 4], [4, 1], 4, 0.0, [4, 4]),  # nothing is shorter: the steps are those of the run
        # What stood of 3 and the token after: two drafts of 1, each with its bonus.
        ([4, 4], [3, 1], 1, 0.0, [1, 1, 1]),
        ([4, 4], [2, 0], 1, 0.0, [1, 1, 1]),
        ([4, 4], [4, 0], 3, 0.0, [3, 3, 3]),  # the fifth token ends a step of its own
        ([4, 4], [4, 0], 3, 1.0, [3, 3]),  # it stands for the draft too, and the next one's first does not
        ([2, 0], [2, 0], 1, 1.0, [1, 0, 0]),  # its source ended the draft of 2, so none is there to go on
        ([0, 0, 0], [0, 0, 0], 3, 1.0, [0, 0, 0]),
    ],
)
def test_shorter_drafts_end_amid_longer_ones(drafted, accepted, length, onward, expected):
    found = shorten(np.array(drafted), np.array(accepted), 4, length, onward)
    assert [*found] == expected


def test_the_steps_of_short_drafts_follow_from_those_of_long_ones():
    rates, rows = (0.2, 0.95), 4
    steps, _ = decoded(rates, LONGEST, 2, rows, 200)
    for length in (1, 4):
        own, stats = decoded(rates, length, 2, rows, 200)
        work, calls = steps.work(length), sum(one.target_calls for one in stats)
        assert work.tokens == pytest.approx(sum(one.num_emitted for one in stats) / len(own.request), rel=0.01)
        assert work.rows == pytest.approx(len(own.request) / calls, rel=0.01)
        assert work.nodes == pytest.approx((own.drafted + 1).sum() / calls, rel=0.01)
        assert work.levels == pytest.approx(sum(one.num_draft_passes for one in stats) / calls, rel=0.01)
        # Steps of long drafts meet easy stretches too seldom: to count those as they are would not do.
        assert 1 + np.minimum(steps.accepted, length).mean() < 0.95 * work.tokens


def predictions(steps: Steps, costs: Costs) -> dict[int, Parts]:
    return predict(steps, costs, range(1, LONGEST + 1))


def test_short_drafts_do_what_theory_says_of_them():
    steps = steps_of(1)
    for length, found in predictions(steps, FREE).items():
        assert steps.work(length).tokens == pytest.approx(expected_tokens(ALPHA, length), rel=0.05)
        assert found.speedup == pytest.approx(walltime_improvement(ALPHA, length, FREE.drafting.level), rel=0.05)
        assert found.rows == 1
    assert abs(best(predictions(steps, FREE)) - optimal_gamma(ALPHA, FREE.drafting.level)) <= 1


def test_rows_that_end_early_are_foreseen():
    steps = steps_of(8, new=60)
    lengths = np.bincount(steps.request)
    assert steps.work(LONGEST).rows == pytest.approx(lengths.sum() / lengths.max(), rel=0.05)
    assert steps.plain() == Work(tokens=1.0, rows=8.0, nodes=8.0, levels=0.0)
    assert steps.work(LONGEST).rows < steps.work(2).rows < 8


# A machine whose times are known: a pass takes 2 ms, and 1 ms more for every node beyond the first.
CALLS, TOKENS, PASS = 100, {1: 1.8, 4: 3.2, 8: 4.1}, 2e-3
SECONDS = {"propose": (3e-4, 2e-4), "score": (2e-3, 1e-3), "verify": (4e-4, 5e-5), "commit": (1e-4, 0.0)}


def simulated(length: int, changed: Mapping[str, Any] | None = None) -> Stats:
    """Return the statistics of a run on that machine: of a phase's seconds a fixed part, and one for each token."""
    seconds = {phase: CALLS * (first + each * length) for phase, (first, each) in SECONDS.items()}
    emitted = round(CALLS * TOKENS[length])
    kept: dict[str, Any] = {
        "num_steps": CALLS, "target_calls": CALLS, "num_drafted": CALLS * length, "num_draft_passes": CALLS * length,
        "num_emitted": emitted, "num_accepted": emitted - CALLS, "seconds": {**seconds, "other": 0.01},
    }  # fmt: skip
    return Stats(**{**kept, **(changed or {})})


PLAIN = Stats(
    num_steps=CALLS, target_calls=CALLS, num_emitted=CALLS, seconds={"score": CALLS * PASS, "verify": CALLS * 3e-4}
)
NODES = WidthCurve.of_seconds([1, 2], [PASS, PASS + 1e-3])


def test_two_runs_tell_what_any_length_costs():
    costs = Costs.of(PLAIN, [simulated(length) for length in (1, 8)], NODES)
    steps = Work(TOKENS[4], 1.0, 5.0, 4.0)
    found = costs.parts(steps, Work(1.0, 1.0, 1.0, 0.0))
    measured = Parts.of(PLAIN, simulated(4))
    for field in fields(Parts):
        assert getattr(found, field.name) == pytest.approx(getattr(measured, field.name)), field.name
    assert found.drafting == pytest.approx((3e-4 + 4 * 2e-4) / PASS)
    # One run cannot tell what is fixed: taken in proportion, short drafts come out too cheap.
    alone = Costs.of(PLAIN, [simulated(8)], NODES)
    assert alone.drafting.at(steps) < 0.9 * measured.drafting


def spoiled(name: str, factor: float) -> tuple[Stats, Stats]:
    """Return plain decoding and a run of drafts of 4 on a machine of which one part is not as calibrated."""
    seconds, plain = dict(simulated(4).seconds), dict(PLAIN.seconds)
    phases = {"drafting": ["propose"], "scoring": ["score"], "rest": ["verify", "commit", "other"]}
    for phase in phases.get(name, []):
        seconds[phase] *= factor
    if name == "plain":
        plain["verify"] *= 3 * factor
    if name == "once":
        plain["score"] *= factor
    emitted = round(CALLS * (TOKENS[4] / factor if name == "tokens" else TOKENS[4]))
    calls = round(CALLS * (factor if name == "rows" else 1.0))
    # Of fewer rows in flight the same times: each call's are kept.
    changed = {"seconds": {phase: value * calls / CALLS for phase, value in seconds.items()}}
    return replace(PLAIN, seconds=plain), simulated(4, {**changed, "num_emitted": emitted, "target_calls": calls})


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("tokens", "tau 1.60 instead of 3.20"),
        ("rows", "0.50 of plain decoding's rows in flight instead of 1.00"),
        ("drafting", "drafting took 1.10 ms a step more than predicted"),
        ("scoring", "scoring took 6.00 ms a step more than predicted"),
        ("rest", "the rest took 0.80 ms a step more than predicted"),
        ("plain", "plain decoding's rest took 1.50 ms a step more than predicted"),
        ("once", "a plain pass took 2.00 ms more than predicted"),
    ],
)
def test_a_part_that_is_wrong_by_itself_is_named(name, words):
    predicted = Parts.of(PLAIN, simulated(4))
    plain, stats = spoiled(name, 2.0)
    measured = Parts.of(plain, stats)
    assert missing(predicted, measured) == {name: words}
    assert missing(measured, measured) == {}


def test_times_are_compared_in_milliseconds_of_each_run():
    predicted = Parts(tokens=3.0, rows=1.0, drafting=0.5, scoring=1.5, rest=0.5, plain=0.5, once=1e-3)
    # Plain passes are slower and nothing else is: in plain passes all other times have shrunk.
    others = {name: getattr(predicted, name) / 2 for name in ("drafting", "scoring", "rest", "plain")}
    assert missing(predicted, replace(predicted, once=2e-3, **others)) == {
        "once": "a plain pass took 1.00 ms more than predicted"
    }
    # A machine on which all takes twice as long has the same speed-up; what is told is nothing too small to be shown.
    assert missing(predicted, replace(predicted, once=2e-3)) == {}
    fast = replace(predicted, once=1e-6)
    assert missing(fast, replace(fast, scoring=3.0)) == {}


def random_parts(random: np.random.Generator) -> Parts:
    tokens, rows, once = random.uniform(1, 6), random.uniform(0.4, 1), random.uniform(2e-3, 9e-3)
    drafting, scoring, rest, plain = random.uniform([0.1, 0.8, 0.1, 0.1], [2, 3, 1, 1]).tolist()
    return Parts(tokens, rows, drafting, scoring, rest, plain, once)


def mended(predicted: Parts, measured: Parts, names: Iterable[str]) -> float:
    """Return the speed-up of a prediction whose named parts are as measured, times in seconds."""
    has = {name: measured if name in names else predicted for name in PARTS}
    once = has["once"].once
    times = {
        name: getattr(has[name], name) * has[name].once / once for name in ("drafting", "scoring", "rest", "plain")
    }
    return Parts(has["tokens"].tokens, has["rows"].rows, **times, once=once).speedup


PARTS = [field.name for field in fields(Parts)]


def test_a_prediction_with_its_named_parts_put_right_is_close():
    random, counts = np.random.default_rng(5), set()
    for _ in range(500):
        predicted, measured = random_parts(random), random_parts(random)
        named = [*missing(predicted, measured)]
        assert mended(predicted, measured, named) == pytest.approx(measured.speedup, rel=CLOSE * 1.0001)
        for count in range(len(named)):
            assert abs(mended(predicted, measured, named[:count]) / measured.speedup - 1) > CLOSE
        counts.add(len(named))
    assert counts >= {0, 1, 2, 3}


def test_the_obstacle_is_the_part_that_costs_too_much():
    steps = steps_of(1)
    assert obstacle(predictions(steps, FREE)) is None
    dear = replace(FREE, drafting=Line(fixed=5.0))
    why = obstacle(predictions(steps, dear))
    assert why is not None
    assert f"drafts of {LONGEST} take 5.00 of a pass a step" in why
    limit = float(why.rsplit(" ", 1)[1])
    assert obstacle(predictions(steps, replace(FREE, drafting=Line(limit - 0.02)))) is None
    assert obstacle(predictions(steps, replace(FREE, drafting=Line(limit + 0.02)))) is not None
    assert "beside drafting and scoring" in str(obstacle(predictions(steps, replace(FREE, rest=Line(9.0)))))
    steep = WidthCurve.linear(3.0)
    assert "plain ones for" in str(obstacle(predictions(steps, replace(FREE, nodes=steep))))
    assert "too few stand" in str(obstacle(predictions(steps_of(1, new=50, alpha=0.01), FREE)))


def test_the_named_cure_pays_and_less_does_not():
    random, counts = np.random.default_rng(7), set()
    for _ in range(1000):
        parts = random_parts(random)
        if parts.speedup >= WORTH:
            continue
        wanted, told = cure(parts), in_the_way("drafts", parts)
        floors = {"drafting": 0.0, "scoring": min(parts.scoring, 1.0), "rest": min(parts.rest, parts.plain)}
        if wanted is None:
            assert replace(parts, **floors).speedup < WORTH
            assert told.startswith("even free drafts yield")
            continue
        assert replace(parts, **wanted).speedup == pytest.approx(WORTH)
        assert all(wanted[name] >= floors[name] - 1e-9 for name in wanted)
        assert told.endswith(f"below {wanted[[*wanted][-1]]:.2f}") or len(wanted) > 1
        if len(wanted) > 1:
            # No part by itself would do, and the words have every part's amount.
            assert all(replace(parts, **{name: floor}).speedup < WORTH for name, floor in floors.items())
            assert all(f"instead of {getattr(parts, name):.2f}" in told for name in wanted)
            sizes = [getattr(parts, name) - floors[name] for name in wanted]
            assert sizes == sorted(sizes, reverse=True)
        counts.add(len(wanted))
    assert counts == {1, 2, 3}


def test_what_free_drafts_lack_is_tokens_or_rows():
    few = Parts(tokens=1.01, rows=1.0, drafting=0.5, scoring=1.0, rest=0.1, plain=0.1)
    assert in_the_way("drafts of 2", few) == "even free drafts of 2 yield 1.01 tokens a step: too few stand"
    rows = replace(few, tokens=2.0, rows=0.4)
    assert in_the_way("drafts of 2", rows).endswith(
        "yield 2.00 tokens a step, with 0.40 of plain decoding's rows in flight"
    )


def trees(siblings: float = 1.0, level: float = 0.1) -> Trees:
    """Return what a machine without overheads would tell, half of whose rows have ended when 5 tokens stand a step."""
    plain, even = Work(1.0, 2.0, 2.0, 0.0), [1.0, 1.0]
    costs, chains = Costs(FLAT, Line(level=level)), Costs(FLAT, Line(level=level), Line(fixed=9.0))
    return Trees([0.7, 0.4], siblings, [2, 8], even, even, [1.0, 5.0], [1.0, 0.5], costs, chains, plain)


def test_trees_do_what_theory_says_of_them():
    shape = Paths(Kary(2, 2).paths)
    work, tokens = trees().work(shape), expected_tree_tokens(shape, [0.7, 0.4])
    rows = 2 * (1 - 0.5 * (tokens - 1) / 4)
    assert work == Work(pytest.approx(tokens), pytest.approx(rows), pytest.approx(7 * rows), 2.0)
    assert trees().parts(shape).speedup == pytest.approx(tokens * rows / 2 / 1.2)
    assert trees(0.5).work(shape).nodes == pytest.approx(rows * (1 + 1.5 + 1.5**2))
    wide = shapes_to_read(4, 8)[WIDE]
    assert _mean_nodes(wide, _siblings(wide, 12.5)) == pytest.approx(12.5)
    assert _siblings(wide, 20.0) == 1


def test_the_best_tree_is_shallow_where_levels_are_dear_and_a_chain_where_branching_is():
    cheap, dear = trees(level=0.0), trees(level=1.0)
    assert cheap.best(16, 8).branches
    assert dear.best(16, 8, branching=True).max_depth < cheap.best(16, 8).max_depth
    chains = replace(cheap, costs=cheap.chain_costs, chain_costs=cheap.costs)
    assert not chains.best(16, 8).branches
    assert chains.best(16, 8, branching=True).branches


def test_what_trees_tell_is_kept_as_json():
    assert Trees.from_dict(json.loads(json.dumps(asdict(trees())))) == trees()
