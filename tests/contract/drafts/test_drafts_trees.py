"""Trees drafted by a small model: passes, laws along paths, absent nodes, budgets, growth, and what is refused."""

import numpy as np
import pytest
import torch

from drafts import Cascade, NGram, PromptLookup, SmallTransformer
from oracles import TabularLM
from specdec import Chain, Grown, Kary, Paths, ReRanked, SharedBudget, SpeculativeDecoder
from specdec.contracts import Budget, Draft
from specdec.sampling import BatchWarping, ParameterTable, SamplingParams
from specdec.sampling.randomness import Keyed, seed_keys
from tests.reference import growth
from tests.reference.tables import law_after, random_table
from tests.support.drafting.draft_rows import Rows
from tests.support.models.watched_models import PROMPTS, SAMPLED, Watched, all_models, rescored, transformer
from tests.support.registry import LARGE_SHAPES, temperature_of

PLAIN = SamplingParams(temperature=1.0)
TABLE = random_table(6, 2, 7)
EVERY = dict.fromkeys(PROMPTS, 50)
all_shapes = pytest.mark.parametrize("shape", LARGE_SHAPES.values(), ids=LARGE_SHAPES)
DRAWN = {name: shape for name, shape in LARGE_SHAPES.items() if shape.num_kept is None}
# Each shape with the temperatures at which a source may draft it.
WAYS = [
    pytest.param(shape, temperature, id=f"{name}-{temperature}")
    for name, shape in LARGE_SHAPES.items()
    for temperature in ((None, 0, 1.5) if name in DRAWN else (0,))
]


def drafted(source, sampling=PLAIN, budgets=None, **options) -> tuple[Draft, Rows]:
    rows = Rows(source, sampling=sampling, **options)
    rows.seat(PROMPTS)
    return rows.propose(EVERY if budgets is None else budgets), rows


def paths(draft: Draft, row: int) -> dict[tuple[int, ...], int]:
    """Return the ids on the path to each node -> its index; equal siblings would share one."""
    found: list[tuple[int, ...]] = []
    for node in range(int(draft.num_nodes[row])):
        parent = node - 1 if draft.parents is None else int(draft.parents[row, node])
        above = found[parent] if parent >= 0 else ()
        found.append((*above, int(draft.tokens[row, node])))
    assert len(set(found)) == len(found), "siblings are drawn without replacement"
    return {path: node for node, path in enumerate(found)}


@pytest.mark.parametrize(("shape", "temperature"), WAYS)
@all_models
def test_declared_laws_are_the_models_own_along_each_path(make, temperature, shape):
    source = SmallTransformer(make(), temperature=temperature, tree=shape)
    draft, _ = drafted(source, SAMPLED)
    assert draft.width == draft.num_nodes.max() > 4
    assert (draft.laws is None) == (temperature == 0)
    for row, prompt in PROMPTS.items():
        for path, node in paths(draft, row).items():
            if temperature != 0:
                law = rescored(make(), prompt, list(path), temperature)[-1].double()
                torch.testing.assert_close(draft.laws[row, node].dense().double(), law, rtol=1e-9, atol=1e-12)
                assert not shape.branches or draft.without_replacement[row, node]


@all_shapes
@all_models
def test_a_tree_takes_one_pass_a_level_of_the_nodes_that_go_on(make, shape):
    model = Watched(make())
    draft, rows = drafted(SmallTransformer(model, tree=shape, temperature=temperature_of(shape)))
    passes = model.passes[-shape.max_depth :]
    assert [set(one) for one in passes] == [set(PROMPTS)] * shape.max_depth
    if shape == Kary(2, 3):
        assert passes == [dict.fromkeys(PROMPTS, 1), dict.fromkeys(PROMPTS, 2), dict.fromkeys(PROMPTS, 2 + 4)]
    # Whatever is accepted, one pass catches up.
    deepest = {row: list(max(paths(draft, row), key=len)) for row in PROMPTS}
    rows.settle({row: [*deepest[row][: 1 + row], 1] for row in PROMPTS})
    model.passes.clear()
    rows.propose(EVERY)
    assert model.passes[0] == {row: 2 + min(row, len(deepest[row]) - 1) for row in PROMPTS}
    assert len(model.passes) == shape.max_depth


@pytest.mark.parametrize("temperature", [None, 0])
@all_models
def test_a_chain_as_a_tree_is_the_chain(make, temperature):
    chain, _ = drafted(SmallTransformer(make(), 4, temperature=temperature), SAMPLED)
    source = SmallTransformer(make(), temperature=temperature, tree=Chain(4))
    tree, _ = drafted(source, SAMPLED)
    assert not source.offers.trees
    assert torch.equal(tree.tokens, chain.tokens)
    torch.testing.assert_close(tree.node_laws.dense(6), chain.node_laws.dense(6), rtol=1e-12, atol=0)
    assert SpeculativeDecoder(TabularLM.random(6, 1, 0), source, "standard").draft is source


@pytest.mark.parametrize("shape", [Chain(3), Kary(1, 3), Grown(3, 3, width=1)], ids=str)
@all_models
def test_a_shape_without_branches_is_judged_as_chains_in_rows_that_end_one_after_the_other(make, shape):
    oracle, params = TabularLM.random(6, 2, 1), [PLAIN, SamplingParams(), PLAIN]
    source, prompts = SmallTransformer(make(), tree=shape), [[1], [2, 3], [4, 5, 1, 2]]
    assert drafted(source)[0].parents is None
    decoders = [
        SpeculativeDecoder(oracle, source, "standard"),
        SpeculativeDecoder(oracle, Cascade([PromptLookup(2, min_ngram=3), source]), "standard"),
        SpeculativeDecoder(oracle, source, "standard", budget=SharedBudget(4)),
    ]
    for decoder in decoders:
        result = decoder.generate(prompts, 9, params, batch_size=2)
        assert [len(tokens) for tokens in result.tokens] == [9, 9, 9]


def test_a_law_with_too_few_ids_leaves_nodes_absent_and_all_below_them():
    table = np.zeros((4, 4))
    table[:, :] = [[0, 0.5, 0.5, 0], [0, 0, 1, 0], [0.3, 0.3, 0.4, 0], [0.25] * 4]
    source = SmallTransformer(TabularLM(table), tree=Kary(3, 2))
    rows = Rows(source, oracle=TabularLM.random(4, 1, 0), sampling=PLAIN)
    rows.seat({0: [0], 1: [1], 2: [2], 3: [3]})
    draft = rows.propose(dict.fromkeys(range(4), 9))
    # id 0 leads to {1, 2}, id 1 to {2}, id 2 to {0, 1, 2}, id 3 anywhere.
    support = {0: 2, 1: 1, 2: 3, 3: 3}
    for row in range(4):
        found = paths(draft, row)
        roots = [path for path in found if len(path) == 1]
        assert len(roots) == support[row]
        assert len(found) == len(roots) + sum(support[path[0]] for path in roots)
    assert draft.width == draft.num_nodes.max() > draft.num_nodes.min() == 1 + 3


@all_shapes
@pytest.mark.parametrize("sampling", [SamplingParams(), PLAIN], ids=["greedy", "sampled"])
def test_rows_keep_to_their_own_depths_and_nodes(shape, sampling):
    source = SmallTransformer(TabularLM(TABLE), tree=shape, temperature=temperature_of(shape))
    rows = Rows(source, sampling=sampling)
    rows.seat(PROMPTS)
    at = np.arange(4)
    context = rows.context(at)
    depth, nodes = np.array([2, 50, 1, 50]), np.array([50, 4, 50, 0])
    streams = Keyed.at(seed_keys([0, 1, 2, 3]), context.num_committed)
    cut = rows.session.propose(at, context, Budget(depth, nodes), streams)
    whole = rows.session.propose(at, context, Budget(depth * 0 + 50, nodes * 0 + 50), streams)
    for row in range(4):
        kept, found = paths(cut, row), paths(whole, row)
        assert len(kept) <= nodes[row]
        assert max(map(len, kept), default=0) <= depth[row]
        if nodes[row] == 50 and shape.num_kept is None:
            assert set(kept) == {path for path in found if len(path) <= depth[row]}
        elif not shape.reads_confidence:
            assert list(kept) == list(found)[: nodes[row]], "a static tree is cut behind its first nodes"
    assert cut.num_nodes[1] == 4


def test_greedy_children_are_the_models_best_ids():
    draft, _ = drafted(SmallTransformer(TabularLM(TABLE), tree=Kary(3, 2)), SamplingParams())
    assert draft.laws is None
    for row, prompt in PROMPTS.items():
        found = paths(draft, row)
        for above in [(), *(path for path in found if len(path) == 1)]:
            best = np.argsort(-law_after(TABLE, (*prompt, *above)), kind="stable")[:3]
            assert [path[-1] for path in found if path[:-1] == above] == best.tolist()


@pytest.mark.parametrize("least", [0.0, 0.08])
@pytest.mark.parametrize("width", [2, 4])
def test_a_greedy_tree_grows_as_the_reference_grows_it(width, least):
    shape = Grown(10, 4, width, least)
    draft, _ = drafted(SmallTransformer(TabularLM(TABLE), tree=shape), SamplingParams())
    for row, prompt in PROMPTS.items():
        wanted = growth.grown(lambda ids: law_after(TABLE, tuple(ids)), prompt, 10, 4, width, least)
        assert set(paths(draft, row)) == set(wanted)
        for path, node in paths(draft, row).items():
            own = wanted[path] / wanted.get(path[:-1], 1.0)
            assert float(draft.confidence[row, node]) == pytest.approx(own, rel=1e-9)


@pytest.mark.parametrize(("num_nodes", "width"), [(6, 2), (9, 3), (40, 3)])
def test_a_re_ranked_tree_is_the_reference(num_nodes, width):
    source = SmallTransformer(TabularLM(TABLE), temperature=0, tree=ReRanked(num_nodes, 3, width))
    draft, _ = drafted(source, PLAIN)
    assert draft.laws is None
    for row, prompt in PROMPTS.items():
        wanted = growth.re_ranked(lambda ids: law_after(TABLE, tuple(ids)), prompt, num_nodes, 3, width)
        assert set(paths(draft, row)) == set(wanted)


def test_growth_looks_at_laws_before_the_draw():
    """The number of children follows from the law and the path above, whatever is then drawn."""
    shape = Grown(12, 3, width=4)
    for seed in range(6):
        rows = Rows(SmallTransformer(TabularLM(TABLE), tree=shape), sampling=PLAIN)
        rows.seat(PROMPTS, seeds=dict.fromkeys(PROMPTS, seed))
        draft = rows.propose(EVERY)
        for row, prompt in PROMPTS.items():
            found = list(paths(draft, row))
            weight = {(): 1.0}
            for path in found:
                weight[path] = weight[path[:-1]] * law_after(TABLE, (*prompt, *path[:-1]))[path[-1]]
            for depth in range(3):
                level = [path for path in weight if len(path) == depth]
                pairs = [(weight[n] * q, n) for n in level for q in law_after(TABLE, (*prompt, *n))]
                chosen = [n for _, n in sorted(pairs, key=lambda pair: -pair[0])[:4]]
                counts = {n: sum(path[:-1] == n for path in found) for n in level}
                assert counts == {n: chosen.count(n) for n in level}


@pytest.mark.parametrize("least", [0.0, 0.15], ids=["levels as wide", "levels of each row"])
def test_greedy_and_sampled_requests_share_a_batch(least):
    sampling = [SamplingParams(), PLAIN, SamplingParams(), SAMPLED]
    source = SmallTransformer(transformer(), tree=Grown(8, 3, width=3, min_confidence=least))
    alone = []
    for row, params in enumerate(sampling):
        one = Rows(source, sampling=params)
        one.seat({0: PROMPTS[row]}, seeds={0: row})
        alone.append(paths(one.propose({0: 50}), 0))
    rows = Rows(source)
    rows.seat(PROMPTS)
    at, context = np.arange(4), rows.context(np.arange(4))
    warping = BatchWarping(ParameterTable.of(sampling), context.ids, context.num_committed, context.num_committed, ())
    context = type(context)(context.ids, context.num_committed, warping)
    streams = Keyed.at(seed_keys([0, 1, 2, 3]), context.num_committed)
    draft = rows.session.propose(at, context, Budget(at * 0 + 50, at * 0 + 50), streams)
    assert [paths(draft, row) for row in range(4)] == alone
    assert (draft.laws.index >= 0).any(1).tolist() == [False, True, False, True]


def test_noise_of_a_position_is_shared_by_the_nodes_of_its_depth_in_coupled_mode():
    """A model with the oracle's own laws is always right."""
    source = SmallTransformer(TabularLM(TABLE), tree=Kary(2, 3))
    run = SpeculativeDecoder(TabularLM(TABLE), source, "coupled").generate([*PROMPTS.values()], 12, PLAIN)
    assert (run.stats.target_calls, run.stats.num_accepted) == (3, 4 * 3 * 3)


def test_near_the_end_of_its_own_context_the_model_drafts_less_deep():
    source = SmallTransformer(transformer(max_context=8), tree=Kary(2, 3))
    rows = Rows(source, sampling=PLAIN)
    rows.seat({0: [1], 1: [1, 2, 3, 4, 5, 1], 2: [1, 2, 3, 4, 5, 1, 2], 3: [1, 2, 3, 4, 5, 1, 2, 3]})
    draft = rows.propose(EVERY)
    depths = [max(map(len, paths(draft, row)), default=0) for row in range(4)]
    assert depths == [3, 2, 1, 0]


@pytest.mark.parametrize("shape", [Chain(0), Kary(3, 0), Paths([]), Grown(0, 2), Grown(3, 0)], ids=str)
def test_a_tree_without_nodes_is_plain_decoding(shape):
    oracle, prompts = TabularLM(TABLE), list(PROMPTS.values())
    result = SpeculativeDecoder(oracle, SmallTransformer(oracle, tree=shape), "multi_draft").generate(prompts, 6)
    assert result.tokens == SpeculativeDecoder(oracle).generate(prompts, 6).tokens
    assert result.stats.num_drafted == 0


@pytest.mark.parametrize("shape", DRAWN.values(), ids=DRAWN)
@pytest.mark.parametrize("order", [1, 2, 4])
def test_an_n_gram_model_grows_trees_along_their_paths(order, shape):
    model = NGram.train([[0, 1, 2, 0, 1, 5, 2, 0, 2, 4, 1, 0, 3]], 6, order, progress=False).model
    draft, _ = drafted(NGram(model, sampled=True, tree=shape))
    for row, prompt in PROMPTS.items():
        for path, node in paths(draft, row).items():
            newest = [*prompt, *path[:-1]][::-1][: order - 1]
            recent = np.array([newest + [-1] * (order - 1 - len(newest))], dtype=np.int64)
            wanted = torch.from_numpy(model.laws(model.states(recent))[0])
            torch.testing.assert_close(draft.laws[row, node].dense().double(), wanted, rtol=1e-9, atol=0)


REFUSED = {
    "not both": {"tree": Kary(2, 2), "num_draft_tokens": 3},
    r"draft greedily \(temperature=0\), or use Grown": {"tree": ReRanked(4, 2, 2)},
    "keeps the best": {"tree": ReRanked(4, 2, 2), "temperature": 1.0},
}


@pytest.mark.parametrize(("message", "options"), REFUSED.items(), ids=REFUSED)
def test_what_cannot_be_drafted_is_refused_with_the_reason(message, options):
    with pytest.raises(ValueError, match=message):
        SmallTransformer(TabularLM(TABLE), **options)
    with pytest.raises(ValueError, match=message):
        NGram(NGram.train([[0, 1]], 6, 2, progress=False).model, sampled=True, **options)


def test_the_statistics_of_ranks_are_those_of_trees():
    decoder = SpeculativeDecoder(TabularLM(TABLE), SmallTransformer(TabularLM(TABLE), tree=Kary(3, 2)), "multi_draft")
    stats = decoder.generate(list(PROMPTS.values()), 30, PLAIN).stats
    # A draft of the target's own laws: the first child always stands.
    assert stats.acceptance_by_rank[1] == 1.0
    assert stats.block_efficiency_full == 3.0
    assert stats.draft_utilisation == stats.num_accepted / stats.num_drafted < 0.2
