"""Draft lengths: what each policy chooses, that it is a request's own affair, and theory's optimum."""

import itertools
import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import drafts
from oracles.tabular import TabularLM
from specdec import Calibration, Entropy, Fixed, Heuristic, SamplingParams, SpeculativeDecoder, Threshold, calibrate
from specdec.calibration_run import pass_seconds
from specdec.contracts import Budget
from specdec.drafting.lengths import Constant, LengthPolicy, LengthSession, Tracked, cut_limits, depth_limits
from specdec.exactness import check_draft
from specdec.theory import WidthCurve, expected_tokens, optimal_gamma
from specdec.theory.calibration import Monotone
from tests.support.drafting.draft_rows import Rows
from tests.support.registry import CALIBRATION, POLICIES

SAMPLED = SamplingParams(temperature=1.0)
TARGET, MODEL = TabularLM.pair(6, 2, 0.7, 3)
LONG: dict[str, LengthPolicy] = {name: long for name, (long, _) in POLICIES.items()}
NGRAMS = drafts.NGram.train([np.random.default_rng(0).integers(0, 6, 300).tolist()], 6, 3, progress=False).model
MAIN = ("heuristic", "moving", "entropy")  # those that every source is tried with; "model" is with all
SOURCES = {
    "model": lambda length: drafts.SmallTransformer(MODEL, length=length),
    "greedy model": lambda length: drafts.SmallTransformer(MODEL, length=length, temperature=0),
    "ngram": lambda length: drafts.NGram(NGRAMS, length=length),
    "sampled ngram": lambda length: drafts.NGram(NGRAMS, sampled=True, length=length),
    "lookup": lambda length: drafts.PromptLookup(length=length),
}
PAIRS = [
    pytest.param(make(length), id=f"{source}-{name}")
    for source, make in SOURCES.items()
    for name, length in LONG.items()
    if source == "model" or (name in MAIN and not (source == "lookup" and length.reads_entropy))
]
every_policy = pytest.mark.parametrize("length", LONG.values(), ids=LONG)


class Answers(LengthPolicy, LengthSession):
    """Answers what it is given: ``limits`` for two rows, and ``goes_on`` whenever it is asked."""

    max_depth, reads_confidence, reads_entropy = 4, True, True

    def __init__(self, limits: Any = (4, 4), goes_on: Any = None) -> None:
        self.own, self.goes_on = np.array(limits) if isinstance(limits, tuple) else limits, goes_on

    def open(self, num_rows):
        return self

    def limits(self, rows, num_committed):
        return self.own

    def draws(self, rows, entropy):
        return self.goes_on


class Confident(Answers):
    reads_entropy = False
    draws = LengthSession.draws

    def continues(self, rows, confidence):
        return self.goes_on


WRONG = {
    "floats": (Answers((4.0, 4.0)), r"Answers answered array\(\[4\., 4\.\]\) where 2 rows were asked: limits returns"),
    "another number of rows": (Answers((4, 4, 4)), r"array\(\[4, 4, 4\]\) where 2 rows"),
    "one number": (Answers(4), "answered 4 where 2 rows .* limits returns .B. integers, none above max_depth=4"),
    "beyond the longest": (Answers((4, 5)), r"array\(\[4, 5\]\) .* none above max_depth=4"),
    "True for draws": (Answers(goes_on=True), "Answers answered True where 2 rows .* draws and continues get"),
    "nothing for draws": (Answers(), "Answers answered None where"),
    "numbers": (Answers(goes_on=np.ones(2)), r"answered array\(\[1\., 1\.\]\) where .* return .B. bool"),
    "one for all rows": (Confident(goes_on=np.bool_(True)), "Confident answered .*True.* where 2 rows"),
}


@pytest.mark.parametrize(("length", "message"), WRONG.values(), ids=WRONG)
def test_an_answer_of_another_kind_is_refused_with_the_policys_name(length, message):
    names = ("model", "ngram") if length.reads_entropy else ("model", "ngram", "lookup")
    for decoder in (SpeculativeDecoder(TARGET, SOURCES[name](length)) for name in names):
        with pytest.raises(ValueError, match=f"^length: .*{message}"):
            decoder.generate([[1, 2, 1, 2, 1], [3, 1, 3, 1, 3]], 9, SAMPLED)


class Bare:
    """A policy of another base, which lacks most of one."""

    max_depth, reads_entropy, adaptive, calibration = 2, False, False, None

    def open(self, num_rows):
        return self


class Whole(Bare):
    reads_confidence = False

    def next_limits(self, limits, drafted, accepted):
        return None

    def limits(self, rows, num_committed):
        return rows


class Unasked(Answers):
    reads_entropy = False


class NotBelieved(Confident):
    reads_confidence = False


INCOMPLETE = {
    "a policy": (Bare(), "length is of type Bare, not a length policy: it lacks reads_confidence, next_limits;"),
    "a session": (
        Whole(),
        "length: what Whole.open returns is .* not a session: it lacks policy, begin, note_counts;",
    ),
    "a bound": (
        type("Long", (Whole,), {"max_depth": None})(),
        "length: max_depth of Long must be an integer",
    ),
    "reads_entropy": (
        Unasked(),
        "length: Unasked defines draws, but reads_entropy of Unasked is False",
    ),
    "reads_confidence": (
        NotBelieved(),
        "length: NotBelieved defines continues, but reads_confidence of",
    ),
}


@pytest.mark.parametrize(("length", "message"), INCOMPLETE.values(), ids=INCOMPLETE)
def test_a_policy_that_lacks_a_part_or_is_not_asked_is_refused_with_what_it_lacks(length, message):
    for name in ("model", "ngram", "lookup"):
        with pytest.raises(ValueError, match=f"^{message}"):
            SpeculativeDecoder(TARGET, SOURCES[name](length)).generate([[1, 2, 1, 2]], 9)


def test_a_class_without_what_has_no_default_cannot_be_made():
    with pytest.raises(TypeError, match=r"Endless .*abstract method.* '?max_depth"):
        type("Endless", (LengthPolicy,), {"open": lambda self, num_rows: self})()
    with pytest.raises(TypeError, match=r"Silent .*abstract method.* '?limits"):
        type("Silent", (LengthSession,), {})()


def lengths_of(policy: LengthPolicy, confidences: list[float], accepted: list[int], cap: int = 99) -> list[int]:
    """Lead a session of one row through steps with given confidences; return the length of every draft."""
    session, row, committed, lengths = policy.open(3), np.array([1]), 5, []
    session.begin(row)
    for kept in accepted:
        limit = depth_limits(session, row, np.array([committed]), Budget(np.array([cap]), np.array([cap])))
        given = np.array([confidences])
        for depth in range(1, int(limit[0])):
            limit = cut_limits(session, limit, depth, session.continues(row, given[:, :depth]))
            if limit[0] <= depth:
                break
        if limit[0]:
            session.note_counts(row, limit)
        lengths.append(int(limit[0]))
        committed += min(kept, lengths[-1]) + 1
    return lengths


def test_the_heuristic_adds_two_after_full_acceptance_and_takes_one_after_a_rejection():
    assert lengths_of(Heuristic(3, max_draft_tokens=6), [], [3, 5, 9, 2, 0, 0, 0, 0, 0, 0]) == [
        3, 5, 6, 6, 5, 4, 3, 2, 1, 1,
    ]  # fmt: skip


@every_policy
def test_next_limits_are_those_of_the_session_or_unknown(length):
    generator, row = np.random.default_rng(0), np.array([0])
    session, committed = length.open(1), 4
    session.begin(row)
    limit = session.limits(row, np.array([committed])).copy()
    for _ in range(200):
        drafted = np.minimum(limit, generator.integers(0, 8, 1))
        accepted = np.where(generator.random(1) < 0.5, drafted, generator.integers(0, drafted + 1))
        session.note_counts(row, drafted)
        committed += int(accepted[0]) + 1
        told, limit = length.next_limits(limit, drafted, accepted), session.limits(row, np.array([committed])).copy()
        assert told is None or told.tolist() == limit.tolist()
    assert (told is None) == (not isinstance(length, Heuristic))


def test_a_shortened_draft_counts_by_what_was_drafted():
    session, row = Heuristic(3, max_draft_tokens=9).open(1), np.array([0])
    session.begin(row)
    assert session.limits(row, np.array([4])) == 3
    session.note_counts(row, np.array([1]))
    assert session.limits(row, np.array([6])) == 5  # one of one
    assert session.limits(row, np.array([7])) == 5  # nothing drafted
    session.note_counts(row, np.array([2]))
    assert session.limits(row, np.array([9])) == 4  # one of two
    session.note_counts(row, np.array([4]))
    assert session.limits(row, np.array([5])) == 4  # taken back: nothing is known
    session.begin(row)
    assert session.limits(row, np.array([6])) == 3


@pytest.mark.parametrize("alpha", [0.05, 0.3, 0.5, 0.65, 0.8, 0.9, 0.95])
def test_a_first_draft_has_theorys_best_length_whatever_the_confidences(alpha):
    """(c', v') enter as c' + v': a chain of gamma tokens costs 1 + gamma (c' + v')."""
    for cost, share in itertools.product((0.03, 0.1, 0.21, 0.4, 0.77), (0.0, 0.3)):
        calibration = Calibration.independent(alpha, (1 - share) * cost, share * cost)
        policy = Threshold(calibration, max_draft_tokens=40)
        for confidences in ([0.9] * 40, np.random.default_rng(0).random(40).tolist()):
            assert lengths_of(policy, confidences, [0]) == [optimal_gamma(alpha, cost)], (cost, share)


CURVES = {
    "tiles of four": WidthCurve((1, 4, 5, 8, 9, 12), (1.0, 1.05, 1.6, 1.65, 2.2, 2.25)),
    "free up to two, then dear": WidthCurve((1, 2, 3, 9), (1.0, 1.0, 1.3, 3.1)),
    "dear at first": WidthCurve((1, 2, 9), (1.0, 1.5, 1.6)),
}


@pytest.mark.parametrize("curve", CURVES)
def test_a_first_draft_has_the_best_length_on_any_curve(curve):
    """Best of all lengths that are allowed, by expected tokens over c n + v(n + 1)."""
    for alpha, longest in itertools.product((0.3, 0.6, 0.8, 0.95), (1, 3, 4, 7, 8, 12)):
        costs = replace(Calibration.independent(alpha, 0.05), width_cost=CURVES[curve])
        rates = [expected_tokens(alpha, n) / float(costs.step_cost(np.array(n))) for n in range(longest + 1)]
        policy = Threshold(replace(costs, rate=max(rates)), max_draft_tokens=longest)
        (length,) = lengths_of(policy, [0.5] * longest, [0])
        assert rates[length] == pytest.approx(max(rates), rel=1e-9), (alpha, longest)


def usual_length(target: TabularLM, model: TabularLM, calibration: Calibration, **options: Any) -> int:
    """Return the most frequent length of drafts that the budget did not shorten, over eight requests."""
    source = drafts.SmallTransformer(model, length=Threshold(calibration, **options))
    prompts = [[i % 6, 5 * i % 6] for i in range(8)]
    columns = SpeculativeDecoder(target, source).generate(prompts, 200, SAMPLED).records.columns()
    depth = np.array(columns["draft_depth"])[~np.array(columns["shortened"])]
    return int(np.bincount(depth).argmax())


@pytest.mark.parametrize(
    ("alpha", "cost", "node_cost"),
    [(0.3, 0.4, 0.1), (0.5, 0.05, 0.0), (0.7, 0.1, 0.1), (0.8, 0.2, 0.0), (0.9, 0.3, 0.1)],
)
def test_in_a_run_with_independent_acceptance_lengths_are_theorys_best(alpha, cost, node_cost):
    target, model = TabularLM.pair(6, 2, alpha, 0)
    best = optimal_gamma(alpha, cost + node_cost)
    assert usual_length(target, model, Calibration.independent(alpha, cost, node_cost)) == best


@pytest.fixture(scope="module")
def fitted() -> tuple[TabularLM, TabularLM, Calibration]:
    target, model = TabularLM.pair(6, 2, 0.7, 1)
    prompts = [[i % 6, i // 6] for i in range(36)]
    made = calibrate(
        target, lambda length: drafts.SmallTransformer(model, length=length), prompts,
        max_new_tokens=150, sampling=SAMPLED, batch_size=None,
    )  # fmt: skip
    return target, model, made


def test_a_fitted_calibration_knows_the_survivals(fitted):
    """About 15000 drafted tokens: standard errors are below 0.01, and confidences say a little of their own."""
    _, _, made = fitted
    assert made.num_tokens > 10000
    assert made.first == pytest.approx(0.7, abs=0.04)
    np.testing.assert_allclose(made.survival(0.7 ** np.arange(1, 6)), 0.7 ** np.arange(2, 7), atol=0.05)
    assert made.draft_cost > 0
    assert made.width_cost.num_nodes == tuple(range(1, 10))
    assert made.rate >= 1


def test_where_no_draft_pays_a_row_skips_and_probes():
    policy = Threshold(Calibration.independent(0.2, 0.4), max_draft_tokens=6, probe_every=3)
    assert lengths_of(policy, [0.5] * 6, [0] * 7) == [0, 0, 1, 0, 0, 1, 0]


def test_probes_find_out_that_drafting_pays():
    """Predicted 0.2, true 1: the row's own correction grows with every probe that is accepted."""
    policy = Threshold(Calibration.independent(0.2, 0.3), max_draft_tokens=6, probe_every=2)
    lengths = lengths_of(policy, [0.5] * 6, [9] * 60)
    assert lengths[:4] == [0, 1, 0, 1]
    assert min(lengths[-10:]) >= 1


def test_a_row_that_falls_short_of_its_calibration_stops_drafting():
    lengths = lengths_of(Threshold(Calibration.independent(0.8, 0.3), max_draft_tokens=6), [0.5] * 6, [0] * 80)
    assert lengths[0] == optimal_gamma(0.8, 0.3)
    assert lengths[-20:].count(0) >= 18


def test_a_constant_stops_behind_the_token_that_crosses_it():
    confidences = [0.9, 0.8, 0.5, 0.9, 0.1, 0.9]  # products 0.9, 0.72, 0.36, 0.324, 0.0324
    assert lengths_of(Threshold(threshold=0.7, max_draft_tokens=6), confidences, [0]) == [3]
    assert lengths_of(Threshold(threshold=0.33, max_draft_tokens=6), confidences, [0]) == [4]
    assert lengths_of(Threshold(threshold=0.4, per_token=True, max_draft_tokens=6), confidences, [0]) == [5]
    assert lengths_of(Threshold(threshold=1.0, max_draft_tokens=6), confidences, [0]) == [1]
    assert lengths_of(Threshold(threshold=0.0, max_draft_tokens=6), confidences, [0]) == [6]


def test_entropy_stops_before_the_draw():
    """The bound 1 - sqrt(H / 5) of a uniform law over six ids is 0.40, that of a sure one 1."""
    table = np.full((6, 6), 1 / 6)
    table[0] = table[1] = np.eye(6)[1]
    source = drafts.SmallTransformer(TabularLM(table), length=Entropy(0.5, max_draft_tokens=4))
    rows = Rows(source, sampling=SAMPLED)
    rows.seat({0: [2], 1: [0], 2: [1]})
    assert rows.propose({0: 9, 1: 9, 2: 2}).num_nodes.tolist() == [0, 4, 2]
    loose = drafts.SmallTransformer(TabularLM(table), length=Entropy(0.39, max_draft_tokens=4))
    rows = Rows(loose, sampling=SAMPLED)
    rows.seat({0: [2]})
    assert rows.propose({0: 9}).num_nodes.tolist() == [4]


@pytest.mark.parametrize("source", PAIRS)
def test_sources_conform_with_every_policy(source):
    prompts = [[1, 3, 5], [3, 1, 5, 3, 1, 3, 1], [1] * 11, [1, 3, 5, 1, 3, 5, 1, 3, 5]]
    check_draft(source, TabularLM.random(6, 2, 5, eos_id=5), prompts, max_new_tokens=10)


@every_policy
def test_lengths_vary_and_stay_within_their_bound(length):
    result = SpeculativeDecoder(TARGET, SOURCES["model"](length)).generate([[1, 2], [3]], 150, SAMPLED)
    used = np.flatnonzero(result.stats.steps_by_depth)
    assert len(used) > 2
    assert used.max() <= length.max_depth == 6


@every_policy
def test_nothing_is_computed_that_is_not_read(length):
    rows = Rows(SOURCES["model"](length), sampling=SAMPLED)
    rows.seat({0: [1, 2], 1: [3]})
    assert (rows.propose({0: 9, 1: 9}).confidence is not None) == length.reads_confidence


def test_the_result_holds_the_calibration():
    made = SpeculativeDecoder(TARGET, SOURCES["model"](LONG["moving"])).generate([[1]], 3)
    assert made.calibration == CALIBRATION
    within = drafts.Staged(TARGET, SOURCES["model"](Threshold(CALIBRATION)), 2)
    assert SpeculativeDecoder(TARGET, within).generate([[1]], 3).calibration == CALIBRATION
    assert SpeculativeDecoder(TARGET, SOURCES["model"](Fixed(2))).generate([[1]], 3).calibration is None
    assert SpeculativeDecoder(TARGET).generate([[1]], 3).calibration is None


def test_a_calibration_survives_json(fitted):
    for made in (CALIBRATION, fitted[2]):
        assert Calibration.from_dict(json.loads(json.dumps(made.as_dict()))) == made


@pytest.mark.parametrize("batch", [1, 3])
def test_passes_are_timed_by_width(batch):
    scored = []

    class Watched(TabularLM):
        def score(self, tokens, parents, *rest, **named):
            scored.append((*tokens.shape, parents))
            return super().score(tokens, parents, *rest, **named)

    seconds = pass_seconds(Watched(TARGET.table), [1, 2, 4], batch)
    assert len(seconds) == 3
    assert min(seconds) > 0
    widths = [(batch, n, None) for n in (1, 2, 4)]
    assert [call for call in scored if call[1] < 64] == widths * 16
    with pytest.raises(ValueError, match="does not fit a context"):
        pass_seconds(TARGET, [1, TARGET.max_context + 1])


def test_a_fit_is_the_isotonic_regression_of_what_was_judged():
    confidences = [np.array([0.9, 0.5]), np.array([0.9, 0.5]), np.array([0.5]), np.zeros(0)]
    made = Calibration.fit(confidences, [2, 1, 0, 0], 0.1, WidthCurve.linear(0.1))
    assert made.acceptance == Monotone((0.5, 0.9), (1 / 3, 1.0))
    assert made.first == 2 / 3
    assert made.survival == Monotone((0.0, 1.0), (0.0, 0.5))  # one and the same product: h(0.9) = 1
    short = Calibration.fit([np.array([0.9]), np.array([0.5])], [1, 0], 0.1, WidthCurve.linear(0.1))
    assert (short.first, short.survival) == (0.5, Monotone((0.0, 1.0), (0.0, 0.5)))
    assert made.num_tokens == 5
    # Survivals 2/3 and 1/2: lengths 0, 1, 2 emit 1, 1.667 / 1.2, 2.167 / 1.4.
    assert made.rate == pytest.approx((1 + 2 / 3 + 1 / 2) / 1.4, rel=1e-12)


def test_a_monotone_map_is_monotone_linear_between_knots_and_constant_beyond():
    generator = np.random.default_rng(0)
    x = generator.random(2000)
    made = Monotone.fit(x, (generator.random(2000) < x).astype(np.float64), from_zero=True)
    assert (made.x[0], made.y[0]) == (0.0, 0.0)
    assert len(made.x) == 33
    assert np.mean(x > made.x[-1]) == pytest.approx(1 / 64, rel=0.3), "half of the last bin"
    np.testing.assert_allclose(made(np.array([0.2, 0.5, 0.8])), [0.2, 0.5, 0.8], atol=0.1)
    assert Monotone((0.2, 0.4), (0.0, 1.0))(np.array([0.1, 0.3, 0.9])).tolist() == pytest.approx([0.0, 0.5, 1.0])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Heuristic(0), "num_draft_tokens must be an integer, 1 or more"),
        (lambda: Fixed(True), "num_draft_tokens must be an integer, 0 or more, not True"),
        (lambda: Heuristic(5, 4), "max_draft_tokens=4"),
        (lambda: Threshold(), "give a calibration"),
        (lambda: Threshold(0.4), "did you mean threshold="),
        (lambda: Threshold(CALIBRATION, per_token=True), "give the threshold"),
        (lambda: Threshold(threshold=True), r"threshold must be a number in \[0, 1\], not True"),
        (lambda: Threshold(threshold="0.4"), "threshold='0.4' is neither a number nor a schedule"),
        (lambda: Entropy(Tracked), "threshold=<class .*Tracked'> is neither a number nor a schedule"),
        (lambda: Threshold(threshold=0.5, probe_every=0), "probe_every must be an integer, 1 or more"),
        (lambda: Threshold(threshold=0.5, max_draft_tokens=2.5), "max_draft_tokens must be an integer, 0 or more"),
        (lambda: Entropy(max_draft_tokens=2.5), "max_draft_tokens must be an integer, 0 or more"),
        (lambda: Constant(-0.1), "threshold must be a number in"),
        (lambda: Tracked(target=2), "target must be a number in"),
        (lambda: Entropy(scale=-1), "scale"),
        (lambda: Calibration.independent(0.5, -0.1), "c must be a finite"),
        (lambda: replace(CALIBRATION, rate=float("nan")), "rate must be"),
        (lambda: Monotone((0.5, 0.5), (0.1, 0.2)), "x must ascend"),
        (lambda: Calibration.fit([np.zeros(0)], [0], 0.1, WidthCurve.linear(0.0)), "nothing was drafted"),
        (lambda: calibrate(TARGET, SOURCES["model"], []), "prompts are empty"),
        (lambda: calibrate(TARGET, SOURCES["model"], [[1]], batch_size=0), "batch_size must be an integer, 1 or more"),
        (lambda: calibrate(TARGET, lambda length: drafts.stateless(rotate), [[1]]), "chains with confidences"),
        (lambda: calibrate(TARGET, SOURCES["model"], [[1]], max_new_tokens=0), "nothing was decoded"),
        (lambda: calibrate(TARGET, lambda length: drafts.SuffixAutomaton(16), [[1]]), "may draft 16 tokens, more than"),
        (lambda: calibrate(TARGET, SOURCES["model"], [[1], []]), r"prompts\[1\] is empty"),
    ],
)  # fmt: skip
def test_bad_arguments_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def rotate(ids: list[int], budget: int) -> list[int]:
    return ids[:budget]


def test_a_policy_of_ones_own_needs_two_methods():
    class Odd(LengthPolicy, LengthSession):
        @property
        def max_depth(self):
            return 2

        def open(self, num_rows):
            return self

        def limits(self, rows, num_committed):
            return num_committed % 2 * 2

    result = SpeculativeDecoder(TARGET, SOURCES["model"](Odd())).generate([[1]], 20, SAMPLED)
    columns = result.records.columns()
    drafted = [depth for depth, short in zip(columns["draft_depth"], columns["shortened"], strict=True) if not short]
    assert drafted == [n % 2 * 2 for n in columns["num_committed"]][: len(drafted)]


@pytest.mark.parametrize("source", ["model", "lookup"])
def test_a_session_that_does_not_say_whose_it_is_is_refused_with_the_fix(source):
    class Nobodys(LengthSession):
        def limits(self, rows, num_committed):
            return num_committed

    class Own(LengthPolicy):
        max_depth = 2

        def open(self, num_rows):
            return Nobodys()

    with pytest.raises(ValueError, match="length: a session of type Nobodys has no policy: set its attribute policy"):
        SpeculativeDecoder(TARGET, SOURCES[source](Own())).generate([[1, 2, 1]], 20, SAMPLED)


@pytest.mark.parametrize("name", ["greedy model", "ngram", "sampled ngram", "lookup"])
def test_every_source_can_be_calibrated(name):
    prompts = [[i % 6, 2, 3, 2, 3, i // 6] for i in range(12)]
    made = calibrate(TARGET, SOURCES[name], prompts, num_draft_tokens=4, max_new_tokens=40, batch_size=5)
    assert made.num_tokens > 100
    result = SpeculativeDecoder(TARGET, SOURCES[name](Threshold(made))).generate(prompts, 40)
    assert result.calibration == made
    assert result.tokens == SpeculativeDecoder(TARGET).generate(prompts, 40).tokens
