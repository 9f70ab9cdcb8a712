"""Replays of sampled runs that are not coupled, whose drafts are drawn: trees, and lengths that read or adapt."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest
import torch

import drafts
import oracles
from specdec import Chain, Entropy, Fixed, Grown, Heuristic, Kary, Paths, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import Draft, DraftSource
from specdec.drafting.lengths import LengthPolicy, LengthSession, Tracked
from specdec.drafting.shapes import TreeShape
from specdec.laws import Laws
from specdec.traces import DenseRecords, record_chains, record_trees, replay, siblings
from specdec.traces import dense as dense_records
from specdec.traces.tables import read_note
from tests.reference.block_laws import Ids, chain_blocks, joint_law, tree_blocks
from tests.reference.tables import law_after, random_table
from tests.support.drafting.sources import Chains, PlannedTrees
from tests.support.pairwise import first_of
from tests.support.registry import SIX_IDS
from tests.support.runs.replays import ALARM, assert_steps_are_those_of_the_law, gap, of_requests

m = SIX_IDS
VOCAB, NEW, PROMPT = 3, 4, (1, 2)
# Some ids have no probability: laws may hold fewer ids than a node has children.
TARGET, DRAFT = (random_table(VOCAB, 2, seed, zeros) for seed, zeros in ((31, 0.0), (32, 0.2)))
SAMPLED = SamplingParams(temperature=1.0)
RULES_OF_TREES = ("multi_draft", "sample_and_match")


def target(ids: Ids) -> np.ndarray:
    return law_after(TARGET, ids)


def drawn(ids: Ids) -> np.ndarray:
    return law_after(DRAFT, ids)


def tree_source(without_replacement: bool) -> Callable[[TreeShape], DraftSource]:
    if without_replacement:
        return lambda tree: drafts.SmallTransformer(oracles.TabularLM(DRAFT), tree=tree)
    return lambda tree: PlannedTrees(DRAFT, tree)


SHAPES = (Kary(2, 2), Paths([(0,), (1, 0, 0), (2,)]), Paths([(0, 0), (0, 1), (1,)]), Chain(3), Chain(0), Kary(3, 1))
WHOLE = Paths([(2,), (0, 0, 0), (0, 1), (1, 1), (1, 0, 0)])


@pytest.mark.parametrize("eos", [None, 2], ids=["length", "eos"])
@pytest.mark.parametrize("without", [False, True], ids=["with", "without"])
@pytest.mark.parametrize("rule", RULES_OF_TREES)
def test_steps_of_drawn_trees_are_those_of_enumeration(rule, without, eos, tmp_path):
    oracle, make = oracles.TabularLM(TARGET, eos_id=eos), tree_source(without)
    record_trees(oracle, make, [list(PROMPT)] * 40, WHOLE, NEW, SAMPLED, rule=rule, batch_size=7).save(
        tmp_path / "dense.parquet"
    )
    dense, differing = DenseRecords.load(tmp_path / "dense.parquet"), set()
    assert dense.by_rank.shape[1:] == (1, 3)
    for shape in SHAPES:

        def step(ids: Ids, left: int, _: int, shape=shape) -> dict[tuple[Ids, int], float]:
            within = frozenset(path for path in shape.paths if len(path) < left)
            return {(block, 0): mass for block, mass in tree_blocks(rule, target, drawn, ids, within, without).items()}

        made = replay(dense, shape=shape)
        assert_steps_are_those_of_the_law(dense, made, joint_law(step, PROMPT, NEW, eos=eos))
        planned = made.columns["num_planned"][: len(dense.outputs[0])].tolist()
        most = [sum(len(path) < left for path in shape.paths) for left in range(NEW, 0, -1)]
        assert planned == most[: len(planned)]
        differing.add(round(made.num_steps, 6))
    assert len(differing) > 3, "the shapes differ"


def product_of(threshold: float) -> Callable:
    return lambda said, law: math.prod(said) >= threshold


def certain(policy: Entropy) -> Callable:
    def lets_on(said: list[float], law: np.ndarray) -> bool:
        some = law[law > 0]
        return 1 - math.sqrt(policy.scale * -(some * np.log(some)).sum()) >= policy.threshold

    return lets_on


READING = {
    "product": (Threshold(threshold=0.3, max_draft_tokens=3), product_of(0.3)),
    "last": (
        Threshold(threshold=0.5, per_token=True, max_draft_tokens=3),
        lambda said, law: not said or said[-1] >= 0.5,
    ),
    "entropy": (Entropy(0.65, max_draft_tokens=3), certain(Entropy(0.65, max_draft_tokens=3))),
    "never": (Threshold(threshold=0.0, max_draft_tokens=2), lambda said, law: True),
}


@pytest.mark.parametrize("eos", [None, 2], ids=["length", "eos"])
@pytest.mark.parametrize("rule", ["standard", "sample_and_match"])
def test_steps_of_lengths_that_read_drafts_are_those_of_enumeration(rule, eos, tmp_path):
    oracle, model = oracles.TabularLM(TARGET, eos_id=eos), oracles.TabularLM(DRAFT)

    def make(length: LengthPolicy) -> DraftSource:
        return drafts.SmallTransformer(model, length=length)

    record_chains(oracle, make, [list(PROMPT)] * 40, 3, NEW, SAMPLED, rule=rule, entropies=True).save(
        tmp_path / "dense.parquet"
    )
    dense, differing = DenseRecords.load(tmp_path / "dense.parquet"), set()
    for policy, lets_on in READING.values():

        def step(ids: Ids, left: int, _: int, policy=policy, lets_on=lets_on) -> dict[tuple[Ids, int], float]:
            limit = min(policy.max_depth, left - 1)
            blocks = chain_blocks(rule, target, drawn, ids, limit, lets_on)
            return {(block, 0): mass for block, mass in blocks.items()}

        made = replay(dense, length=policy)
        assert_steps_are_those_of_the_law(dense, made, joint_law(step, PROMPT, NEW, eos=eos))
        assert "num_drafted" not in made.columns
        differing.add(round(made.num_steps, 6))
    assert len(differing) == len(READING), "the policies differ"


@pytest.mark.parametrize("eos", [None, 2], ids=["length", "eos"])
@pytest.mark.parametrize("rule", ["standard", "sample_and_match"])
def test_steps_of_a_length_that_adapts_are_those_of_enumeration(rule, eos):
    oracle, model = oracles.TabularLM(TARGET, eos_id=eos), oracles.TabularLM(DRAFT)
    new, source = 6, partial(drafts.SmallTransformer, model)
    dense = record_chains(oracle, lambda length: source(length=length), [list(PROMPT)] * 30, 3, new, SAMPLED, rule=rule)
    totals = set()
    for first in (1, 3):

        def step(ids: Ids, left: int, length: int) -> dict[tuple[Ids, int], float]:
            limit, found = min(length, left - 1), {}
            for block, mass in chain_blocks(rule, target, drawn, ids, limit).items():
                then = length if limit == 0 else min(length + 2, 3) if len(block) > limit else max(length - 1, 1)
                found[block, then] = mass
            return found

        made = replay(dense, length=Heuristic(first, max_draft_tokens=3))
        assert_steps_are_those_of_the_law(dense, made, joint_law(step, PROMPT, new, first, eos=eos))
        totals.add(made.num_steps)
        drafted = made.columns["num_drafted"][:new]
        assert drafted[0] == first
        assert drafted[-1] == 0 or eos is not None
        assert ((drafted >= 0) & (drafted <= 3)).all()
    assert len(totals) == 2


TREES = {
    "model": lambda tree: drafts.SmallTransformer(m.model, tree=tree),
    "n-grams": lambda tree: drafts.NGram(m.ngrams, tree=tree, sampled=True),
    "with replacement": lambda tree: PlannedTrees(random_table(6, 2, 40), tree),
}
MANY = 300
WARM = SamplingParams(temperature=0.9, top_p=0.95)


@pytest.mark.parametrize("rule", first_of(*RULES_OF_TREES))
@pytest.mark.parametrize("name", first_of(*TREES))
def test_the_mean_of_drawn_trees_over_outputs_is_that_of_real_runs(name, rule):
    """A true mean is flagged once in a million, that of another shape is flagged."""
    prompts, shape = [[3, 1, 4, 1, 5]] * MANY, Paths([(2,), (0, 0, 0), (0, 1), (1, 0)])
    dense = record_trees(m.other, TREES[name], prompts, shape, 24, WARM, seed=1, rule=rule)
    result = SpeculativeDecoder(m.other, TREES[name](shape), rule).generate(prompts, 24, WARM, seed=2)
    ran = np.array([one.num_steps for one in result.stats.requests])
    assert gap(of_requests(replay(dense, shape=shape)), ran) < ALARM
    assert gap(of_requests(replay(dense, shape=Paths([(0,), (1,)]))), ran) > ALARM


LENGTHS = {
    "threshold": Threshold(threshold=0.2, max_draft_tokens=4),
    "entropy": Entropy(0.5, max_draft_tokens=4),
    "heuristic": Heuristic(1, max_draft_tokens=4),
}
CHAINS = {
    "model": lambda length: drafts.SmallTransformer(m.model, length=length),
    "layers": lambda length: drafts.EarlyExit(m.layered, 2, length=length),
    "n-grams": lambda length: drafts.NGram(m.ngrams, length=length, sampled=True),
}


@pytest.mark.parametrize("name", first_of(*CHAINS))
def test_the_mean_of_lengths_over_outputs_is_that_of_real_runs(name):
    prompts, make, oracle = [[3, 1, 4, 1, 5]] * MANY, CHAINS[name], m.layered if name == "layers" else m.other
    dense = record_chains(oracle, make, prompts, 4, 24, WARM, seed=1, entropies=True)
    for policy in LENGTHS.values():
        made = replay(dense, length=policy)
        result = SpeculativeDecoder(oracle, make(policy)).generate(prompts, 24, WARM, seed=2)
        ran = result.stats.requests
        assert gap(of_requests(made), np.array([one.num_steps for one in ran])) < ALARM
        if "num_drafted" in made.columns:
            assert gap(of_requests(made, "num_drafted"), np.array([one.num_drafted for one in ran])) < ALARM
        assert gap(of_requests(replay(dense, length=Fixed(0))), np.array([one.num_steps for one in ran])) > ALARM


def test_estimates_of_many_siblings_have_the_exact_mean_and_say_their_error(monkeypatch):
    prompts, shape = [[3, 1, 4, 1, 5]] * 40, Kary(4, 1)
    exact = record_trees(m.layered, TREES["model"], prompts, shape, 16, SAMPLED, seed=1, rule="multi_draft")
    assert exact.by_rank.shape[1:] == (1, 4)
    monkeypatch.setattr(siblings, "_MOST_NUMBERS", 0)
    monkeypatch.setattr(siblings, "_HISTORIES", 2)
    drawn = record_trees(m.layered, TREES["model"], prompts, shape, 16, SAMPLED, seed=1, rule="multi_draft")
    assert drawn.outputs == exact.outputs
    assert drawn.by_rank.shape[1:] == (siblings.NUM_ESTIMATES, 4)
    np.testing.assert_array_equal(drawn.by_rank[:, 0, :2], exact.by_rank[:, 0, :2])
    errors = drawn.by_rank - exact.by_rank
    assert (errors[:, :, 2:] != 0).mean() > 0.2
    pull = errors.mean((0, 1)) / (errors.mean(1).std(0, ddof=1) / math.sqrt(len(errors)) + 1e-15)
    assert (np.abs(pull) < ALARM).all()
    made, known = replay(drawn, shape=shape), replay(exact, shape=shape)
    assert 0 < made.num_steps_error < 0.01 * made.num_steps
    assert abs(made.num_steps - known.num_steps) < 15 * made.num_steps_error, "of 8 estimates: t with 7 degrees"
    assert known.num_steps_error == 0


def test_greedy_requests_among_sampled_ones_follow_their_output():
    """A target at temperature 0 is certain; so are siblings that were chosen by rank."""
    sampling = [SamplingParams(), SamplingParams(temperature=1.0)]
    shape, prompts = Kary(2, 2), [[1, 2], [1, 2]]
    dense = record_trees(m.layered, TREES["model"], prompts, shape, 12, sampling, rule="multi_draft")
    alone = record_trees(m.layered, TREES["model"], prompts[:1], shape, 12, rule="multi_draft")
    made, steps = replay(dense, shape=shape).columns, replay(alone, shape=shape).columns
    certain = np.isin(made["num_committed"][:12], steps["num_committed"])
    assert dense.outputs[0] == alone.outputs[0]
    assert made["probability"][:12].tolist() == certain.tolist()
    assert made["num_accepted"][:12][certain].tolist() == steps["num_accepted"].tolist()


@dataclass(frozen=True)
class Alternating(LengthPolicy, LengthSession):
    """Adapts, and does not say how."""

    max_depth: int = 3
    adaptive: bool = True

    def open(self, num_rows: int) -> LengthSession:
        return self

    def limits(self, rows: np.ndarray, num_committed: np.ndarray) -> np.ndarray:
        return num_committed % 2


class Vain(Chains):
    """Is surer of its tokens than it should be."""

    def draft(self, context, budget, randomness) -> Draft:
        whole = super().draft(context, budget, randomness)
        made = torch.full(whole.tokens.shape, 0.9, dtype=torch.float64)
        return Draft(whole.tokens, whole.num_nodes, laws=whole.laws, confidence=made)


def test_lengths_that_the_output_does_not_tell_are_refused():
    dense = record_chains(m.layered, CHAINS["model"], [[1, 2]], 4, 8, SAMPLED, entropies=True)
    for policy in (
        Threshold(threshold=Tracked(), per_token=True, max_draft_tokens=4),
        Entropy(Tracked(), max_draft_tokens=4),
    ):
        with pytest.raises(ValueError, match=r"adapts to how many tokens were drafted, .* after a rejected token"):
            replay(dense, length=policy)
    with pytest.raises(ValueError, match=r"does not say how its next limit follows .* give it next_limits"):
        replay(dense, length=Alternating())
    with pytest.raises(ValueError, match=r"Grown\(.*\) is decided as it grows, .* most are not in the output"):
        replay(dense, shape=Grown(4, 2))
    with pytest.raises(ValueError, match=r"lack 2 of its nodes, \(0, 1\) for one"):
        replay(dense, shape=Paths([(0, 0), (0, 1), (1,)]))

    def make(length: LengthPolicy) -> DraftSource:
        length.open(1)
        return Vain(random_table(6, 2, 40), 4)

    vain = record_chains(m.layered, make, [[1, 2]], 4, 8, SAMPLED)
    with pytest.raises(ValueError, match="others than the probabilities that tokens were drawn with"):
        replay(vain, length=Threshold(threshold=0.4, max_draft_tokens=4))


def test_confidences_of_records_of_earlier_versions_are_not_taken_for_probabilities(tmp_path, monkeypatch):
    record_chains(m.layered, CHAINS["model"], [[1, 2]], 4, 8, SAMPLED).save(tmp_path / "new.parquet")
    short = Threshold(threshold=0.4, max_draft_tokens=4)
    assert replay(DenseRecords.load(tmp_path / "new.parquet"), length=short).num_steps > 0
    kept = read_note(tmp_path / "new.parquet")
    monkeypatch.setattr(dense_records, "read_note", lambda path: {n: v for n, v in kept.items() if n != "by_rank"})
    earlier = DenseRecords.load(tmp_path / "new.parquet")
    assert replay(earlier, length=Fixed(4)).num_steps > 0
    with pytest.raises(ValueError, match="others than the probabilities that tokens were drawn with"):
        replay(earlier, length=short)


@dataclass(frozen=True)
class Sinking(Heuristic):
    """Sinks by one a step, below 0, which runs take for 0."""

    def next_limits(self, limits: np.ndarray, drafted: np.ndarray, accepted: np.ndarray) -> np.ndarray:
        return limits - 1


def test_limits_out_of_range_are_refused():
    dense = record_chains(m.layered, CHAINS["model"], [[1, 2]], 4, 8, SAMPLED)
    with pytest.raises(
        ValueError, match=r"limits go from -1 to 3: let limits and next_limits stay within 0 and max_de"
    ):
        replay(dense, length=Sinking(1, max_draft_tokens=4))


class Sundry(PlannedTrees):
    """Draws second siblings from another law."""

    def draft(self, context, budget, randomness) -> Draft:
        whole = super().draft(context, budget, randomness)
        if not whole.width:
            return whole
        table = whole.laws.table.clone()
        table[1] = 1 / table.shape[1]
        return Draft(whole.tokens, whole.num_nodes, whole.parents, Laws(table, whole.laws.index, whole.laws.point))


class Mixed(PlannedTrees):
    """Declares that some siblings were drawn without replacement."""

    def draft(self, context, budget, randomness) -> Draft:
        whole = super().draft(context, budget, randomness)
        without = torch.arange(whole.width).expand(whole.tokens.shape) % 2 == 0
        return Draft(whole.tokens, whole.num_nodes, whole.parents, whole.laws, without)


class Pruned(PlannedTrees):
    """Leaves out the last node."""

    def draft(self, context, budget, randomness) -> Draft:
        whole = super().draft(context, budget, randomness)
        return Draft(whole.tokens, whole.num_nodes - 1, whole.parents, whole.laws)


class Wider(PlannedTrees):
    """Draws another shape than it is asked for."""

    def draft(self, context, budget, randomness) -> Draft:
        return PlannedTrees(self.table, Kary(3, 1)).draft(context, budget, randomness)


class Moody(PlannedTrees):
    """Draws from one table after an even number of ids, from another after an odd one."""

    def draft(self, context, budget, randomness) -> Draft:
        table = random_table(6, 2, 40 + int(context.num_committed[0]) % 2)
        return PlannedTrees(table, self.shape).draft(context, budget, randomness)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Sundry, "draws the siblings of one node from several laws"),
        (Mixed, "draws some of its siblings with replacement, and others without"),
        (Pruned, "ends drafts by itself"),
        (Wider, "drafts other trees than were asked for"),
        (Moody, r"gave token \d the probability .* at depth 2 of a draft"),
    ],
)
def test_trees_whose_laws_a_record_cannot_stand_for_are_refused(kind, reason):
    table = random_table(6, 2, 40)
    with pytest.raises(ValueError, match=rf"draws tokens, and {reason}.*: no dense record"):
        record_trees(m.layered, lambda tree: kind(table, tree), [[1, 2]] * 5, Kary(2, 2), 8, SAMPLED, batch_size=1)


def test_joined_trees_and_siblings_whose_choice_is_not_known_are_refused():
    def joined(tree: TreeShape) -> DraftSource:
        return drafts.Merged([drafts.SmallTransformer(m.model, tree=tree), drafts.NGram(m.ngrams, tree=tree)])

    with pytest.raises(ValueError, match="no dense record: the source joins the drafts of several members"):
        record_trees(m.layered, joined, [[1, 2]] * 4, Paths([(0, 0), (1, 0)]), 8, SAMPLED, rule="multi_draft")
    sampling, shape = [SamplingParams(), SAMPLED], Paths([(0, 0), (0, 1)])
    with pytest.raises(ValueError, match="chose 1 siblings after the pending token, of 2 elsewhere"):
        record_trees(m.layered, TREES["model"], [[1, 2]] * 2, shape, 8, sampling, rule="multi_draft")


@pytest.mark.parametrize(("count", "new"), [(3, 2), (2, 1), (2, 0), (0, 4)])
def test_outputs_shorter_than_trees_and_none_at_all(count, new):
    dense = record_trees(m.layered, TREES["model"], [[1, 2]] * count, Kary(2, 3), new, SAMPLED, rule="multi_draft")
    columns = replay(dense, shape=Kary(2, 3)).columns
    planned = columns["num_planned" if count == 3 else "num_drafted"]
    assert planned.tolist() == ([2, 0][2 - new :] * count if count else [])
    weights = columns.get("probability", np.ones(len(planned)))
    assert (weights * columns["num_emitted"]).sum() == pytest.approx(count * new)


def test_drawn_siblings_of_greedy_requests_are_refused():
    with pytest.raises(ValueError, match="siblings that are drawn are keyed by their tree"):
        record_trees(
            m.layered,
            lambda tree: drafts.SmallTransformer(m.model, tree=tree, temperature=1.0),
            [[1, 2]],
            Kary(2, 2),
            8,
        )
