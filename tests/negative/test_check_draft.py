"""``check_draft`` passes honest sources and names what is wrong with others."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

import drafts
import drafts.staged
import specdec.drafting.tree_sampler
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec import Kary, SamplingParams, Threshold
from specdec.contracts import Budget, Context, Draft, DraftSource, IntArray, Offers, Oracle, Randomness, Scores
from specdec.drafting import ChainSampler
from specdec.exactness import check_draft
from specdec.exactness.findings import Draw, draft_difference, form_findings, honesty_findings
from specdec.laws import Laws
from specdec.sampling.randomness import Keyed
from tests.reference.tables import random_table, warped_table
from tests.support.backends import needed_native
from tests.support.drafting.sources import Chains, RandomTrees, Session
from tests.support.models.tiny_models import rough_view, tiny_transformer

ORACLE = TabularLM(random_table(3, 2, 41), eos_id=2)
TABLE = random_table(3, 2, 42)


class WarpedDraws(Chains):
    """Draws from colder laws than it declares (pitfall 1)."""

    def drawn(self, laws, depth, randomness):
        return super().drawn(laws**2 / (laws**2).sum(-1, keepdim=True), depth, randomness)


class SoftGreedy(Chains):
    """Takes the best id and declares the soft law (pitfalls 2 and 5a)."""

    def drawn(self, laws, depth, randomness):
        return laws.argmax(-1)


class PrivateNoise(Chains):
    """Draws with torch's own generator (pitfall 45)."""

    def drawn(self, laws, depth, randomness):
        return torch.multinomial(laws, 1).squeeze(-1)


class Undeclared(Chains):
    """Draws, and calls its tokens deterministic."""

    def draft(self, context, budget, randomness):
        return replace(super().draft(context, budget, randomness), laws=None)


class DropsUnlikely(Chains):
    """Ends the chain before a drawn token of low probability (pitfall 3)."""

    def draft(self, context, budget, randomness):
        draft = super().draft(context, budget, randomness)
        likely = draft.node_laws.probs_of(draft.tokens) > 0.3
        return replace(draft, num_nodes=torch.minimum(draft.num_nodes, likely.long().cumprod(1).sum(1)))


class Peeks(DropsUnlikely):
    """The same, and the draw has a purpose of its own."""

    def drawn(self, laws, depth, randomness):
        return randomness.choose(Laws.from_probs(laws), depth, depth, "tokens")


class Redraws(Chains):
    """Draws an unlikely token once more, under purposes of its own."""

    def drawn(self, laws, depth, randomness):
        first, second = (randomness.choose(Laws.from_probs(laws), depth, depth, name) for name in ("first", "again"))
        return torch.where(Laws.from_probs(laws).probs_of(first) > 0.3, first, second)


class PretendsAVerdict(SoftGreedy):
    """Says that an inner verdict decided its best ids."""

    def draft(self, context, budget, randomness):
        draft = super().draft(context, budget, randomness)
        return replace(draft, decided=torch.ones_like(draft.tokens, dtype=torch.bool))


class IgnoresTemperature(Chains):
    """Draws a token from a law that follows the request, and declares that law as it is at temperature 1."""

    def draft(self, context, budget, randomness):
        live = budget.max_nodes > 0
        logits = torch.from_numpy(TABLE[0, context.pending]).log().unsqueeze(1)
        before = Draft.empty(len(live), torch.device("cpu")), torch.tensor([0])
        drawn, declared = (context.warping.laws(logits, *before, **at)[:, 0] for at in ({}, {"temperature": 1.0}))
        idle = torch.from_numpy(~live)
        tokens = randomness.choose(drawn.with_points(idle), 0, 0, "draft").unsqueeze(1)
        laws = None if drawn.all_points else declared.with_points(idle)[:, None]
        return Draft(tokens, torch.from_numpy(live.astype(np.int64)), laws=laws)


class DeclaresAnew(Chains):
    """Computes the law that it declares once more, in another way."""

    def declared(self, laws):
        return laws.log().softmax(-1)


class DrawsLength(Chains):
    """Draws first how long its drafts are: which is no token."""

    def draft(self, context, budget, randomness):
        lengths = Laws.from_probs(torch.full((len(budget.max_depth), 4), 0.25, dtype=torch.float64))
        drawn = randomness.choose(lengths, 0, 0, "length").numpy()
        return super().draft(context, replace(budget, max_depth=np.minimum(budget.max_depth, drawn)), randomness)


class Doubtful(Chains):
    """Has a confidence that is no number."""

    def draft(self, context, budget, randomness):
        draft = super().draft(context, budget, randomness)
        return replace(draft, confidence=torch.full(draft.tokens.shape, torch.nan))


class IgnoresBudget(Chains):
    """Drafts more than it is allowed."""

    def draft(self, context, budget, randomness):
        more = np.maximum(budget.max_depth, 2)
        return super().draft(context, Budget(more, more), randomness)


class ReadsBatchMates(Chains):
    """Drafts less in a larger batch (pitfall 46)."""

    def draft(self, context, budget, randomness):
        limit = np.minimum(budget.max_depth, 1 if len(context.ids) > 3 else 3)
        return super().draft(context, Budget(limit, limit), randomness)


class BackwardParents(RandomTrees):
    """Points at parents behind their children."""

    def draft(self, context, budget, randomness):
        draft = super().draft(context, budget, randomness)
        return replace(draft, parents=draft.parents + 1)


class VerifiedBelowScouts(RandomTrees):
    """Hangs verified nodes below scouts."""

    def draft(self, context, budget, randomness):
        draft = super().draft(context, budget, randomness)
        first = torch.arange(draft.width) == 0
        return replace(
            draft,
            is_scout=first.expand(draft.tokens.shape),
            parents=torch.arange(-1, draft.width - 1).expand(draft.tokens.shape),
        )


class Distinct(Chains):
    """Draws two siblings without replacement in every step; ``declares`` tells whether it says so."""

    declares = True

    @property
    def offers(self):
        return Offers(trees=True, laws=True, max_depth=1, max_nodes=2)

    def draft(self, context, budget, randomness):
        batch = len(context.ids)
        live = np.flatnonzero(budget.max_nodes >= 2)
        tokens = torch.zeros(batch, 2, dtype=torch.int64)
        law = torch.from_numpy(TABLE[0, 1]).expand(batch, 2, -1)
        one = Laws.from_probs(law[:, 0])[torch.from_numpy(live)]
        tokens[torch.from_numpy(live)] = self.pair(one, randomness.select(live))
        num_nodes = torch.zeros(batch, dtype=torch.int64)
        num_nodes[torch.from_numpy(live)] = 2
        flags = torch.full((batch, 2), True) if self.declares else None
        return Draft(tokens, num_nodes, torch.full((batch, 2), -1), Laws.from_probs(law), without_replacement=flags)

    def pair(self, law, randomness):
        return randomness.choose(law, 0, 0, "draft", k=2)


class SilentlyDistinct(Distinct):
    """The same, not declared (pitfalls 5b and 12)."""

    declares = False


class Independent(Distinct):
    """Draws siblings one by one, and declares them as drawn without replacement (pitfall 12)."""

    def pair(self, law, randomness):
        return torch.stack([randomness.choose(law, node, 0, "draft") for node in (0, 1)], dim=1)


@dataclass
class Hoarding(Session):
    """Remembers every id it is told and never takes one back (pitfall 19)."""

    told: int = 0

    def sync(self, rows: IntArray, keep: IntArray, new_ids: IntArray, scores: Scores | None) -> None:
        self.told += int((new_ids >= 0).sum())

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limit = np.minimum(budget.max_depth, self.told % 3)
        return self.source.draft(context, Budget(limit, limit), randomness)


class Hoarder(Chains):
    """Opens a session with a memory that cannot be rolled back."""

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> Session:
        return Hoarding(self)


class OneName(Chains):
    """Draws every token of a chain as node 0: all of them read one number (pitfall 10a)."""

    def drawn(self, laws, depth, randomness):
        return randomness.choose(Laws.from_probs(laws), 0, depth, "draft")


class OneStream(Chains):
    """Hands one stream on to two members (pitfall 10a)."""

    def drawn(self, laws, depth, randomness):
        return randomness.extend("member").choose(Laws.from_probs(laws), depth // 2, depth, "draft")


HONEST = [
    Chains(TABLE, 3),
    Chains(warped_table(TABLE, 0.0), 3),
    RandomTrees(TABLE),
    Distinct(TABLE, 2),
    DeclaresAnew(TABLE, 3),
    DrawsLength(TABLE, 3),
]
LIARS = [
    (WarpedDraws(TABLE, 3), "never drawn from the law declared for it; the law it was drawn from differs by"),
    (SoftGreedy(TABLE, 3), "never drawn from the law declared"),
    (PrivateNoise(TABLE, 3), "global random state"),
    (Undeclared(TABLE, 3), "was drawn, and stands as a point mass: lossless where no draft of the source"),
    (DropsUnlikely(TABLE, 3), "drawn and then dropped"),
    (Peeks(TABLE, 3), "drawn and then dropped"),
    (Redraws(TABLE, 3), "drawn and then dropped"),
    (PretendsAVerdict(TABLE, 3), "node 0: decided, but nothing was drawn in this step"),
    (IgnoresTemperature(TABLE, 1), "never drawn from the law declared for it"),
    (Independent(TABLE, 2), "declared without replacement, but id . was drawn apart from it"),
    (Doubtful(TABLE, 3), "a confidence lies outside 0..1"),
    (IgnoresBudget(TABLE, 3), "where . is the limit"),
    (ReadsBatchMates(TABLE, 3), "differs alone in its batch"),
    (BackwardParents(TABLE), "no smaller index"),
    (VerifiedBelowScouts(TABLE), "verified descendant"),
    (SilentlyDistinct(TABLE, 2), "not declared so"),
    (OneName(TABLE, 3), "two draws have one name, purpose 'draft' and node 0, and so one number"),
    (OneStream(TABLE, 3), "two draws have one name of the stream member, purpose 'draft' and node"),
    (Hoarder(TABLE, 3), "differs after ids were taken back"),
]


@pytest.mark.parametrize("source", HONEST, ids=lambda source: type(source).__name__)
def test_honest_sources_conform(source):
    check_draft(source, ORACLE, max_new_tokens=12)


@pytest.mark.parametrize(("source", "fault"), LIARS, ids=[type(source).__name__ for source, _ in LIARS])
def test_a_fault_is_named(source, fault):
    with pytest.raises(AssertionError, match=fault):
        check_draft(source, ORACLE, max_new_tokens=12)


def test_each_fault_of_form_is_told_and_no_other():
    one, two = np.array([1]), np.array([2])
    chain, offers = Draft(torch.tensor([[0, 1]]), torch.tensor([2])), Offers(max_depth=2, max_nodes=2)
    siblings = replace(chain, parents=torch.tensor([[-1, -1]]))

    def told(draft: Draft, depth: Any = two, nodes: Any = two, **offered: Any) -> list[str]:
        found = form_findings(draft, Budget(depth, nodes), replace(offers, **offered), 3)
        return [fault for _, fault in found]

    assert told(replace(chain, confidence=torch.tensor([[0.0, 1.0]]))) == []
    assert told(siblings, one, trees=True, paths=((0,), (1,))) == []
    other = "a whole draft is another tree than offers.paths: parents [-1, -1]"
    assert told(siblings, one, trees=True, paths=((0,), (0, 0))) == [other]
    assert told(siblings, one, trees=True, paths=((0,), (1,), (1, 0))) == [], "a part of the tree"
    for branching in (siblings, replace(chain, is_scout=torch.tensor([[False, True]]))):
        assert told(branching) == ["the draft branches or has scouts, and offers.trees is False"]
    assert told(replace(chain, num_nodes=torch.tensor([3]))) == ["num_nodes 3 does not lie in 0..2"]
    for outside in (-1, 3):
        padded = replace(chain, tokens=torch.tensor([[0, outside]]), num_nodes=torch.tensor([1]))
        assert told(padded) == ["an id (padding included) lies outside 0..2"]
    assert told(chain, one) == ["depth 2 where 1 is the limit"]
    assert told(chain, two, one) == ["nodes 2 where 1 is the limit"]
    assert told(chain, max_depth=1) == ["depth offered 2 where 1 is the limit"]
    assert told(chain, max_nodes=1) == ["nodes offered 2 where 1 is the limit"]
    assert draft_difference(chain, 0, chain, 0, 3) is None
    assert draft_difference(chain, 0, siblings, 0, 3) == "its ids stand in another tree"


def test_each_fault_of_laws_is_told_and_no_other():
    law, point = torch.tensor([0.5, 0.5, 0.0], dtype=torch.float64), Laws.points(torch.tensor([[1]]))

    def told(token: int, laws: Laws, drawn: list[int], offers: Offers) -> list[str]:
        draft = Draft(torch.tensor([[token]]), torch.tensor([1]), laws=laws)
        return [fault for _, fault in honesty_findings(draft, [[Draw(law, drawn, "draft", ("draft", 0))]], offers, 3)]

    own, offers = Laws.from_probs(law[None, None]), Offers(laws=True)
    assert told(1, own, [1], offers) == told(1, point, [], offers) == []
    assert told(1, own, [1], Offers()) == ["a node declares a real law, and offers.laws is False"]
    assert told(0, point, [], offers) == ["node 0 holds id 0, its law is a point mass on 1"]
    for token, laws, said in (
        (2, own, "1 and gives its own id 2 the probability 0"),
        (1, Laws.from_probs(law[None, None] / 2), "0.5 and gives its own id 1 the probability 0.25"),
    ):
        assert told(token, laws, [], offers) == [f"node 0: its law sums to {said}"]


def test_what_is_no_source_is_refused():
    with pytest.raises(ValueError, match=r"^source is 3, not a draft source"):
        check_draft(3, TabularLM.random(3, 1, 0))


def test_a_check_of_nothing_is_refused():
    dishonest = WarpedDraws(TABLE, 2)
    with pytest.raises(ValueError, match="prompts are empty, and nothing is checked: give one or more, or None"):
        check_draft(dishonest, ORACLE, [])
    for number in (0, 1):
        with pytest.raises(ValueError, match=f"max_new_tokens={number} lets no step draft a token: give 2 or more"):
            check_draft(dishonest, ORACLE, max_new_tokens=number)
    with pytest.raises(ValueError, match="draft 'forced' drafted nothing, so that nothing is checked"):
        check_draft(drafts.Forced(3), ORACLE, max_new_tokens=12)
    check_draft(drafts.PromptLookup(num_draft_tokens=0), ORACLE, max_new_tokens=12)
    with pytest.raises(AssertionError, match="never drawn"):
        check_draft(dishonest, ORACLE, max_new_tokens=2)


def test_the_first_place_of_a_fault_is_named():
    with pytest.raises(AssertionError, match="request 0, 1 committed: the draft differs alone in its batch"):
        check_draft(ReadsBatchMates(TABLE, 3), ORACLE, max_new_tokens=12)


def test_the_states_of_devices_are_looked_at_too(monkeypatch):
    states = (torch.full((16,), number, dtype=torch.uint8) for number in itertools.count())
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_rng_state_all", lambda: [next(states)])
    with pytest.raises(AssertionError, match="a global random state was used"):
        check_draft(HONEST[0], ORACLE, max_new_tokens=12)


def test_the_types_of_the_faults_do_not_depend_on_the_order_of_prompts():
    prompts: Sequence[list[int]] = [[0, 1], [2]]
    for order in (prompts, prompts[::-1]):
        with pytest.raises(AssertionError, match="never drawn"):
            check_draft(WarpedDraws(TABLE, 2), ORACLE, order, max_new_tokens=12)


class Counted:
    """A native model that counts the calls in which compiled code draws."""

    def __init__(self, model: NativeTransformer) -> None:
        self.model, self.draws = model, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def follow_ids(self, *args: Any) -> Any:
        self.draws += args[6] is not None
        return self.model.follow_ids(*args)

    def trees(self, *args: Any) -> Any:
        self.draws += args[6].keys is not None
        return self.model.trees(*args)


@cache
def native_model(seed: int) -> NativeTransformer:
    return tiny_transformer(6, torch.float32, seed, NativeTransformer)


def small(counted: Any, **options: Any) -> DraftSource:
    return drafts.SmallTransformer(counted, **(options or {"num_draft_tokens": 3}))


# Sources that draw by compiled code, given the model that does.
CHAINS: dict[str, Callable[[Any], DraftSource]] = {
    "chain": small,
    "asked": lambda model: small(model, length=Threshold(threshold=0.05, max_draft_tokens=4)),
    "merged": lambda model: drafts.Merged([small(model), small(model)]),
    "cascade": lambda model: drafts.Cascade([drafts.PromptLookup(2), small(model)]),
}
INNER: dict[str, Callable[[Any], DraftSource]] = {
    "staged": lambda model: drafts.Staged(native_model(3), small(model), 5),
    "staged, branching": lambda model: drafts.Staged(native_model(3), small(model), 4, width=2),
}
BRANCHING: dict[str, Callable[[Any], DraftSource]] = {
    "tree": lambda model: small(model, tree=Kary(2, 3)),
    "merged trees": lambda model: drafts.Merged([drafts.PromptLookup(2), small(model, tree=Kary(2, 2))]),
}


WARM = SamplingParams(temperature=1.0)


def check_compiled(make: Callable[[Any], DraftSource]) -> None:
    """Check a source whose model is native, and that it drew by itself."""
    model = Counted(native_model(2))
    try:
        check_draft(make(model), native_model(1), max_new_tokens=12, sampling=WARM)
    finally:
        assert model.draws > 3


def squares_its_laws(original):
    """The laws declared are the squares of those drawn from."""

    def call(*args):
        draft = original(*args)
        if draft is None or draft.laws is None:
            return draft
        squared = draft.laws.table**2
        return replace(draft, laws=replace(draft.laws, table=squared / squared.sum(-1, keepdim=True)))

    return call


def forgets_the_committed_length(original):
    """Keys are those of the request alone: draws are replayed in every step."""
    return lambda self, purpose: original(replace(self, parts=self.parts[1:]), purpose)


def shares_its_owners_keys(original):
    """An inner draft draws under the purposes of its owner."""
    return lambda self, purpose: self.inner.chain_keys(purpose)


def hides_that_siblings_were_removed(original):
    """A tree does not say that its siblings were drawn without replacement."""
    return lambda *args: replace(original(*args), without_replacement=None)


OTHER_LAW, OTHER_IDS = "declares another law, by a total variation of 0", r"its ids are \["
TREES, STAGED = specdec.drafting.tree_sampler, drafts.staged._Ahead
# By pitfall: what is replaced by what, the sources that show it, and what is said.
COMPILED_FAULTS: dict[str, list[tuple[Any, str, Callable[[Any], Any], dict[str, Any], str]]] = {
    "1": [
        (ChainSampler, "_draft_natively", squares_its_laws, CHAINS, OTHER_LAW),
        (ChainSampler, "_draft_natively", squares_its_laws, INNER, OTHER_IDS),
        (TREES, "draft_trees", squares_its_laws, BRANCHING, OTHER_LAW),
    ],
    "10": [(Keyed, "chain_keys", forgets_the_committed_length, CHAINS | INNER | BRANCHING, OTHER_IDS)],
    "10a": [(STAGED, "chain_keys", shares_its_owners_keys, INNER, OTHER_IDS)],
    "12": [(TREES, "draft_trees", hides_that_siblings_were_removed, BRANCHING, "its without_replacement is")],
}


def test_honest_sources_that_draw_by_compiled_code_conform():
    needed_native()
    for make in (CHAINS | INNER | BRANCHING).values():
        check_compiled(make)
    check_draft(
        drafts.Quantized(native_model(1), rough_view(6, torch.float32, 1, NativeTransformer), 3), native_model(1)
    )


@pytest.mark.parametrize("faults", COMPILED_FAULTS.values(), ids=COMPILED_FAULTS)
def test_a_fault_of_compiled_drafting_is_named(faults, monkeypatch):
    needed_native()
    for owner, name, make, sources, said in faults:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, make(owner.__dict__[name]))
            for source in sources.values():
                with pytest.raises(AssertionError, match=f"the draft differs when compiled code draws it: .*{said}"):
                    check_compiled(source)
