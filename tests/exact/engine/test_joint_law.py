"""The joint law of two rows of a batch is the product of the oracle's; what decides across rows is seen in it."""

from dataclasses import dataclass

import numpy as np
import pytest

from drafts import NGram, PromptLookup, SmallTransformer
from oracles import TabularLM
from specdec import Calibration, CostBudget, SamplingParams, SharedBudget, SpeculativeDecoder, Threshold
from specdec.exactness import marginal_law, oracle_law, output_law, product_law, total_variation
from tests.reference.tables import random_table
from tests.support.drafting.budgets import (
    A,
    Crossed,
    FastestLength,
    LengthOfBatch,
    MostAccepted,
    OwnToken,
    TableOfTotals,
)
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.tiny_models import tiny_transformer

PLAIN = SamplingParams(temperature=1.0)
PROMPTS = ([1, 0], [0, 1, 1])
TARGET, DRAFT = random_table(2, 2, 41), random_table(2, 2, 42)
CALIBRATION = Calibration.independent(0.7, 0.05, 0.3)
P, Q = np.array([0.7, 0.3]), np.array([0.5, 0.5])


def distance(decoder, length, prompts=PROMPTS, sampling=PLAIN, **options):
    """Return how far the joint law of two rows is from the product, and the joint law."""
    made = output_law(decoder, prompts, length, sampling, rows=2, **options)
    wanted = product_law([oracle_law(decoder.oracle, prompt, length, sampling) for prompt in prompts])
    return total_variation(made, wanted), made


SOURCES = {
    "chains": (Chains(DRAFT, 2), "standard"),
    "chains, matched": (Chains(DRAFT, 2), "sample_and_match"),
    "trees": (RandomTrees(DRAFT, max_nodes=2), "multi_draft"),
    "plain": (None, "standard"),
}


@pytest.mark.parametrize("options", [{}, {"batch_size": 1}, {"mates": [[1, 1, 0]]}], ids=str)
@pytest.mark.parametrize(("source", "rule"), SOURCES.values(), ids=SOURCES)
def test_two_rows_have_nothing_to_do_with_each_other(source, rule, options):
    decoder = SpeculativeDecoder(TabularLM(TARGET, eos_id=1), source, rule)
    assert distance(decoder, 2, **options)[0] < 1e-12


def test_three_tokens_and_a_transformers_cache():
    assert distance(SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 1)), 3)[0] < 1e-12
    decoder = SpeculativeDecoder(tiny_transformer(2), SmallTransformer(tiny_transformer(2, seed=5), 1))
    assert distance(decoder, 2, prompts=([1, 0], [0, 0, 1]))[0] < 1e-12


def test_one_prompt_serves_all_rows_and_a_tuple_has_one_for_each():
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 1))
    joint = output_law(decoder, [1, 0], 2, PLAIN, rows=2)
    assert total_variation(joint, product_law([oracle_law(decoder.oracle, [1, 0], 2, PLAIN)] * 2)) < 1e-12
    assert total_variation(marginal_law(joint, 1), output_law(decoder, [1, 0], 2, PLAIN)) < 1e-12
    with pytest.raises(ValueError, match="3 prompts for rows=2"):
        output_law(decoder, ([0], [1], [1]), 2, PLAIN, rows=2)
    with pytest.raises(ValueError, match="rows must be an integer, 1 or more, not 0"):
        output_law(decoder, [0], 2, PLAIN, rows=0)


@dataclass(frozen=True)
class OneStream(Chains):
    """Draw for all rows from the stream of the first."""

    def drawn(self, laws, depth, randomness):
        return super().drawn(laws, depth, randomness.select(np.zeros(len(laws), dtype=np.int64)))


def test_rows_that_share_a_stream_show_in_the_joint_law_alone():
    decoder = SpeculativeDecoder(TabularLM(TARGET), OneStream(DRAFT, 1))
    far, joint = distance(decoder, 2)
    assert far > 0.01
    for row, prompt in enumerate(PROMPTS):
        assert total_variation(marginal_law(joint, row), oracle_law(decoder.oracle, prompt, 2, PLAIN)) < 1e-12


def first_ids(budget, num_draft_tokens):
    """Return the joint law of the first ids of two rows ``[2, 2]`` whose laws are p and q at every position."""
    decoder = SpeculativeDecoder(TabularLM(P), Chains(Q, num_draft_tokens), budget=budget)
    law = np.zeros((2, 2))
    # Any id ends its row, so that there is one step; it drafts as many tokens as if the rows went on.
    joint = output_law(decoder, [A], num_draft_tokens + 1, PLAIN, stop=[[0], [1]], rows=2)
    for ids, mass in joint.items():
        law[ids[0][0], ids[1][0]] += mass
    return law


@pytest.mark.parametrize(("max_nodes", "num_draft_tokens"), [(0, 1), (1, 1), (2, 1), (1, 2), (2, 2), (3, 2), (4, 2)])
def test_a_shared_budget_leaves_the_first_ids_as_they_are(max_nodes, num_draft_tokens):
    assert abs(first_ids(SharedBudget(max_nodes), num_draft_tokens) - np.outer(P, P)).max() < 1e-12


def test_lengths_that_maximise_throughput_after_looking_bias_each_row():
    law = first_ids(FastestLength(), 2)
    assert law.sum(1) == pytest.approx([0.85, 0.15], abs=1e-12)
    assert law == pytest.approx(np.outer([0.85, 0.15], [0.85, 0.15]), abs=1e-12)


def test_a_score_that_reads_its_own_token_biases_both_rows():
    law = first_ids(OwnToken(), 1)
    assert law.sum(1) == pytest.approx([0.775, 0.225], abs=1e-12)
    assert law.sum(0) == pytest.approx([0.775, 0.225], abs=1e-12)
    assert law[A, A] == pytest.approx(0.595, abs=1e-12)


def test_rows_that_decide_about_each_other_have_right_marginals_and_a_wrong_joint_law():
    law = first_ids(Crossed(), 1)
    assert law.sum(1) == pytest.approx(P, abs=1e-12)
    assert law.sum(0) == pytest.approx(P, abs=1e-12)
    assert law[A, A] == pytest.approx(0.5125, abs=1e-12)


@dataclass(frozen=True)
class Forgetting(Chains):
    """Chains of a run at whose beginning a budget forgets the one before."""

    budget: MostAccepted | None = None

    def open(self, oracle, num_rows, capacity):
        if self.budget is not None:
            self.budget.forget()
        return super().open(oracle, num_rows, capacity)


COSTS = (1.0, 1.15, 1.2, 1.6, 2.0)
STAIR = (1.0, 2.3, 2.3, 2.3, 2.3)  # all or nothing: by the first row's first token, if this step's confidences decide
EXACT = {
    "lengths by the batch": lambda: LengthOfBatch([(1, 1, 2), (2, 8, 1)]),
    "totals by the batch": lambda: TableOfTotals(1, reads_token=False),
    "totals by earlier confidences": lambda: MostAccepted(COSTS),
    "totals by earlier confidences, all or nothing": lambda: MostAccepted(STAIR),
    "measured costs": lambda: CostBudget(CALIBRATION, 2),
}
# How far the joint law of the first ids of two rows is from the product.
BIASED = {
    "totals by the batch, own token read": (lambda: TableOfTotals(1, reads_token=True), 0.1008),
    "totals by earlier confidences, own token read": (lambda: MostAccepted(COSTS, reads_token=True), 0.1008),
    "totals by these confidences": (lambda: MostAccepted(STAIR, is_late=False), 0.1301),
}


def chains_under(budget):
    """Return a decoder with chains of two under a budget, which forgets at the beginning of each run."""
    source = Forgetting(DRAFT, 2, budget=budget if isinstance(budget, MostAccepted) else None)
    return SpeculativeDecoder(TabularLM(TARGET), source, budget=budget)


def distance_of_first_ids(budget):
    """Return how far the joint law of the first ids of two rows is from the product: there is one step."""
    law = output_law(chains_under(budget), PROMPTS, 3, PLAIN, stop=[[0], [1]], rows=2)
    wanted = product_law([oracle_law(TabularLM(TARGET), prompt, 1, PLAIN) for prompt in PROMPTS])
    return total_variation(law, wanted)


@pytest.mark.parametrize("name", EXACT)
def test_schedulers_of_servers_that_are_exact(name):
    assert distance_of_first_ids(EXACT[name]()) < 1e-12


@pytest.mark.long
@pytest.mark.parametrize("name", EXACT)
def test_schedulers_of_servers_that_are_exact_over_several_steps(name):
    assert distance(chains_under(EXACT[name]()), 3)[0] < 1e-12


@pytest.mark.parametrize("name", BIASED)
def test_schedulers_of_servers_that_are_biased(name):
    make, far = BIASED[name]
    assert distance_of_first_ids(make()) == pytest.approx(far, abs=1e-4)


BUDGETED = {
    "drawn": (lambda: Chains(DRAFT, 2), "standard"),
    "drawn, block": (lambda: Chains(DRAFT, 2), "block"),
    "drawn, matched": (lambda: Chains(DRAFT, 2), "sample_and_match"),
    "drawn by a model that stops": (
        lambda: SmallTransformer(TabularLM(DRAFT), length=Threshold(threshold=0.5, per_token=True, max_draft_tokens=2)),
        "multi_draft",
    ),
    "greedy by a model": (lambda: SmallTransformer(TabularLM(DRAFT), 2, temperature=0), "standard"),
    "lookup": (lambda: PromptLookup(2, max_ngram=2), "standard"),
}


# Two rows have thousands of branches: a few here, the others in ``make exactness``.
FAST = ("drawn", "drawn, block", "greedy by a model", "lookup")


@pytest.mark.parametrize(
    ("source", "max_nodes", "kernels"),
    [
        pytest.param(
            *(source, max_nodes, kernels),
            marks=() if (max_nodes, kernels) == (2, None) and source in FAST else pytest.mark.long,
        )
        for source in BUDGETED
        for max_nodes, kernels in ((2, None), (1, None), (2, "reference"))
    ],
)
def test_the_joint_law_under_a_shared_budget_is_the_product(source, max_nodes, kernels):
    make, rule = BUDGETED[source]
    oracle, budget = TabularLM(TARGET, eos_id=1), SharedBudget(max_nodes)
    assert distance(SpeculativeDecoder(oracle, make(), rule, budget=budget, kernels=kernels), 3)[0] < 1e-12


def test_three_ids_under_a_shared_budget():
    oracle, draft = TabularLM(random_table(3, 2, 43)), Chains(random_table(3, 2, 44), 1)
    assert distance(SpeculativeDecoder(oracle, draft, budget=SharedBudget(1)), 2)[0] < 1e-12


@pytest.mark.parametrize("rule", ["standard", "coupled"])
@pytest.mark.parametrize("max_nodes", [0, 1, 4, 9])
def test_greedy_and_coupled_tokens_are_those_without_a_budget(rule, max_nodes):
    oracle, table = TabularLM(random_table(3, 2, 45), eos_id=0), random_table(3, 2, 46)
    sampling = SamplingParams() if rule == "standard" else SamplingParams(temperature=0.9, frequency_penalty=0.3)
    prompts = [[1, 2], [0], [1, 2, 0, 1], [2, 2, 1], [2], [1, 1], [0, 2], [2, 0, 1]]
    wanted = SpeculativeDecoder(oracle, None, rule).generate(prompts, 30, sampling).tokens
    ngram = NGram.train([[0, 1, 2, 1, 0, 2]], 3, order=2, progress=False, num_draft_tokens=4)
    for source in (SmallTransformer(TabularLM(table), 4), PromptLookup(4, max_ngram=2), ngram):
        for batch_size in (3, 8):
            decoder = SpeculativeDecoder(oracle, source, rule, budget=SharedBudget(max_nodes))
            result = decoder.generate(prompts, 30, sampling, batch_size=batch_size)
            assert result.tokens == wanted
            assert result.reproducible
