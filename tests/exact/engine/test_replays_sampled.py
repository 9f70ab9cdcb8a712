"""Replays of sampled runs that are not coupled: fixed lengths of drawn chains, and all of chosen drafts."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

import drafts
import oracles
from specdec import RULES, Fixed, Heuristic, Kary, Paths, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import Draft, DraftSource
from specdec.drafting.lengths import LengthPolicy
from specdec.drafting.shapes import TreeShape
from specdec.traces import DenseRecords, record_chains, record_trees, replay
from tests.reference.block_laws import chain_blocks, joint_law
from tests.reference.tables import random_table
from tests.support.drafting.sources import Chains
from tests.support.pairwise import first_of
from tests.support.registry import SIX_IDS
from tests.support.runs.replays import ALARM, assert_steps_are_those_of_the_law, gap, of_requests

m = SIX_IDS
VOCAB, NEW, WARM = 3, 5, 0.7
TARGET, DRAFT = (random_table(VOCAB, 2, seed) for seed in (31, 32))
WARMED = SamplingParams(temperature=WARM)


def warmed(table: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    law = np.asarray(table)[ids[-2:]] ** (1 / WARM)
    return law / law.sum()


def chosen(table: np.ndarray, ids: tuple[int, ...]) -> np.ndarray:
    return np.eye(VOCAB)[np.asarray(table)[ids[-2:]].argmax()]


@pytest.mark.parametrize("eos", [None, 2], ids=["length", "eos"])
@pytest.mark.parametrize("law_of", [warmed, chosen], ids=["drawn", "chosen"])
@pytest.mark.parametrize("rule", ["standard", "multi_draft", "sample_and_match"])
def test_steps_given_an_output_are_those_of_enumeration(rule, law_of, eos, tmp_path):
    oracle, model = oracles.TabularLM(TARGET, eos_id=eos), oracles.TabularLM(DRAFT, eos_id=eos)

    def make(length: LengthPolicy) -> DraftSource:
        return drafts.SmallTransformer(model, length=length, temperature=None if law_of is warmed else 0)

    prompts = [[1, 2]] * 40
    record_chains(oracle, make, prompts, 3, NEW, WARMED, rule=rule, batch_size=7).save(tmp_path / "dense.parquet")
    dense = DenseRecords.load(tmp_path / "dense.parquet")
    assert not dense.repeats
    assert dense.is_chosen == (dense.p is None) == (law_of is chosen)
    assert len({tuple(output) for output in dense.outputs}) > 10
    for length in (0, 1, 3):

        def step(ids, left, _, length=length):
            limit = min(length, left - 1)
            blocks = chain_blocks(rule, partial(warmed, TARGET), partial(law_of, DRAFT), ids, limit)
            return {(block, 0): mass for block, mass in blocks.items()}

        law = joint_law(step, (1, 2), NEW, eos=eos)
        assert_steps_are_those_of_the_law(dense, replay(dense, length=Fixed(length)), law)


def warm_draft(length: LengthPolicy) -> DraftSource:
    return drafts.SmallTransformer(m.model, length=length, temperature=1.5)


SOURCES: dict[str, Callable[[LengthPolicy], DraftSource]] = {
    "drawn": lambda length: drafts.SmallTransformer(m.model, length=length),
    "drawn, layers": lambda length: drafts.EarlyExit(m.layered, 2, length=length),
    "drawn n-grams": lambda length: drafts.NGram(m.ngrams, length=length, sampled=True),
    "chosen": lambda length: drafts.SmallTransformer(m.model, length=length, temperature=0),
    "lookup": lambda length: drafts.PromptLookup(length=length),
}


@pytest.mark.parametrize("name", first_of(*SOURCES))
def test_the_mean_over_outputs_is_that_of_real_runs(name):
    """600 runs beside 600 records of other seeds: a true mean is flagged once in a million, another length's is."""
    prompts, sampling = [[3, 1, 4, 1, 5]] * 600, SamplingParams(temperature=0.9, top_p=0.95)
    oracle = m.layered if "layers" in name else m.other
    dense = record_chains(oracle, SOURCES[name], prompts, 3, 32, sampling, seed=1)
    result = SpeculativeDecoder(oracle, SOURCES[name](Fixed(3))).generate(prompts, 32, sampling, seed=2)
    ran = np.array([one.num_steps for one in result.stats.requests])
    near, far = (gap(of_requests(replay(dense, length=Fixed(length))), ran) for length in (3, 1))
    assert near < ALARM < far


STEPS = ("request", "num_committed", "num_drafted", "num_accepted", "num_emitted")
CHOICES = {
    "heuristic": {"length": Heuristic(2, max_draft_tokens=4)},
    "threshold": {"length": Threshold(threshold=0.4, max_draft_tokens=4)},
    "chain": {"length": Fixed(4)},
    "tree": {"shape": Paths([(0, 0), (1,), (0, 1)])},
    "whole tree": {"shape": Kary(2, 3)},
}


@pytest.mark.parametrize("name", CHOICES)
def test_given_its_output_a_run_with_chosen_drafts_has_but_one_course(name):
    """Runs draw; then their outputs are recorded as texts, over which the same drafts are replayed."""
    ((kind, choice),) = CHOICES[name].items()
    whole = {"length": Fixed(4), "shape": Kary(2, 3)}[kind]
    rule = "standard" if kind == "length" else "multi_draft"

    def make(one: LengthPolicy | TreeShape) -> DraftSource:
        return drafts.SmallTransformer(m.model, temperature=0, **{"length" if kind == "length" else "tree": one})

    prompts = [[i, j, 3, 1] for i in range(6) for j in range(6)]
    sampling = SamplingParams(temperature=0.9, ignore_eos=True)
    result = SpeculativeDecoder(m.layered, make(choice), rule).generate(prompts, 16, sampling)
    texts = oracles.RecordedText(prompts, result.tokens, vocab_size=6)
    if kind == "length":
        dense = record_chains(texts, lambda length: make(length), prompts, whole.max_depth, 16)
    else:
        dense = record_trees(texts, make, prompts, whole, 16, rule=rule)
    assert dense.outputs == result.tokens
    made, ran = replay(dense, **{kind: choice}).columns, result.records.columns()
    order = np.lexsort((ran["num_committed"], ran["request"]))
    for column in STEPS:
        assert made[column].tolist() == np.asarray(ran[column])[order].tolist(), column
    assert np.asarray(ran["num_accepted"]).sum() > 36


def test_a_sampled_record_of_chosen_trees_is_that_of_its_outputs():
    """The drafts of a sampled record are those of a greedy one over the same texts."""

    def make(tree: TreeShape) -> DraftSource:
        return drafts.SmallTransformer(m.model, tree=tree, temperature=0)

    prompts, sampling = [[i, 2, 3, 1] for i in range(6)], SamplingParams(temperature=0.9, ignore_eos=True)
    dense = record_trees(m.layered, make, prompts, Kary(2, 3), 16, sampling)
    texts = oracles.RecordedText(prompts, dense.outputs, vocab_size=6)
    over = record_trees(texts, make, prompts, Kary(2, 3), 16)
    for name in ("tokens", "parents", "counts"):
        assert getattr(dense, name).tolist() == getattr(over, name).tolist()
    shape = Paths([(0, 0), (1,)])
    assert replay(dense, shape=shape).columns["num_accepted"].tolist() == (
        replay(over, shape=shape).columns["num_accepted"].tolist()
    )
    assert replay(dense, shape=shape).claim == "exact up to numerics, given the outputs, which are draws"


DEPTH = r"draws tokens, and gave .* at depth \d of a draft and .* of another after the same ids: no dense record"


class Moody(Chains):
    """Draws whole drafts from one table after an even number of ids, from another after an odd one."""

    def draft(self, context, budget, randomness) -> Draft:
        table = random_table(6, 2, 40 + int(context.num_committed[0]) % 2)
        return Chains(table, self.num_draft_tokens).draft(context, budget, randomness)


class Shy(Chains):
    """Ends its drafts before the id 0."""

    def draft(self, context, budget, randomness) -> Draft:
        whole = super().draft(context, budget, randomness)
        counts = ((whole.tokens != 0).cumprod(1).sum(1)).minimum(whole.num_nodes)
        return Draft(whole.tokens, counts, laws=whole.laws)


def asked(length, source: Chains) -> Chains:
    """Return a source, whose length policy has opened a session as one that asks it does."""
    length.open(1)
    return source


def test_greedy_requests_among_sampled_ones_have_certain_targets():
    sampling = [SamplingParams(), SamplingParams(temperature=1.0)]
    dense = record_chains(m.layered, warm_draft, [[1, 2], [1, 2]], 3, 12, sampling)
    assert (dense.p[:12] == 1).all()
    assert (dense.p[12:] < 1).all()
    made = replay(dense, length=Fixed(1)).columns
    stands = dense.q[:11]  # greedy: a drafted token stands if it is the target's
    assert made["num_accepted"][:12].tolist() == [*stands, 0]


def test_what_has_no_expectations_is_refused():
    sampling = SamplingParams(temperature=1.0)
    dense = record_chains(m.layered, SOURCES["drawn"], [[1, 2]], 4, 8, sampling)
    with pytest.raises(ValueError, match="drafts up to 5 tokens, but the record holds drafts of 4"):
        replay(dense, length=Fixed(5))
    standard = RULES["standard"]
    own = {"__call__": lambda self, draft, target: standard(draft, target)}
    for named in ({"name": "lossy"}, own):  # one that keeps the name of ours may judge as it likes too
        other = type("Other", (type(standard),), named)()
        with pytest.raises(ValueError, match=r"\(Other\): .* known of standard, multi_draft, sample_and_match alone"):
            record_chains(m.layered, SOURCES["lookup"], [[1, 2]], 4, 8, sampling, rule=other)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (lambda length: asked(length, Moody(random_table(6, 2, 40), 4)), DEPTH),
        (lambda length: drafts.Quantized(m.layered, m.view, length=length, temperature=1.5), DEPTH),
        (lambda length: asked(length, Shy(random_table(6, 2, 40), 4)), "draws tokens, and ends drafts by itself: no"),
    ],
    ids=["two tables", "other keys", "ends"],
)
def test_drafts_that_the_ids_alone_do_not_decide_are_refused(kind, reason):
    with pytest.raises(ValueError, match=reason):
        record_chains(m.layered, kind, [[1, 2]] * 5, 4, 12, SamplingParams(temperature=1.0), batch_size=1)
