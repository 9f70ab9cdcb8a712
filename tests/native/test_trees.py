"""Trees drafted in one native call are those drafted level by level: tokens, parents, laws, records and reports."""

import numpy as np
import pytest
import torch

from drafts import SmallTransformer
from oracles.native import NativeTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Budget, ChainKeys, Context, Draws, TreePlan
from specdec.drafting.levels import top_ids
from specdec.drafting.shapes import Kary, Paths
from specdec.kernels import FILTERS
from specdec.sampling import BatchWarping, ParameterTable
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from tests.support.backends import laws_by, needed_native
from tests.support.drafting.draft_rows import Rows, recorded
from tests.support.drafting.native_drafts import (
    BUDGETS,
    BUSHY,
    DRAFT,
    ENDING,
    HEATS,
    MANY,
    MIXED,
    NARROW,
    ORACLE,
    PROMPTS,
    VOCAB,
    WARM,
    Counted,
    PassByPass,
    adjusted_requests,
    both_ways,
    flat,
    model,
    run_of_trees,
    tree_bits,
)
from tests.support.drafting.whole_drafts import as_tensors
from tests.support.models.tiny_models import tiny_unpacked
from tests.support.pairwise import pairwise
from tests.support.registry import LARGE_SHAPES

needed_native()

STATIC = {name: shape for name, shape in LARGE_SHAPES.items() if shape.paths is not None} | {"bushy": BUSHY}
HEATED = SamplingParams(temperature=0.0, top_k=2)
SAMPLINGS = {"greedy": SamplingParams(), "filtered": HEATED, "warm": WARM, "narrow": NARROW}
IN_BUDGETS = SAMPLINGS | {f"adjusted, {heat}": adjusted_requests(heat, "by row")[3:8] for heat in HEATS}


def grown(shape, sampling, batch_size, rule, **options):
    """Return how many passes a source takes that asks for every level, and one that asks for whole trees."""
    return both_ways(
        run_of_trees, DRAFT, lambda one, _: SmallTransformer(one, tree=shape, **options), sampling, batch_size, rule
    )[1:]


@pairwise(
    {"shape": STATIC, "sampling": {**SAMPLINGS, "many": MANY}, "batch_size": (1, 3), "rule": ("multi_draft", "coupled")}
)
def test_both_ways_draft_alike(shape, sampling, batch_size, rule):
    by_level, whole = grown(shape, sampling, batch_size, rule)
    assert whole < by_level / 2


@pytest.mark.parametrize("batch_size", [1, 3])
@pytest.mark.parametrize(
    ("sampling", "options", "grows_whole"),
    [
        (WARM, {"temperature": 0.0}, True),
        (MIXED, {"temperature": 1.2}, True),
        (MIXED, {}, None),  # a batch does where its rows are all greedy, or all sampled
    ],
    ids=["greedy drafts", "own heat", "mixed"],
)
def test_both_ways_draft_alike_whoever_has_a_say(sampling, options, grows_whole, batch_size):
    by_level, whole = grown(BUSHY, sampling, batch_size, "multi_draft", **options)
    assert grows_whole is None or whole < by_level / 2


def test_laws_of_torch_are_drafted_from_level_by_level():
    with laws_by("torch"):
        by_level, whole = grown(Kary(2, 2), WARM, 3, "multi_draft")
    assert by_level == whole


@pairwise({"shape": STATIC, "sampling": IN_BUDGETS, "budget": BUDGETS, "coupled": {"keyed": False, "coupled": True}})
def test_each_rows_tree_ends_at_its_own_budget_both_ways(shape, sampling, budget, coupled):
    depth, nodes = map(np.array, budget)
    found, passes, draft = [], [], model(2)
    for one in (PassByPass(draft), Counted(draft)):
        rows = Rows(SmallTransformer(one, tree=shape), 5, oracle=ENDING, sampling=sampling)
        rows.seat({row: PROMPTS[row] for row in range(5)})
        one.num_passes = 0
        # The second step finds what the first has left in the cache.
        for _ in range(2):
            at = np.arange(5)
            context = rows.context(at)
            ends = context.num_committed
            streams = Coupled(seed_keys([7] * 5), ends) if coupled else Keyed.at(seed_keys([7] * 5), ends)
            found.append(tree_bits(rows.session.propose(at, context, Budget(depth, nodes), streams)))
            rows.settle({row: [1, 2 + row, 3] for row in range(5)})
        passes.append(one.num_passes)
    assert found[:2] == found[2:]
    assert passes[1] == 0 < passes[0]


def test_randomness_that_keeps_every_call_draws_each_level_itself():
    keys, at, row = seed_keys([1]), np.array([4]), np.array([0])
    counted = Counted(DRAFT)
    rows = Rows(SmallTransformer(counted, tree=Kary(2, 2)), 1, oracle=ORACLE, sampling=WARM)
    rows.seat({0: PROMPTS[3]})
    counted.num_passes = 0
    streams = recorded(Keyed.at(keys, at), 1)
    rows.session.propose(row, rows.context(row), Budget(row + 9, row + 9), streams)
    assert counted.num_passes == 2


@pairwise({"context": (20, 32), "sampling": {"greedy": SamplingParams(), "sampled": WARM}, "batch_size": (1, 5)})
def test_the_draft_models_own_context_ends_trees_both_ways(context, sampling, batch_size):
    short = model(2, max_context=context)
    found = [
        run_of_trees(SmallTransformer(wrap(short), tree=BUSHY), sampling, batch_size, "multi_draft")
        for wrap in (PassByPass, Counted)
    ]
    assert found[0] == found[1]
    assert np.min(found[0][-1]["num_drafted"]) == 0


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=3.0), SamplingParams()], ids=["sampled", "greedy"])
def test_where_a_model_loses_its_meaning_is_told_both_ways(sampling):
    plain = tiny_unpacked(VOCAB, torch.float32, 2)
    with torch.no_grad():
        plain.model.embed_tokens.weight[7, 0] = float("nan")
    shaky, messages = NativeTransformer(plain), []
    for wrap in (PassByPass, Counted):
        with pytest.raises(FloatingPointError, match=r"position [2-9]") as caught:
            SpeculativeDecoder(ORACLE, SmallTransformer(wrap(shaky), tree=Kary(3, 3)), "multi_draft").generate(
                [[1, 2], [3]], 60, sampling, seed=1
            )
        messages.append(str(caught.value))
    assert messages[0] == messages[1]


@pytest.mark.parametrize("size", [3, 16, 37])
@pytest.mark.parametrize("special", [1.0, 3.0, -torch.inf, torch.inf, torch.nan])
@pytest.mark.parametrize("sampling", [SamplingParams(), SamplingParams(temperature=1.0)], ids=["greedy", "sampled"])
def test_equal_and_undefined_logits_make_the_same_trees_both_ways(sampling, special, size):
    found, at, native = [], np.arange(2), flat(size, special)
    ids, ends = np.array([[1, 2], [2, 1]]), np.array([2, 2])
    context = Context(ids, ends, BatchWarping(ParameterTable.of([sampling] * 2), ids, ends, ends, ()))
    for wrap in (PassByPass, Counted):
        session = SmallTransformer(wrap(native), tree=Paths([(0, 0), (1, 0), (1, 1), (2,), (3,)])).open(native, 2, 32)
        session.begin(at, list(ids), None)
        found.append(tree_bits(session.propose(at, context, Budget(at + 9, at + 9), Keyed.at(seed_keys([1, 2]), ends))))
    assert found[0] == found[1]


def test_the_lowest_of_equal_ids_comes_first_whatever_the_number_of_children():
    at, native = np.arange(1), flat(37, 1.0)
    ids, ends = np.array([[1, 2]]), np.array([2])
    context = Context(ids, ends, BatchWarping(ParameterTable.of([SamplingParams()]), ids, ends, ends, ()))
    session = SmallTransformer(native, tree=Kary(6, 1)).open(native, 1, 32)
    session.begin(at, list(ids), None)
    draft = session.propose(at, context, Budget(at + 9, at + 9), Keyed.at(seed_keys([1]), ends))
    assert draft.tokens.tolist() == [[0, 2, 5, 8, 11, 14]]


def test_trees_are_not_drawn_by_the_numbers_of_other_rows():
    one, plan = np.ones(1, dtype=np.int64), TreePlan(np.array([-1, -1]))
    call = torch.zeros(1, 1, dtype=torch.int64), torch.tensor([1]), DRAFT.new_cache(1, 8), np.array([0]), plan, one * 2
    for draws in (
        Draws(np.ones((len(FILTERS), 2)), None),
        Draws(np.ones((len(FILTERS), 1)), ChainKeys(True, np.ones(2, dtype=np.int64), one)),
        Draws(np.ones((len(FILTERS), 1)), ChainKeys(True, one, np.ones(2, dtype=np.int64))),
    ):
        with pytest.raises(ValueError, match="trees of 1 rows"):
            as_tensors(DRAFT.trees, *call, draws)


def test_a_tree_needs_room_and_positions_for_the_nodes_that_it_scores():
    plan, one = TreePlan(np.array([-1, -1, 0, 1, 2])), np.ones(1, dtype=np.int64)
    draws = Draws(np.array([[1.0], [0.0], [1.0], [0.0]]), None)
    for capacity, match in ((16, "cannot take"), (64, "no position left")):
        short = model(2, max_context=18)
        cache = short.new_cache(1, capacity)
        tokens = torch.zeros(1, capacity if capacity < 18 else 17, dtype=torch.int64)
        with pytest.raises(ValueError, match=match):
            as_tensors(short.trees, tokens, torch.tensor([tokens.shape[1]]), cache, np.array([0]), plan, one * 5, draws)


@pytest.mark.parametrize("parents", [[0], [-1, 1], [-2], [-1, 0, -1], [-1, -1, 1, 0]])
def test_a_plan_has_parents_before_their_children_and_in_order(parents):
    with pytest.raises(ValueError, match="parents must be"):
        TreePlan(np.array(parents))


def test_a_plan_knows_who_has_children_and_how_deep_they_stand():
    plan, levels = TreePlan(BUSHY.parents), np.concatenate([[0], BUSHY.levels])
    inner = np.unique(BUSHY.parents)
    assert inner[plan.owners].tolist() == BUSHY.parents.tolist()
    assert plan.depths.tolist() == levels[inner + 1].tolist()


def test_threads_share_nodes_and_no_bit_moves(set_threads):
    found = []
    for number in (1, 2, 3):
        set_threads(number)
        found.append(run_of_trees(SmallTransformer(DRAFT, tree=BUSHY), WARM, 4, "multi_draft"))
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_ranks_are_those_of_a_stable_sort(dtype):
    generator = torch.Generator().manual_seed(3)
    for size in (1, 2, 9, 40):
        for steps in (1, 2, 5, 1000):
            probs = torch.randint(steps, (3, 2, size), generator=generator).to(dtype) / steps
            values, ids = probs.sort(dim=-1, descending=True, stable=True)
            for k in {1, min(4, size), size}:
                found = top_ids(probs, k)
                assert torch.equal(found[0], values[..., :k])
                real = values[..., :k] > 0  # ids of probability 0 are nobody's children
                assert torch.equal(found[1][real], ids[..., :k][real])
