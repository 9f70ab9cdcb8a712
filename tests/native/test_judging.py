"""A whole verdict in one call: what our rules and draws from their verdicts give, token for token."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles.native import NativeTransformer
from oracles.tabular import TabularLM
from specdec import Chain, Kary, SamplingParams, SpeculativeDecoder
from specdec.contracts import NEVER, Budget, Offers, Scores, VerificationRule
from specdec.engine import verdict as verdicts
from specdec.engine.checks import check_form
from specdec.engine.outcome import StepOutcome
from specdec.kernels.compiled import FILTERS, NATIVE_DTYPES, Fault, FaultCode, PackedDrafts, Way
from specdec.laws import Laws, argmax
from specdec.sampling.randomness import Coupled, Keyed
from specdec.verify import MultiDraft, SampleAndMatch, Standard
from tests.support.backends import judged_by_rules, laws_by, needed_kernels, needed_native
from tests.support.drafting.draft_rows import recorded
from tests.support.drafting.judged_steps import (
    ORACLE,
    SOURCE,
    WAYS,
    Step,
    by_the_rule,
    check,
    coupled,
    frame_of,
    framed,
    grown,
    in_one_call,
    step_of,
    verdict_of,
    whole,
)
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import pairwise

needed_kernels()


def the_general_way(step: Step) -> StepOutcome:
    with judged_by_rules():
        return verdict_of(step)


FORMS = {rule: (rule, False) for rule in ("standard", "block", "sample_and_match", "coupled")}
FORMS |= {f"trees, {rule}": (rule, True) for rule in ("multi_draft", "traversal", "sample_and_match", "coupled")}


@pairwise(
    {
        "rule, is_tree": FORMS,
        "size": (4, 16, 37, 300),
        "is_drawn": {"chosen": False, "drawn": True},
        "dtype": NATIVE_DTYPES,
    }
)
def test_a_call_says_what_the_general_way_does(rule, is_tree, size, is_drawn, dtype):
    generator = np.random.default_rng(size)
    accepted, endings, branched = set(), set(), 0
    for case in range(36):
        width = case % (9 if is_tree else 7)
        step = step_of(generator, int(generator.integers(1, 13)), width, size, dtype, is_drawn)
        step = by_the_rule(rule, grown(generator, step) if is_tree else step)
        made = in_one_call(step)
        check(made, the_general_way(step))
        accepted.update(made.num_accepted.tolist())
        endings.update(made.endings.tolist())
        branched += int((made.stop > made.num_accepted).sum())
    assert accepted >= ({0, 1, 2} if is_tree else {0, 1, 2, 3})
    assert endings == {0, 1}
    assert (branched > 5) == is_tree, "walks that go on into another than the first child"


@pytest.mark.parametrize(("of_trees", "of_chains"), [("multi_draft", "standard"), ("traversal", "block")])
def test_chains_are_judged_alike_by_both_rules(of_trees, of_chains):
    generator = np.random.default_rng(3)
    for _ in range(20):
        step = step_of(generator, 5, 6, 60, torch.float64, True)
        check(in_one_call(by_the_rule(of_trees, step)), in_one_call(by_the_rule(of_chains, step)))


@pairwise(
    {
        "rule": ("multi_draft", "traversal", "sample_and_match", "coupled"),
        "is_tree": {"chains": False, "trees": True},
        "dtype": NATIVE_DTYPES,
    }
)
def test_a_row_has_the_verdict_that_it_has_alone(is_tree, rule, dtype):
    generator = np.random.default_rng(1)
    step = step_of(generator, 7, 6, 50, dtype, True)
    step = by_the_rule(rule, grown(generator, step) if is_tree else step)
    whole, draft, logits = in_one_call(step), step.draft, step.scores.logits
    assert draft.laws is not None
    assert logits is not None
    for row in range(7):
        at = np.array([row])
        numbers = ("tokens", "num_nodes", "parents", "laws", "is_scout", "without_replacement", "source")
        given = {name: value[at] for name in numbers if (value := getattr(draft, name)) is not None}
        own = replace(draft, **given)
        frame = SimpleNamespace(**vars(frame_of(1)))
        frame.warping, frame.randomness = step.frame.warping.select(at), step.frame.randomness.select(at)
        made = in_one_call(Step(own, Scores(logits[at], likeliest=argmax(logits[at])), frame, step.rule))
        assert made.block.tolist() == whole.block[at].tolist()


Changed = Callable[[Step], Step]


def with_law(change: Callable[[torch.Tensor], None], step: Step) -> Step:
    """Change the law of the last node of the last row, which the walk need not reach."""
    laws = step.draft.laws
    assert laws is not None
    table = laws.table.clone()
    change(table[laws.index[-1, -1]])
    return replace(step, draft=replace(step.draft, laws=Laws(table, laws.index, laws.point)))


def with_counts(counts: torch.Tensor, step: Step) -> Step:
    return replace(step, draft=replace(step.draft, num_nodes=counts))


def with_laws(change: Callable[[Laws], Laws], step: Step) -> Step:
    assert step.draft.laws is not None
    return replace(step, draft=replace(step.draft, laws=change(step.draft.laws)))


def with_node(name: str, value: Any, step: Step) -> Step:
    """Give the last node of the last row another value."""
    numbers = getattr(step.draft, name).clone()
    numbers[-1, -1] = value
    return replace(step, draft=replace(step.draft, **{name: numbers}))


def with_logits(value: float, step: Step) -> Step:
    assert step.scores.logits is not None
    logits = step.scores.logits.clone()
    logits[-1, -1, 2] = value
    return replace(step, scores=Scores(logits, likeliest=argmax(logits)))


def over(step: Step, **limits: int) -> Step:
    return framed(step, budget=frame_of(3, **limits).budget)


def told(step: Step) -> Step:
    undefined = torch.full((3, 1), NEVER)
    undefined[2] = 1
    return replace(step, draft=replace(step.draft, undefined=undefined))


FAULTS: dict[str, tuple[Changed, type[Exception], str]] = {
    "NaN": (partial(with_logits, float("nan")), FloatingPointError, "request 2: the oracle's logits at node 4"),
    "infinity": (partial(with_logits, float("inf")), FloatingPointError, "request 2: the oracle's logits at node 4"),
    "a source's NaN": (told, FloatingPointError, "request 2: the model of 'theirs' gave logits"),
    "a law of 0.9": (
        partial(with_law, lambda law: law.mul_(0.9)),
        ValueError,
        "request 2: the law declared for draft node 3",
    ),
    "a law of NaN": (partial(with_law, lambda law: law.fill_(torch.nan)), ValueError, "request 2: the law declared"),
    "a law of nothing": (partial(with_law, lambda law: law.zero_()), ValueError, "request 2: the law declared"),
    "too deep": (partial(over, depth=3), ValueError, "over the budget of 99 nodes and depth 3"),
    "too many": (partial(over, nodes=3), ValueError, "over the budget of 3 nodes and depth 99"),
    "too many nodes": (
        lambda step: replace(step, draft=replace(step.draft, num_nodes=step.draft.num_nodes + 1)),
        ValueError,
        r"num_nodes must lie in 0\.\.4",
    ),
    "a table of no laws": (
        lambda step: with_laws(lambda laws: Laws(laws.table[:0], laws.index - 99, (laws.point + 1) % 20), step),
        ValueError,
        "request 0: the law declared for draft node 0",
    ),
    "padding of no law": (
        lambda step: with_laws(
            lambda laws: Laws(laws.table[:-1], laws.index, laws.point), with_counts(torch.tensor([4, 4, 3]), step)
        ),
        ValueError,
        "request 2: laws.index of draft node 3, padding included, is 11, and laws.table has 11 rows",
    ),
}


def fail_both_ways(step: Step) -> None:
    """Raise the error that the call leads to, if the general way raises the same."""
    with pytest.raises((ValueError, FloatingPointError)) as general:
        the_general_way(step)
    with pytest.raises(type(general.value)) as native:
        in_one_call(step)
    assert str(native.value) == str(general.value)
    raise native.value


@pytest.mark.parametrize("rule", ["standard", "sample_and_match", "coupled"])
@pytest.mark.parametrize("fault", FAULTS)
def test_both_ways_name_a_fault_alike(rule, fault):
    step = by_the_rule(rule, whole())
    check(in_one_call(step), the_general_way(step))
    breaks, kind, message = FAULTS[fault]
    with pytest.raises(kind, match=message):
        fail_both_ways(breaks(step))


def test_scouts_are_refused_by_a_rule_of_chains():
    step = whole()
    step = replace(step, draft=replace(step.draft, is_scout=torch.zeros(3, 4, dtype=torch.bool)))
    with pytest.raises(ValueError, match="rule 'standard' judges chains only"):
        verdict_of(step)


def test_an_id_beyond_the_vocabulary_is_told_as_it_is_before_a_pass():
    step = with_node("tokens", 20, whole())
    with pytest.raises(ValueError, match=r"'theirs' is malformed: id 20 of node 3, .* must lie in 0\.\.19") as before:
        check_form(SOURCE, Offers(max_nodes=4), step.draft, 3, ORACLE)
    with pytest.raises(ValueError, match="malformed") as found:
        in_one_call(step)
    assert str(found.value) == str(before.value)


def test_a_law_that_cannot_give_its_token_is_told():
    step = whole()
    laws, tokens = step.draft.laws, step.draft.tokens
    assert laws is not None

    def without_it(law: torch.Tensor) -> None:
        law[tokens[-1, -1]] = 0
        law /= law.sum()

    with pytest.raises(ValueError, match="gives the node's own token no probability"):
        fail_both_ways(with_law(without_it, step))


@pytest.mark.parametrize("parent", [3, -2])
def test_a_sampled_tree_whose_nodes_stand_above_themselves_is_told(parent):
    step = grown(np.random.default_rng(5), whole())
    with pytest.raises(ValueError, match="a parent, of padding too, must be -1 or a smaller index"):
        fail_both_ways(with_node("parents", parent, step))


@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match", "coupled"])
def test_of_many_faults_both_ways_name_the_same(rule):
    generator, told = np.random.default_rng(6), set()
    for _ in range(70):
        step = by_the_rule(rule, grown(generator, whole()))
        for change in generator.permutation(len(MANY))[: generator.integers(1, 4)]:
            step = MANY[change](generator, step)
        found, wanted = outcome(in_one_call, step), outcome(the_general_way, step)
        if isinstance(wanted, StepOutcome):
            assert isinstance(found, StepOutcome), found
            check(found, wanted)
        else:
            assert (type(found), str(found)) == (type(wanted), str(wanted))
            told.add("".join(x for x in str(wanted) if not x.isdigit()))
    assert len(told) == len(MANY), "each of the faults is told in some step"


def outcome(verify: Callable[[Step], StepOutcome], step: Step) -> StepOutcome | Exception:
    try:
        return verify(step)
    except (ValueError, FloatingPointError) as error:
        return error


def anywhere(generator: np.random.Generator, name: str, value: Any, step: Step) -> Step:
    """Give some node of some row another value."""
    numbers = getattr(step.draft, name).clone()
    numbers[tuple(generator.integers(size) for size in numbers.shape)] = value
    return replace(step, draft=replace(step.draft, **{name: numbers}))


def with_some_law(generator: np.random.Generator, step: Step) -> Step:
    laws = step.draft.laws
    table = laws.table.clone()
    table[generator.integers(len(table))] *= 0.9
    return replace(step, draft=replace(step.draft, laws=Laws(table, laws.index, laws.point)))


def with_some_index(generator: np.random.Generator, step: Step) -> Step:
    laws, index = step.draft.laws, step.draft.laws.index.clone()
    index[generator.integers(3), generator.integers(4)] = len(laws.table)
    return replace(step, draft=replace(step.draft, laws=Laws(laws.table, index, laws.point)))


def with_some_logit(generator: np.random.Generator, step: Step) -> Step:
    logits = step.scores.logits.clone()
    logits[generator.integers(3), generator.integers(5), 2] = float("nan")
    return replace(step, scores=Scores(logits, likeliest=argmax(logits)))


UNDEFINED = [[NEVER, NEVER], [NEVER, 2], [1, NEVER]]
MANY: list[Callable[[np.random.Generator, Step], Step]] = [
    with_some_law,
    with_some_index,
    with_some_logit,
    lambda generator, step: anywhere(generator, "parents", 4, step),
    lambda generator, step: anywhere(generator, "source", 2, step),
    lambda generator, step: anywhere(generator, "is_scout", True, step),
    lambda generator, step: anywhere(generator, "num_nodes", 5, step),
    lambda generator, step: over(step, depth=int(generator.integers(1, 4))),
    lambda generator, step: replace(step, draft=replace(step.draft, undefined=torch.tensor(UNDEFINED))),
]


def test_sources_of_another_type_are_taken_by_torch_operations():
    step = grown(np.random.default_rng(5), whole())
    assert step.draft.source is not None
    other = replace(step, draft=replace(step.draft, source=step.draft.source.int()))
    assert verdict_of(other).block.tolist() == in_one_call(step).block.tolist()


def test_padding_may_hold_anything_but_ids_beyond_the_vocabulary():
    step = whole()
    step = replace(step, draft=replace(step.draft, num_nodes=torch.tensor([4, 2, 3])))
    wanted = in_one_call(step)
    odd = with_law(lambda law: law.fill_(torch.nan), with_logits(float("nan"), step))
    found = in_one_call(odd)
    check(found, the_general_way(odd))
    assert found.block.tolist() == wanted.block.tolist()


def with_randomness(step: Step) -> Step:
    return framed(step, randomness=recorded(step.frame.randomness, len(step.draft.num_nodes)))


def derived(kind: type[VerificationRule]) -> VerificationRule:
    """Return a rule of somebody else, derived from one of ours: it accepts nothing."""

    class Derived(kind):
        def __call__(self, draft, target_laws):
            return super().__call__(replace(draft, num_nodes=draft.num_nodes * 0), target_laws)

    return Derived()


def zeroing(kind: type[Keyed] | type[Coupled], at: str) -> Any:
    """Return streams of somebody else, derived from ours: what they draw for one purpose is 0."""

    class Derived(kind):
        def choose(self, laws, node, depth, purpose, k=1):
            drawn = super().choose(laws, node, depth, purpose, k)
            return torch.zeros_like(drawn) if purpose == at else drawn

    return Derived


def drawn_by(change: Callable[[Keyed], Any], step: Step) -> Step:
    return framed(step, randomness=change(step.frame.randomness))


OTHERS: dict[str, Changed] = {
    **{
        f"a rule derived from {kind.name}": lambda step, kind=kind: replace(step, rule=derived(kind))
        for kind in (Standard, MultiDraft, SampleAndMatch)
    },
    "races of a derived class": lambda step: framed(
        coupled(step), randomness=zeroing(Coupled, "target")(**vars(coupled(step).frame.randomness))
    ),
    "recorded races": lambda step: with_randomness(coupled(step)),
    "one race for all rows": lambda step: framed(coupled(step), randomness=coupled(step).frame.randomness.select([0])),
    "other randomness": with_randomness,
    "streams of a derived class": partial(drawn_by, lambda keyed: zeroing(Keyed, "stop")(keyed.seeds, keyed.parts)),
    "one stream for all rows": partial(drawn_by, lambda keyed: Keyed(keyed.seeds[:1])),
    "one stream of two parts": partial(drawn_by, lambda keyed: Keyed(keyed.seeds[:1], (keyed.parts[0][:1],))),
    "laws in another type": partial(with_laws, lambda laws: Laws(laws.table.float(), laws.index, laws.point)),
}


@pytest.mark.parametrize("other", OTHERS)
def test_what_the_call_does_not_know_goes_the_general_way(other, monkeypatch):
    asked: list[str] = []
    general = verdicts.Verifier._by_the_rule
    monkeypatch.setattr(verdicts.Verifier, "_by_the_rule", lambda *args: asked.append("general") or general(*args))
    step = OTHERS[other](whole())
    check(verdict_of(step), the_general_way(step))
    assert len(asked) == 2


def spaced(numbers: torch.Tensor) -> torch.Tensor:
    """Return the numbers with room between them."""
    return numbers.unsqueeze(-1).repeat(*[1] * numbers.dim(), 2)[..., 0]


SPACED: dict[str, Changed] = {
    "a table of laws": partial(with_laws, lambda laws: Laws(spaced(laws.table), laws.index, laws.point)),
    "who has which law": partial(with_laws, lambda laws: Laws(laws.table, spaced(laws.index), spaced(laws.point))),
    "logits": lambda step: replace(step, scores=replace(step.scores, logits=spaced(step.scores.logits))),
}


def test_laws_that_are_points_are_judged_in_one_call():
    step = with_laws(lambda laws: Laws.points(laws.point), whole())
    check(in_one_call(step), the_general_way(step))


@pytest.mark.parametrize("rule", ["standard", "sample_and_match", "coupled"])
@pytest.mark.parametrize("numbers", SPACED)
def test_a_part_of_larger_numbers_is_judged_as_a_copy_of_it(numbers, rule):
    step = by_the_rule(rule, whole())
    made = in_one_call(SPACED[numbers](step))
    check(made, in_one_call(step))
    check(made, the_general_way(SPACED[numbers](step)))


@pytest.mark.parametrize("dtype", NATIVE_DTYPES, ids=str)
@pytest.mark.parametrize("is_tree", [False, True], ids=["chains", "trees"])
def test_log_probabilities_are_those_of_the_general_way(is_tree, dtype):
    generator = np.random.default_rng(2)
    step = step_of(generator, 6, 5, 30, dtype, True)
    step = grown(generator, step) if is_tree else step
    found = verdict_of(step, return_logprobs=True)
    with judged_by_rules():
        wanted = verdict_of(step, return_logprobs=True)
    assert (found.judge, wanted.judge) == (f"native: {step.rule.name}", step.rule.name)
    for row, accepted in enumerate(found.num_accepted.tolist()):
        ours, theirs = (made.logprobs[row, : accepted + 1] for made in (found, wanted))
        assert ours.tolist() == theirs.tolist()


def test_laws_of_torch_go_the_general_way():
    step = whole()
    with laws_by("torch"), pytest.raises(pytest.fail.Exception, match="had no word"):
        in_one_call(step)


@pairwise(
    {
        "make": ("lookup", "sampled", "greedy", "shaped chain", "tree", "greedy tree", "none"),
        "rule": ("offered", "sample_and_match", "coupled"),
        "batch_size": (3, None),
    }
)
def test_runs_are_those_of_the_general_way(rule, make, batch_size, monkeypatch):
    oracle, model = TabularLM.random(12, 2, seed=0), TabularLM.random(12, 1, seed=0)
    source = {
        "lookup": PromptLookup(3),
        "sampled": SmallTransformer(model, 4),
        "greedy": SmallTransformer(model, 4, temperature=0),
        "shaped chain": SmallTransformer(model, tree=Chain(3)),
        "tree": SmallTransformer(model, tree=Kary(2, 3)),
        "greedy tree": SmallTransformer(model, tree=Kary(2, 3), temperature=0),
        "none": None,
    }[make]
    rule = ("multi_draft" if "tree" in make else "standard") if rule == "offered" else rule
    prompts = [[1, 2, 1, 2, n] for n in range(len(WAYS))]
    ways = list(WAYS)
    wanted: Any = (prompts, 12, ways, 7, None, batch_size)
    with judged_by_rules():
        general = SpeculativeDecoder(oracle, source, rule).generate(*wanted)
    monkeypatch.setattr(verdicts.Verifier, "_by_the_rule", lambda *_: pytest.fail("compiled code had no word"))
    found = SpeculativeDecoder(oracle, source, rule).generate(*wanted)
    assert found.tokens == general.tokens
    assert found.stats.num_accepted == general.stats.num_accepted


ADJUSTED = (
    SamplingParams(repetition_penalty=5.0),
    SamplingParams(logit_bias={1: 50.0}),
    SamplingParams(temperature=0.8, logit_bias={2: 50.0}),
    SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=9.0),
    SamplingParams(),
    SamplingParams(temperature=1.0),
)


@pytest.mark.parametrize("rule", ["standard", "sample_and_match", "coupled"])
def test_drafts_are_judged_by_adjusted_logits(rule):
    needed_native()
    oracle = tiny_transformer(6, torch.float32, 1, NativeTransformer)
    wanted = ([[1, 2, 3, 1, 2]] * len(ADJUSTED), 30, list(ADJUSTED))
    fast = SpeculativeDecoder(oracle, PromptLookup(), rule=rule).generate(*wanted).tokens
    with judged_by_rules():
        assert SpeculativeDecoder(oracle, PromptLookup(), rule=rule).generate(*wanted).tokens == fast
    assert len(set(map(tuple, fast))) == len(ADJUSTED)


@pytest.mark.parametrize("name", ["logits", "filters", "without_replacement", "numbers"])
def test_arrays_of_other_sizes_are_refused_before_the_call(name):
    walks, step = needed_kernels().walks, whole()
    assert walks is not None
    nodes, ids, peaks = step.draft.after(np.zeros(3, dtype=np.int64)), *(tensor.numpy() for tensor in step.scores.best)
    draft = replace(step.draft, laws=None, without_replacement=torch.zeros(3, 4, dtype=torch.bool))
    by: dict[str, Any] = {"way": Way.OFFERED, "filters": np.zeros((len(FILTERS), 3)), "tolerance": 1e-4}
    rest: dict[str, Any] = {
        "logits": step.scores.logits, "numbers": step.frame.randomness.verdict_numbers(3, None)
    }  # fmt: skip

    def judged(depth: int = 9) -> None:
        budget, ends = Budget(np.full(3, depth), np.full(3, depth)), np.zeros(3, np.bool_)
        packed = PackedDrafts(walks, draft, nodes, budget, ends, **by)
        packed.take(ids, peaks, rest["logits"])
        packed.draw(rest["numbers"])

    with pytest.raises(Fault) as caught:
        judged(depth=0)
    assert (caught.value.code, caught.value.row, caught.value.node) == (FaultCode.BUDGET, 0, 4)
    judged()
    if name == "numbers":
        by["way"], rest["numbers"] = Way.RACED, np.zeros(6, np.int64)
        judged()
    if name in rest:
        rest[name] = rest[name][:-1]
    elif name == "filters":
        by["filters"] = by["filters"][:-1]
    else:
        draft = replace(draft, without_replacement=draft.without_replacement[:-1])
    with pytest.raises(ValueError, match=r"Target\.\w+ has the shape|races of 3 rows take 6 keys"):
        judged()
