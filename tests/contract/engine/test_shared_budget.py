"""What a budget across rows takes, what it may read, what it refuses, and what a result says of it."""

import itertools
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from drafts import BlockDrafter, Cascade, Eagle3, EarlyExit, Forced, Lookahead, PromptLookup, SmallTransformer
from oracles import TabularLM
from specdec import Calibration, CostBudget, Draft, Kary, Laws, Needs, SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.engine.shared_budget import cut
from specdec.theory import WidthCurve
from tests.reference.tables import random_table
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.eagle3_heads import tiny_eagle3
from tests.support.models.head_folders import tiny_block
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pages import run_recipe
from tests.support.texts.grammars import LISTS, WORDS

TARGET, DRAFT = random_table(3, 2, 51), random_table(3, 2, 52)
PLAIN = SamplingParams(temperature=1.0)
PROMPTS = [[1, 2], [0], [1, 2, 0, 1], [2, 2, 1]]


def chains(beliefs, counts=None):
    """Return deterministic chains with these confidences."""
    confidence = torch.tensor(beliefs, dtype=torch.float64)
    batch, width = confidence.shape
    counts = torch.full((batch,), width) if counts is None else torch.tensor(counts)
    return Draft(torch.zeros(batch, width, dtype=torch.int64), counts, confidence=confidence)


def test_nodes_are_taken_best_first_by_the_product_along_their_path():
    draft = chains([[0.9, 0.9, 0.9], [0.5, 0.9, 0.9], [0.95, 0.1, 1.0]])
    taken = [SharedBudget(n).take(draft).sum(1).tolist() for n in range(8)]
    # Scores: .9 .81 .729, .5 .45 .405, .95 .095 .095
    assert taken == [[0, 0, 0], [0, 0, 1], [1, 0, 1], [2, 0, 1], [3, 0, 1], [3, 1, 1], [3, 2, 1], [3, 3, 1]]


def test_of_equal_scores_the_lower_row_goes_first_then_the_smaller_depth():
    draft = chains([[1.0, 1.0], [1.0, 1.0]])
    assert [SharedBudget(n).take(draft).sum(1).tolist() for n in (1, 2, 3)] == [[1, 0], [2, 0], [2, 1]]
    without = replace(draft, confidence=None)
    assert [SharedBudget(n).take(without).sum(1).tolist() for n in (1, 2, 3)] == [[1, 0], [1, 1], [2, 1]]


def test_padding_is_never_taken():
    draft = chains([[0.1, 0.1], [0.9, 0.9], [0.9, 0.9]], counts=[2, 0, 1])
    assert SharedBudget(9).take(draft).tolist() == [[True, True], [False, False], [True, False]]


def drawn_chains(generator, batch=3, width=3, size=3, confident=False):
    """Return chains with random laws and tokens, some of them point masses; laws do not depend on the tokens."""
    probs = generator.dirichlet(np.full(size, 0.5), size=(batch, width))
    points = generator.random((batch, width)) < 0.2
    tokens = generator.integers(size, size=(batch, width))
    probs[points] = np.eye(size)[tokens[points]]
    laws = Laws.from_probs(torch.from_numpy(probs)).with_points(torch.zeros(batch, width, dtype=torch.bool))
    laws = Laws(laws.table, laws.index.masked_fill(torch.from_numpy(points), -1), torch.from_numpy(tokens))
    draft = Draft(torch.from_numpy(tokens), torch.from_numpy(generator.integers(width + 1, size=batch)), laws=laws)
    return replace(draft, confidence=laws.probs_of(draft.tokens)) if confident else draft


@pytest.mark.parametrize("confident", [False, True])
@pytest.mark.parametrize("first", range(0, 40, 10))
def test_whether_a_position_is_taken_reads_no_drawn_token_that_is_not_taken_before_it(first, confident):
    for seed, n in itertools.product(range(first, first + 10), range(9)):
        generator = np.random.default_rng((seed, n))
        draft = drawn_chains(generator, confident=confident)
        before, taken = SharedBudget(n).take(draft), SharedBudget(n + 1).take(draft)
        assert (before <= taken).all()
        hidden = ~before & (draft.node_laws.index.numpy() >= 0)
        other = generator.integers(3, size=hidden.shape)
        tokens = torch.from_numpy(np.where(hidden, other, draft.tokens.numpy()))
        changed = replace(draft, tokens=tokens)
        if confident:
            changed = replace(changed, confidence=draft.node_laws.probs_of(tokens))
        assert (SharedBudget(n + 1).take(changed) == taken).all()


def test_a_tree_is_cut_to_the_nodes_that_were_taken():
    tokens = torch.tensor([[5, 6, 7, 8], [1, 2, 0, 0]])
    parents = torch.tensor([[-1, -1, 1, 0], [-1, 0, -1, -1]])
    draft = Draft(tokens, torch.tensor([4, 2]), parents, source_names=("one",), undefined=torch.full((2, 1), 1 << 32))
    made = cut(draft, np.array([[False, True, True, False], [True, False, False, False]]))
    assert made.tokens.tolist() == [[6, 7], [1, 0]]
    assert made.parents is not None
    assert made.parents.tolist() == [[-1, 0], [-1, -1]]
    assert made.num_nodes.tolist() == [2, 1]
    assert made.source_names == ("one",)
    assert made.undefined is not None
    assert cut(draft, np.array([[True] * 4, [True, True, False, False]])) is draft


def test_a_chain_is_cut_to_a_chain_whatever_its_form():
    draft = Draft(torch.tensor([[5, 6], [1, 2]]), torch.tensor([2, 2]), torch.tensor([[-1, 0], [-1, 0]]))
    made = cut(draft, np.array([[True, True], [True, False]]))
    assert made.is_chain
    assert (made.tokens.tolist(), made.num_nodes.tolist()) == ([[5, 6], [1, 0]], [2, 1])


@pytest.mark.parametrize("rule", ["multi_draft", "sample_and_match", "coupled"])
def test_deterministic_trees_are_cut_and_greedy_and_coupled_tokens_stay(rule):
    oracle = TabularLM(TARGET, eos_id=0)
    source = SmallTransformer(TabularLM(DRAFT), tree=Kary(2, 2))
    sampling = PLAIN if rule == "coupled" else SamplingParams()
    wanted = SpeculativeDecoder(oracle, None, rule).generate(PROMPTS, 20, sampling).tokens
    for max_nodes in (1, 5, 30):
        decoder = SpeculativeDecoder(oracle, source, rule, budget=SharedBudget(max_nodes))
        assert decoder.generate(PROMPTS, 20, sampling).tokens == wanted


FORCED = {
    "alone": lambda: Forced(3, max_ids=3),
    "in a cascade": lambda: Cascade([Forced(3, max_ids=3), PromptLookup(2)]),
}


@pytest.mark.parametrize("case", [WORDS, LISTS], ids=["words", "lists"])
@pytest.mark.parametrize("make", FORCED.values(), ids=FORCED)
def test_a_source_that_reads_scores_is_told_of_none_that_were_dropped(make, case):
    """Ids whose nodes were dropped come all the same where the source guessed right: nothing was scored after them."""
    for sampling in (case.sampling(), case.sampling(temperature=0.0)):
        wanted = SpeculativeDecoder(case.oracle(), None, "coupled").generate([[0, 1], [1], [0]], 12, sampling).tokens
        for max_nodes in (0, 1, 2, 9):
            decoder = SpeculativeDecoder(case.oracle(), make(), "coupled", budget=SharedBudget(max_nodes))
            assert decoder.generate([[0, 1], [1], [0]], 12, sampling).tokens == wanted


@pytest.mark.parametrize("max_nodes", [0, 1, 4])
def test_heads_in_a_cascade_read_what_stands_whatever_was_dropped(max_nodes):
    oracle = tiny_transformer(num_layers=3)
    wanted = SpeculativeDecoder(oracle, None, "coupled").generate(PROMPTS, 20, PLAIN).tokens
    for head in (Eagle3(tiny_eagle3(oracle), 3), BlockDrafter(tiny_block(oracle, "dspark"), 3)):
        source = Cascade([PromptLookup(3, min_ngram=2), head])
        result = SpeculativeDecoder(oracle, source, "coupled", budget=SharedBudget(max_nodes)).generate(
            PROMPTS, 20, PLAIN
        )
        assert result.tokens == wanted
        assert result.stats.num_drafted or not max_nodes


@pytest.mark.parametrize("max_nodes", [0, 1, 5])
def test_no_step_verifies_more_nodes_than_the_budget_has(max_nodes):
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 4), budget=SharedBudget(max_nodes))
    state = decoder.start(PROMPTS, 20, PLAIN)
    drafted = []
    while state.has_work:
        state, info = decoder.step(state)
        drafted.append(int(info.num_drafted.sum()))
    assert max(drafted) == max_nodes


def test_a_row_whose_draft_was_cut_counts_as_shortened():
    """The budget takes the first row's two tokens and one of the others': these are no full drafts."""

    @dataclass(frozen=True)
    class OfTheFirst:
        lossless: ClassVar[bool] = True

        def take(self, draft):
            nodes = np.arange(draft.width)
            return (nodes < draft.num_nodes.numpy()[:, None]) & ((nodes == 0) | (np.arange(len(PROMPTS)) == 0)[:, None])

    oracle, source = TabularLM(TARGET), Chains(DRAFT, 2)
    plain, shared = (SpeculativeDecoder(oracle, source, budget=budget) for budget in (None, OfTheFirst()))
    infos = []
    for decoder in (plain, shared):
        state = decoder.start(PROMPTS, 20, PLAIN)
        _, info = decoder.step(state)
        infos.append(info)
    assert [info.num_drafted.tolist() for info in infos] == [[2, 2, 2, 2], [2, 1, 1, 1]]
    assert [info.shortened.tolist() for info in infos] == [[False] * 4, [False, True, True, True]]
    result = SpeculativeDecoder(oracle, source, budget=SharedBudget(4)).generate(PROMPTS, 20, PLAIN)
    columns = result.records.columns()
    full = [n for n, short in zip(columns["num_drafted"], columns["shortened"], strict=True) if not short]
    assert set(full) == {2}
    assert result.stats.block_efficiency_full is not None


def test_a_draft_that_no_budget_cuts_is_not_shortened():
    result = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), budget=SharedBudget(99)).generate(PROMPTS, 20)
    alone = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2)).generate(PROMPTS, 20)
    assert result.records.columns()["shortened"] == alone.records.columns()["shortened"]


def test_fewer_tokens_a_row_pay_the_larger_the_batch():
    dear = Calibration.independent(0.8, 0.02, 0.2)
    lengths = [dear.best_length(rows, 8) for rows in (1, 2, 4, 8, 32)]
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[0] > lengths[-1]
    free = Calibration.independent(0.8, 0.02)
    assert [free.best_length(rows, 8) for rows in (1, 64)] == [8, 8]
    assert Calibration.independent(0.0, 0.02, 0.2).best_length(4, 8) == 0
    assert dear.best_length(1, 0) == 0


def test_the_cost_of_a_pass_is_that_of_its_nodes_whatever_rows_they_are_of():
    """Of four rows a pass of 8 nodes costs what it costs of the two rows that the curve was measured with."""
    curve = WidthCurve((1, 2, 4, 5), (1.0, 1.0, 1.0, 9.0), batch_size=2)
    calibration = replace(Calibration.independent(0.9, 0.0), width_cost=curve)
    assert [calibration.best_length(rows, 6) for rows in (1, 2, 4, 8)] == [6, 3, 1, 0]


def test_a_budget_by_cost_takes_the_best_of_a_number_that_no_draft_decides():
    calibration = Calibration.independent(0.8, 0.02, 0.2)
    generator = np.random.default_rng(3)
    for batch in (1, 3, 6):
        for _ in range(5):
            draft = drawn_chains(generator, batch=batch, width=4)
            number = batch * calibration.best_length(batch, 4)
            assert (CostBudget(calibration, 4).take(draft) == SharedBudget(number).take(draft)).all()
    with pytest.raises(ValueError, match="num_draft_tokens"):
        CostBudget(calibration, -1)
    with pytest.raises(ValueError, match=r"calibration=3 is no Calibration: give what specdec\.calibrate returns"):
        CostBudget(3, 1)
    with pytest.raises(ValueError, match="belief"):
        CostBudget(calibration, 1, belief=2)


def test_a_result_says_whether_its_tokens_depend_on_the_batch():
    oracle, source = TabularLM(TARGET), Chains(DRAFT, 3)
    shared = SpeculativeDecoder(oracle, source, budget=SharedBudget(3))
    assert not shared.offers.reproducible
    assert not shared.generate(PROMPTS, 12, PLAIN).reproducible
    assert shared.generate(PROMPTS, 12).reproducible
    assert shared.generate(PROMPTS, 12, PLAIN).exactness == "exact"
    assert SpeculativeDecoder(oracle, source).generate(PROMPTS, 12, PLAIN).reproducible
    alone = [shared.generate([p], 12, PLAIN, seed=[(0, i)]).tokens[0] for i, p in enumerate(PROMPTS)]
    assert alone != shared.generate(PROMPTS, 12, PLAIN).tokens


@dataclass(frozen=True)
class Fixed:
    """Take what it is told to; its law is not known."""

    taken: object
    lossless: ClassVar[bool] = False

    def take(self, draft):
        return np.broadcast_to(np.array(self.taken), tuple(draft.tokens.shape))


def test_a_budget_that_does_not_call_itself_lossless_is_named_in_the_claim():
    result = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), budget=Fixed(False)).generate(PROMPTS, 3, PLAIN)
    assert result.exactness == "lossy: Fixed"


@pytest.mark.parametrize(
    ("taken", "said"),
    [([[False, True], [False] * 2], "without the node above it"), ([1, 0], "not bool"), ([True, True], "took padding")],
)
def test_what_is_no_part_of_the_trees_is_refused(taken, said):
    prompts = [[0, 1, 0, 1], [0, 1, 2]]  # lookup finds nothing for the second
    decoder = SpeculativeDecoder(TabularLM(TARGET), PromptLookup(2, max_ngram=2), budget=Fixed(taken))
    with pytest.raises(ValueError, match=said):
        decoder.generate(prompts, 4, PLAIN)


def test_the_code_of_its_page_runs_and_its_claims_hold():
    run_recipe("shared-budget.md", 3)


@dataclass(frozen=True)
class ReadsLogits(RandomTrees):
    needs: Needs = field(default_factory=lambda: Needs(logits=True))


@pytest.mark.parametrize("budget", [8, SharedBudget], ids=str)
def test_what_is_no_budget_is_refused(budget):
    with pytest.raises(ValueError, match=r"give specdec\.SharedBudget"):
        SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), budget=budget)


@pytest.mark.parametrize("belief", ["high", True, 1.5, float("nan")])
def test_a_belief_that_is_no_probability_is_refused(belief):
    with pytest.raises(ValueError, match=rf"belief must be a number in \[0, 1\], not {belief!r}"):
        SharedBudget(2, belief=belief)
    assert SharedBudget(2, belief=np.float32(0.5)).belief == 0.5


def test_an_answer_that_is_no_array_is_refused():
    budget = SharedBudget(2)
    object.__setattr__(budget, "take", lambda draft: [True])
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), budget=budget)
    with pytest.raises(ValueError, match="take returned a list; give an array of numpy, bool"):
        decoder.generate([[0]], 4)


def test_what_is_no_source_is_refused_with_a_budget_too():
    with pytest.raises(ValueError, match="not a draft source"):
        SpeculativeDecoder(TabularLM(TARGET), "lookup", budget=SharedBudget(1))


@pytest.mark.parametrize("options", [{"max_nodes": -1}, {"max_nodes": True}, {"max_nodes": 2.0}], ids=str)
def test_a_number_of_nodes_is_an_integer_from_0_on(options):
    with pytest.raises(ValueError, match="max_nodes"):
        SharedBudget(**options)
    with pytest.raises(ValueError, match="belief"):
        SharedBudget(1, belief=1.5)


def test_sources_whose_drafts_cannot_be_cut_are_refused_with_the_reason():
    oracle = tiny_transformer()
    with pytest.raises(ValueError, match="drafts none: give a source"):
        SpeculativeDecoder(oracle, budget=SharedBudget(2))
    with pytest.raises(ValueError, match="cache of its own"):
        SpeculativeDecoder(oracle, EarlyExit(oracle, 1), budget=SharedBudget(2))
    for source in (ReadsLogits(DRAFT), Lookahead()):
        with pytest.raises(ValueError, match="use chains"):
            SpeculativeDecoder(TabularLM(TARGET), source, "sample_and_match", budget=SharedBudget(2))
    drawn = SmallTransformer(TabularLM(DRAFT), tree=Kary(2, 1))
    decoder = SpeculativeDecoder(TabularLM(TARGET), drawn, "multi_draft", budget=SharedBudget(2))
    with pytest.raises(ValueError, match="its tokens are drawn"):
        decoder.generate(PROMPTS, 4, PLAIN)
    decoder = SpeculativeDecoder(TabularLM(TARGET), RandomTrees(DRAFT), "sample_and_match", budget=SharedBudget(2))
    with pytest.raises(ValueError, match=r"scouts|drawn"):
        decoder.generate(PROMPTS, 4, PLAIN)
