"""Sources made of others: how trees are joined, who is told what, and whose acceptance is whose."""

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch

from drafts import Cascade, EarlyExit, Merged, PromptLookup, SmallTransformer, Staged, stateless
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, Needs, Scores
from specdec.drafting.merging import merge
from specdec.laws import Laws
from tests.reference.tables import random_table
from tests.support.drafting.draft_rows import Rows, chains
from tests.support.drafting.sources import SiblingTrees
from tests.support.models.tiny_models import tiny_transformer

SAMPLED = SamplingParams(temperature=1.0)
TARGET, FIRST, SECOND = (TabularLM(random_table(3, 2, seed)) for seed in (51, 52, 53))


def points(*rows, parents=None, **options):
    """Return a draft of deterministic ragged rows."""
    width = max(map(len, rows))
    tokens = torch.tensor([[*row, *[0] * (width - len(row))] for row in rows])
    above = None if parents is None else torch.tensor(parents)
    return Draft(tokens, torch.tensor([len(row) for row in rows]), above, **options)


def drawn(*rows, table=None, **options):
    """Return a draft of ragged rows that were drawn, one law a node."""
    draft = points(*rows, **options)
    probs = torch.full((*draft.tokens.shape, 9), 1 / 9, dtype=table or torch.float64)
    return replace(draft, laws=Laws.from_probs(probs))


def tree(draft, row):
    """Return (token, parent, source name) of the nodes of a row."""
    size = int(draft.num_nodes[row])
    parents = range(-1, size - 1) if draft.parents is None else draft.parents[row, :size].tolist()
    names = [draft.source_names[i] for i in draft.source[row, :size].tolist()]
    return list(zip(draft.tokens[row, :size].tolist(), parents, names, strict=True))


def test_chains_that_agree_share_their_nodes_and_the_first_source_has_them():
    draft, places = merge([points([4, 5, 6], [1]), points([4, 5, 7], [2, 3])], ["a", "b"])
    assert tree(draft, 0) == [(4, -1, "a"), (5, 0, "a"), (6, 1, "a"), (7, 1, "b")]
    assert tree(draft, 1) == [(1, -1, "a"), (2, -1, "b"), (3, 1, "b")]
    assert [place.tolist() for place in places] == [[[0, 1, 2, 3], [0, 1, 0, 0]], [[0, 1, 2, 4], [0, 2, 3, 0]]]
    assert draft.laws is None
    assert draft.width == 4, "the pass is as wide as the longest row, not as all sources together"


def test_a_copy_goes_on_behind_a_drawn_token_and_a_drawn_one_is_never_merged():
    draft, _ = merge([drawn([4, 5]), points([4, 8])], ["model", "lookup"])
    assert tree(draft, 0) == [(4, -1, "model"), (5, 0, "model"), (8, 0, "lookup")]
    draft, _ = merge([points([4, 8]), drawn([4, 5])], ["lookup", "model"])
    assert tree(draft, 0) == [(4, -1, "lookup"), (8, 0, "lookup"), (4, -1, "model"), (5, 2, "model")]
    assert draft.node_laws.index[0].lt(0).tolist() == [True, True, False, False]
    draft, _ = merge([drawn([4]), drawn([4]), points([4, 8])], ["first", "second", "lookup"])
    assert tree(draft, 0) == [(4, -1, "first"), (4, -1, "second"), (8, 0, "lookup")]


def test_scouts_and_nodes_that_siblings_were_drawn_without_stay_their_own():
    scout = points([4], is_scout=torch.tensor([[True]]))
    assert len(tree(merge([points([4]), scout], "ab")[0], 0)) == 2
    assert len(tree(merge([scout, points([4])], "ab")[0], 0)) == 2
    assert len(tree(merge([points([5]), scout, points([4])], "abc")[0], 0)) == 3
    flagged = points([4, 5], parents=[[-1, -1]], without_replacement=torch.tensor([[False, True]]))
    assert len(tree(merge([points([4]), flagged], "ab")[0], 0)) == 3


def test_laws_of_several_precisions_and_none_stand_in_one_table():
    draft, _ = merge([points([1]), drawn([2], table=torch.float32), drawn([3, 4])], "abc")
    assert draft.laws is not None
    assert draft.laws.table.shape == (3, 9)
    assert draft.laws.table.dtype == torch.float64
    assert draft.laws.index.tolist() == [[-1, 0, 1, 2]]
    assert draft.laws.probs_of(draft.tokens)[0].tolist() == pytest.approx([1, 1 / 9, 1 / 9, 1 / 9], rel=1e-6)


def test_equal_names_are_told_apart_and_inner_names_kept():
    inner, _ = merge([points([1]), points([2])], ["x", "y"])
    draft, _ = merge([inner, points([3]), points([4])], ["merged(x, y)", "x", "z"])
    assert draft.source_names == ("x", "y", "x 2", "z")
    assert [name for _, _, name in tree(draft, 0)] == ["x", "y", "x 2", "z"]


def test_no_number_makes_a_name_of_another_member():
    inner, _ = merge([points([1]), points([2])], ["x", "x"])
    draft, _ = merge([inner, points([3]), points([4])], ["merged(x, x)", "x", "x 2"])
    assert draft.source_names == ("x", "x 2", "x 3", "x 2 2")
    assert [name for _, _, name in tree(draft, 0)] == ["x", "x 2", "x 3", "x 2 2"]


def test_one_draft_alone_is_handed_on_and_none_stays_empty():
    empty = Draft.empty(2, torch.device("cpu"))
    draft, places = merge([empty, points([1, 2], [3])], "ab")
    assert draft.parents is None
    assert tree(draft, 0) == [(1, -1, "b"), (2, 0, "b")]
    assert [place.tolist() for place in places] == [[[0], [0]], [[0, 1, 2], [0, 1, 2]]]
    assert merge([empty, empty], "ab")[0].source_names == ("a", "b")


def test_a_draft_of_some_rows_is_spread_over_all():
    given = drawn([1, 2], [3], confidence=torch.ones(2, 2), is_scout=torch.ones(2, 2, dtype=torch.bool))
    draft = given.scatter_rows(np.array([2, 0]), 3)
    assert draft.num_nodes.tolist() == [1, 0, 2]
    assert chains(draft) == [[3], [], [1, 2]]
    assert draft.node_laws.index.tolist() == [[2, 3], [-1, -1], [0, 1]]
    assert draft.is_scout is not None
    assert draft.is_scout.any(1).tolist() == [True, False, True]


def test_a_chain_of_some_rows_is_a_chain_of_all_whatever_its_form():
    draft = points([4, 5], parents=[[-1, 0]]).scatter_rows(np.array([1]), 2)
    assert draft.is_chain
    assert chains(draft) == [[], [4, 5]]


@stateless(num_draft_tokens=3)
def evens(ids, budget):
    return [0] * budget if len(ids) % 2 == 0 else []


@stateless(num_draft_tokens=2)
def ones(ids, budget):
    return [1] * budget


def test_a_cascade_takes_the_first_that_speaks_row_by_row():
    rows = Rows(Cascade([evens, ones]))
    rows.seat({0: [1, 2], 1: [1, 2, 3], 2: [1, 2], 3: [1]})
    draft = rows.propose({0: 9, 1: 9, 2: 0, 3: 1})
    assert chains(draft) == [[0, 0, 0], [1, 1], [], [1]]
    assert [tree(draft, b)[0][2] for b in (0, 1, 3)] == ["evens", "ones", "ones"]
    assert Cascade([evens, ones]).name == "cascade(evens, ones)"


def test_a_cascade_asks_nobody_once_all_rows_are_served():
    calls = []

    @stateless(num_draft_tokens=2)
    def asked(ids, budget):
        calls.append(ids)
        return [1]

    rows = Rows(Cascade([ones, asked]))
    rows.seat({0: [1], 1: [2]})
    rows.propose({0: 2, 1: 2})
    assert not calls


@pytest.mark.parametrize("kind", [Cascade, Merged])
def test_what_one_member_does_not_promise_a_combination_does_not_and_what_one_has_it_has(kind):
    by_one_alone = {"trees": True, "laws": True, "adaptive": True}
    for name, by_one in (by_one_alone | dict.fromkeys(("confidence", "reproducible", "nested"), False)).items():
        members = [Listener(str(flag), (1, 2), Needs()) for flag in (True, False)]
        for member in members:
            member.offers = replace(member.offers, **{name: member.name == "True"})
        for given in (members, members[::-1]):
            assert getattr(kind(given).offers, name) == by_one, name


def test_members_share_the_nodes_in_their_order():
    source = Merged([ones, evens])
    assert (source.offers.max_nodes, source.offers.max_depth, source.offers.trees) == (5, 3, True)
    rows = Rows(source)
    rows.seat({0: [1, 2]})
    assert rows.propose({0: 9}).num_nodes.tolist() == [5]
    context = rows.context(np.array([0]))
    for nodes, wanted in ((0, 0), (1, 1), (2, 2), (3, 3), (9, 5)):
        budget = type("B", (), {"max_depth": np.array([9]), "max_nodes": np.array([nodes])})()
        draft = rows.session.propose(np.array([0]), context, budget, rows.recorder)
        assert draft.num_nodes.tolist() == [wanted]


def test_what_cannot_be_combined_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="two sources or more"):
        Merged([ones])
    with pytest.raises(ValueError, match="vocabularies of different sizes"):
        Cascade([SmallTransformer(TARGET), SmallTransformer(TabularLM.random(5, 1, 0))])
    layered = tiny_transformer(3)
    with pytest.raises(ValueError, match="'early_exit' cannot serve inside 'merged"):
        Merged([EarlyExit(layered, 1), ones])
    with pytest.raises(ValueError, match="'early_exit' cannot serve inside 'staged"):
        Staged(layered, EarlyExit(layered, 1))


@dataclass
class Listener:
    """A source of two chosen branches that keeps the scores it is handed."""

    name: str
    tokens: tuple[int, ...]
    needs: Needs
    heard: list = field(default_factory=list)
    offers = replace(SiblingTrees(random_table(3, 2, 0)).offers, max_nodes=2, max_depth=1)
    vocab_size = None

    def open(self, oracle, num_rows, capacity):
        return self

    def begin(self, rows, prompts, scores):
        self.heard.append(scores)

    def propose(self, rows, context, budget, randomness):
        if int(budget.max_nodes.min()) < 2:
            return Draft.empty(len(rows), torch.device("cpu"))
        self.ids = context.ids[:, : int(context.num_committed.max())]
        return points(*[list(self.tokens)] * len(rows), parents=[[-1, -1]] * len(rows))

    def sync(self, rows, keep, new_ids, scores):
        self.heard.append((self.ids, scores))

    def end(self, rows):
        pass


@pytest.mark.parametrize("nested", [False, True])
def test_members_are_handed_the_scores_of_their_own_nodes(nested):
    """The logits handed over are those of a fresh pass over the member's own branches, whoever drafted before."""
    oracle = tiny_transformer()
    deaf, first = Listener("deaf", (1, 2), Needs()), Listener("first", (2, 3), Needs(hidden=(1,)))
    second = Listener("second", (3, 0), Needs(logits=True, hidden=(0, 1)))
    members = [deaf, Merged([first, second])] if nested else [deaf, first, second]
    source = Merged(members)
    assert source.needs == Needs(logits=True, hidden=(1, 0))
    SpeculativeDecoder(oracle, source, "multi_draft").generate([[1, 2, 3]], 3)
    assert deaf.heard[0] is None
    assert isinstance(first.heard[0], Scores)
    assert first.heard[0].logits is None
    assert all(scores is None for _, scores in deaf.heard[1:])
    for member in (first, second):
        ids, scores = member.heard[1]
        wanted = oracle.score(
            torch.from_numpy(np.concatenate([ids, [member.tokens]], axis=1)),
            torch.tensor([[*range(-1, ids.shape[1] - 1), ids.shape[1] - 1, ids.shape[1] - 1]]),
            torch.tensor([ids.shape[1] + 2]),
            oracle.new_cache(1, 16),
            np.array([0]),
            hidden=member.needs.hidden,
        )
        assert wanted.logits is not None
        assert scores.logits is None or torch.allclose(scores.logits[:, :3], wanted.logits[:, -3:], atol=1e-12)
        assert (scores.logits is not None) == member.needs.logits
        for made, layer in zip(scores.hidden, wanted.hidden, strict=True):
            assert torch.allclose(made[:, :3], layer[:, -3:], atol=1e-12)  # then those of the path


def test_a_combination_inside_another_hears_of_its_own_drafts_only_when_it_was_asked():
    """Where it was not, its members are handed the pending token's scores; nothing of an earlier step remains."""
    listener = Listener("listener", (2, 3), Needs(logits=True))
    rows = Rows(Cascade([evens, Merged([ones, listener])]))
    rows.seat({0: [1, 2], 1: [1, 2, 3]})
    # Each row's length, and the nodes whose scores belong to the listener: the pending token, then its branches.
    # ``evens`` serves even lengths, with three nodes; behind the two of ``ones`` the branches are nodes 3 and 4.
    silent, speaks = [0, 0, 0], [0, 3, 4]
    for lengths, nodes in (((2, 3), (silent, speaks)), ((3, 5), (speaks, speaks)), ((4, 6), (silent, silent))):
        rows.ids = {b: [0] * length for b, length in enumerate(lengths)}
        draft = rows.propose({0: 9, 1: 9})
        logits = torch.arange(2 * (draft.width + 1)).view(2, -1, 1)
        rows.session.sync(np.arange(2), np.array(lengths), np.array([[-1], [-1]]), Scores(logits))
        _, scores = listener.heard[-1]
        wanted = [[b * (draft.width + 1) + node for node in own] for b, own in enumerate(nodes)]
        assert scores.logits.squeeze(-1).tolist() == wanted


def test_acceptance_is_attributed_to_each_source_and_adds_up():
    source = Merged([PromptLookup(2), Cascade([evens, SmallTransformer(FIRST, 2)]), SmallTransformer(SECOND, 1)])
    run = SpeculativeDecoder(TARGET, source, "multi_draft").generate([[1, 2], [0], [2, 2, 1]], 40, SAMPLED)
    stats, names = run.stats, {"prompt_lookup", "evens", "small_transformer", "small_transformer 2"}
    assert set(stats.drafted_by_source) == names
    assert all(stats.accepted_by_source[name] > 0 for name in names)
    for name in names:
        assert stats.accepted_by_source[name] <= stats.tried_by_source[name] <= stats.drafted_by_source[name]
    columns = run.records.columns()
    for which, counts in (("node", "drafted"), ("tried", "tried"), ("path", "accepted")):
        nodes = [name for row in columns[f"{which}_sources"] for name in row]
        assert {name: nodes.count(name) for name in names} == getattr(stats, f"{counts}_by_source")
    assert sum(stats.tried_by_source.values()) == sum(stats.tried_at_rank)


def test_a_second_source_of_the_targets_own_laws_is_accepted_as_often_as_the_first_leaves_room():
    """A perfect model behind another: in place of the rejected child, it is offered to the residual."""
    perfect = SmallTransformer(TARGET, 1)
    alone = SpeculativeDecoder(TARGET, SmallTransformer(FIRST, 1), "multi_draft").generate([[1]] * 8, 60, SAMPLED)
    both = SpeculativeDecoder(TARGET, Merged([SmallTransformer(FIRST, 1), perfect]), "multi_draft").generate(
        [[1]] * 8, 60, SAMPLED
    )
    assert both.stats.num_steps < alone.stats.num_steps
    assert both.stats.tried_by_source["small_transformer 2"] < both.stats.drafted_by_source["small_transformer 2"]
