"""A model that is decoded speculatively while it drafts: passes, stages, caches, and what its inner source is told."""

import json
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import Cascade, Merged, NGram, PromptLookup, SmallTransformer, Staged, stateless
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec import SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import Budget, Draft, Needs, Offers
from specdec.exactness import check_draft
from specdec.kernels import REFERENCE
from specdec.laws import Laws
from specdec.sampling.randomness import Coupled, Keyed, seed_keys
from specdec.stats import Stats, pool
from specdec.verify import RULES, ChainVerifier, verdicts
from tests.support.backends import judged_by_rules, needed_kernels, needed_native
from tests.support.drafting.draft_rows import PROMPTS, Rows, StopBelow, chains
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.registry import CALIBRATION, SHORT_CALIBRATION

VOCAB = 6
MODEL, OTHER = TabularLM.random(VOCAB, 2, 61), TabularLM.random(VOCAB, 2, 62)
ORACLE = TabularLM.random(VOCAB, 2, 63)
SAMPLED = SamplingParams(temperature=0.9, top_p=0.95)
NGRAMS = NGram.train([[0, 1, 2, 3, 4, 5, 0, 2, 4, 0, 1, 1, 2, 5]], VOCAB, 3, progress=False).model


class Counting:
    """A model that notes its passes: (rows, width, wanted)."""

    def __init__(self, model: Any) -> None:
        self.model, self.passes = model, []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def score(self, tokens, parents, num_nodes, cache, rows, want="all", hidden=()):
        self.passes.append((len(rows), tokens.shape[1], want))
        return self.model.score(tokens, parents, num_nodes, cache, rows, want, hidden)


@stateless(num_draft_tokens=9)
def wrong(ids, budget):
    """Expect what the model's greedy continuation never says."""
    law = MODEL.table[tuple(([0, 0, *ids])[-2:])]
    return [int(law.argmin())] * budget


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_a_draft_takes_at_most_as_many_passes_as_tokens_and_one_where_the_inner_is_right(depth):
    for inner, wanted in ((wrong, depth), (SmallTransformer(MODEL, 9), 1)):
        model = Counting(MODEL)
        rows = Rows(Staged(model, inner, depth))
        rows.seat(PROMPTS)
        model.passes.clear()
        draft = rows.propose(dict.fromkeys(PROMPTS, 50))
        assert draft.num_nodes.tolist() == [depth] * 4
        assert len(model.passes) == wanted
        (stage,) = draft.stages
        assert (stage.passes, stage.emitted, stage.accepted + stage.steps) == (wanted, 4 * depth, 4 * depth)


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
def test_a_policy_is_asked_about_every_token_and_nothing_drawn_is_dropped(sampling):
    asked = []

    class Watched(StopBelow):
        def continues(self, rows, confidence):
            answer = confidence.prod(1) >= self.threshold
            asked.extend(zip(rows.tolist(), [confidence.shape[1]] * len(rows), answer.tolist(), strict=True))
            return answer

    source = Staged(MODEL, SmallTransformer(OTHER, 2), length=Watched(0.2, max_depth=6))
    assert source.offers.confidence
    rows = Rows(source, sampling=sampling)
    rows.seat(PROMPTS)
    draft = rows.propose(dict.fromkeys(PROMPTS, 50))
    for row, size in enumerate(draft.num_nodes.tolist()):
        own = [(depth, answer) for at, depth, answer in asked if at == row]
        assert [depth for depth, _ in own] == list(range(1, size + 1))
        # What comes behind a refusal came in the same inner step: at most two inner tokens and the one behind them.
        first = next((depth for depth, answer in own if not answer), size)
        assert first <= size < first + 3
        held = draft.node_laws.probs_of(draft.tokens)[row, :size]
        if sampling.temperature:
            torch.testing.assert_close(draft.confidence[row, :size], held)
    check_draft(source, ORACLE, [*PROMPTS.values()], max_new_tokens=12)


def test_greedy_and_sampled_rows_share_a_batch():
    """Rows of either kind draft in one pass what they draft alone, siblings included."""
    source = Staged(MODEL, PromptLookup(2), 3, width=3)
    decoder = SpeculativeDecoder(ORACLE, source, "multi_draft")
    mixed = [SAMPLED, SamplingParams(), SamplingParams(temperature=1.0, top_k=2), SamplingParams()]
    prompts = list(PROMPTS.values())
    together = decoder.generate(prompts, 16, mixed, seed=5)
    for i, (prompt, sampling) in enumerate(zip(prompts, mixed, strict=True)):
        alone = decoder.generate([prompt], 16, sampling, seed=[(5, i)])
        assert alone.tokens[0] == together.tokens[i]
        assert alone.stats.num_drafted == together.stats.requests[i].num_drafted
    check_draft(source, ORACLE, prompts, max_new_tokens=12, sampling=mixed[2])


def test_rows_that_are_done_take_no_part():
    model = Counting(MODEL)
    rows = Rows(Staged(model, wrong, 5))
    rows.seat(PROMPTS)
    model.passes.clear()
    assert rows.propose({0: 3, 1: 0, 2: 50, 3: 1}).num_nodes.tolist() == [3, 0, 5, 1]
    assert [size for size, _, _ in model.passes] == [3, 2, 2, 1, 1]


def coupled_draft(source, budgets):
    """Return chains whose noise is keyed by position alone."""
    return chains(coupled_rows(source, budgets)[0])


def coupled_rows(source, budgets):
    """Return a draft whose noise is keyed by position alone, and that noise."""
    rows = Rows(source, sampling=SAMPLED)
    rows.seat(PROMPTS)
    at = np.arange(4)
    context = rows.context(at)
    depth = np.array(budgets)
    noise = Coupled(seed_keys([7, 8, 9, 10]), context.num_committed)
    return rows.session.propose(at, context, Budget(depth, depth), noise), noise


def test_coupled_and_greedy_trunks_are_the_unstaged_models_drafts():
    inners = {
        "lookup": PromptLookup(3),
        "sampled": NGram(NGRAMS, 3, sampled=True),
        "nested": Staged(OTHER, NGram(NGRAMS, 2, sampled=True), 3),
    }
    wanted = coupled_draft(SmallTransformer(MODEL, 5), [5, 3, 5, 1])
    for inner in inners.values():
        assert coupled_draft(Staged(MODEL, inner, 5), [5, 3, 5, 1]) == wanted
        greedy = [Rows(source) for source in (Staged(MODEL, inner, 5), SmallTransformer(MODEL, 5))]
        for rows in greedy:
            rows.seat(PROMPTS)
        made, unstaged = (chains(rows.propose(dict.fromkeys(PROMPTS, 50))) for rows in greedy)
        assert made == unstaged


@pytest.mark.parametrize("is_native", [False, True], ids=["table", "native"])
def test_noise_of_a_position_is_shared_with_the_inner_draft_in_coupled_mode(is_native):
    """An inner model with the drafting model's own laws is always right, drawn tokens included, in every inner step."""
    if is_native:
        needed_native()
    laws = NativeTransformer(tiny_unpacked(VOCAB, torch.float32)) if is_native else MODEL
    for depth, steps in ((9, 1), (2, 2), (1, 3)):  # a step gives one token more than it drafts
        model = Counting(laws)
        coupled_draft(Staged(model, SmallTransformer(laws, depth), 5), [5, 5, 5, 5])
        assert [want for _, _, want in model.passes].count("all") == steps


def test_siblings_share_the_noise_of_their_position_in_coupled_mode():
    """Beside a token stands what the noise of its position would have chosen next."""
    draft, noise = coupled_rows(Staged(MODEL, wrong, 3, width=2), [6, 6, 6, 6])
    assert draft.parents.tolist() == [[-1, 0, 1, -1, 0, 1]] * 4
    both = noise.choose(draft.node_laws[:, :3], np.arange(3), np.arange(3), "draft", 2)
    assert draft.tokens.view(4, 2, 3).mT.tolist() == both.tolist()


@dataclass
class Listener:
    """A source that drafts id 1 and keeps what it is told."""

    needs: Needs = field(default_factory=Needs)
    heard: list[tuple[Any, ...]] = field(default_factory=list)
    name: str = "listener"
    offers: Offers = field(default_factory=lambda: Offers(max_depth=2, max_nodes=2))
    vocab_size: int | None = None

    def open(self, oracle, num_rows, capacity):
        self.oracle = oracle
        return self

    def begin(self, rows, prompts, scores):
        self.heard.append(("begin", scores))

    def propose(self, rows, context, budget, randomness):
        self.ids = [ids[:n].tolist() for ids, n in zip(context.ids, context.num_committed, strict=True)]
        sizes = torch.from_numpy(np.clip(budget.max_depth, 0, 2))
        return Draft(torch.ones(len(rows), 2, dtype=torch.int64), sizes)

    def sync(self, rows, keep, new_ids, scores):
        self.heard.append(("sync", self.ids, keep.tolist(), [[i for i in row if i >= 0] for row in new_ids], scores))

    def end(self, rows):
        pass


@dataclass
class Careless(Listener):
    """A source whose drafts are not as it was asked."""

    told: dict[str, Any] = field(default_factory=dict)

    def propose(self, rows, context, budget, randomness):
        return replace(super().propose(rows, context, budget, randomness), **self.told)


@pytest.mark.parametrize("model", [MODEL, tiny_transformer(VOCAB)], ids=["table", "transformer"])
def test_the_inner_source_hears_what_stands_and_is_handed_the_models_scores(model):
    inner = Listener(Needs(logits=True))
    result = SpeculativeDecoder(ORACLE, Staged(model, inner, 3)).generate([[1, 2, 3]], 8, SAMPLED)
    (kind, first), *heard = inner.heard
    assert kind == "begin"
    assert first.logits.shape == (1, 2, VOCAB)
    stands = [1, 2, 3]
    for _, ids, (keep,), (new,), scores in heard:
        if scores is not None:
            assert ids[0][:keep] == ids[0], "an inner step stands as it is"
            fed = torch.tensor([[*ids[0], 1, 1]])
            nodes = torch.tensor([fed.shape[1]])
            wanted = model.score(fed, None, nodes, model.new_cache(1, 32), np.array([0])).logits[:, len(ids[0]) - 1 :]
            torch.testing.assert_close(scores.logits, wanted[:, : scores.logits.shape[1]], rtol=0, atol=1e-12)
        else:
            assert keep == len(stands)
            stands = stands[:keep] + new
    assert stands[3:] == result.tokens[0]


CASES = {
    "ngram": lambda model: Staged(model, NGram(NGRAMS, 3, sampled=True), 5),
    "siblings": lambda model: Staged(model, PromptLookup(3), 3, width=3),
    "twice": lambda model: Staged(model, Staged(OTHER, PromptLookup(2), 3), 4),
    "a cascade inside": lambda model: Staged(model, Cascade([PromptLookup(3), SmallTransformer(OTHER, 2)]), 4),
    "inside a cascade": lambda model: Cascade([PromptLookup(3, min_ngram=3), Staged(model, NGram(NGRAMS, 3), 4)]),
    "inside a merger": lambda model: Merged([Staged(model, PromptLookup(3), 3, width=2), SmallTransformer(OTHER, 2)]),
}


@pytest.mark.parametrize("rule", ["multi_draft", "coupled"])
@pytest.mark.parametrize("case", CASES)
def test_the_compiled_judge_inside_a_draft_decides_as_the_rule_does(case, rule, monkeypatch):
    def run():
        ways = [SAMPLED, SamplingParams(), SamplingParams(temperature=0.7, repetition_penalty=1.3), SAMPLED]
        return SpeculativeDecoder(ORACLE, CASES[case](MODEL), rule).generate(list(PROMPTS.values()), 10, ways, seed=3)

    with judged_by_rules():
        wanted = run()
    monkeypatch.setattr(verdicts, "verify", lambda *_: pytest.fail("a rule was asked"))
    found = run()
    assert found.tokens == wanted.tokens
    for name, stage in found.stats.stages.items():
        for count in ("passes", "drafted", "accepted", "emitted"):
            assert stage[count] == wanted.stats.stages[name][count]


def test_what_the_compiled_judge_refuses_inside_a_draft_the_rule_decides():
    probs = torch.eye(4, dtype=torch.float64)[None, :2]
    draft = Draft(torch.tensor([[0, 3]]), torch.tensor([2]), laws=Laws.from_probs(probs))  # which cannot give id 3
    laws, streams = Laws.from_probs(torch.full((1, 3, 4), 0.25, dtype=torch.float64)), Keyed(seed_keys([5]))
    by_judge, by_rule = (
        ChainVerifier(RULES["standard"], kernels)(draft, laws, streams, {"note": torch.tensor([7])})
        for kernels in (needed_kernels(), REFERENCE)
    )
    assert by_judge.keys() == by_rule.keys() == {"tokens", "counts", "num_nodes", "note"}
    for name, numbers in by_rule.items():
        assert by_judge[name].tolist() == numbers.tolist()


@dataclass
class Elsewhere:
    """An oracle on another device than the drafting model's."""

    oracle: Any
    device: Any = field(default_factory=lambda: torch.device("meta"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.oracle, name)


@pytest.mark.parametrize("width", [1, 2])
@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
def test_all_of_a_draft_is_handed_over_on_the_targets_device(sampling, width):
    source = Staged(MODEL, PromptLookup(2), length=StopBelow(0.0), width=width)
    rows = Rows(source, sampling=sampling, oracle=Elsewhere(ORACLE))
    rows.seat(PROMPTS)
    draft = rows.propose(dict.fromkeys(PROMPTS, 9))
    assert (draft.confidence is not None) == source.offers.confidence == (width == 1)
    parts = [*vars(draft).values(), *([] if draft.laws is None else vars(draft.laws).values())]
    assert {part.device.type for part in parts if isinstance(part, torch.Tensor)} == {"meta"}


@pytest.mark.parametrize("sampling", [SAMPLED, SamplingParams()], ids=["sampled", "greedy"])
def test_siblings_are_other_ids_within_the_nodes_allowed(sampling):
    source = Staged(MODEL, PromptLookup(3), 3, width=3)
    assert (source.offers.trees, source.offers.max_depth, source.offers.max_nodes) == (True, 3, 9)
    rows = Rows(source, sampling=sampling)
    rows.seat(PROMPTS)
    context, at = rows.context(np.arange(4)), np.arange(4)
    rows.propose(dict.fromkeys(PROMPTS, 3))
    budget = Budget(np.array([3, 3, 3, 0]), np.array([9, 6, 2, 9]))
    draft = rows.session.propose(at, context, budget, rows.recorder)
    sizes = [9, 5, 2, 0] if not sampling.temperature else None
    for row, size in enumerate(draft.num_nodes.tolist()):
        assert size <= budget.max_nodes[row]
        assert sizes is None or size == sizes[row]
        parents, tokens = draft.parents[row, :size].tolist(), draft.tokens[row, :size].tolist()
        assert len({(p, t) for p, t in zip(parents, tokens, strict=True)}) == size, "siblings differ"
        depth = [parents[: i + 1].count(p) == 1 for i, p in enumerate(parents)]
        assert all(depth[: min(3, size)]), "the trunk comes first"


def test_stages_add_up_and_survive_json():
    source = Staged(MODEL, Staged(OTHER, NGram(NGRAMS, 3), 3), 5)
    runs = [SpeculativeDecoder(ORACLE, source).generate(list(PROMPTS.values()), 20, SAMPLED) for _ in range(2)]
    stages = runs[0].stats.stages
    assert list(stages) == ["staged(staged(ngram))", "staged(ngram)"]
    outer, inner = stages.values()
    assert outer["emitted"] == runs[0].stats.num_drafted
    assert inner["emitted"] == outer["drafted"]
    for stage in (outer, inner):
        assert stage["accepted"] + stage["steps"] == stage["emitted"]
        assert 0 < stage["accepted"] <= stage["drafted"]
        assert stage["passes"] <= stage["steps"]
        assert stage["seconds"] > 0
    assert outer["inner_seconds"] >= inner["seconds"] + inner["inner_seconds"]
    both = pool([Stats.from_dict(json.loads(json.dumps(run.stats.as_dict()))) for run in runs])
    assert both.stages["staged(ngram)"]["passes"] == 2 * inner["passes"]


def test_the_models_own_context_is_never_overshot():
    model = tiny_transformer(VOCAB, seed=5)
    model.config = model.config.__class__(**{**vars(model.config), "max_context": 12})
    oracle = tiny_transformer(VOCAB)
    wanted = SpeculativeDecoder(oracle, None, "coupled").generate([[1, 2, 3], [4]], 24, SAMPLED).tokens
    decoder = SpeculativeDecoder(oracle, Staged(model, NGram(NGRAMS, 4), 6), "coupled")
    assert decoder.generate([[1, 2, 3], [4]], 24, SAMPLED).tokens == wanted


def test_what_the_inner_source_declares_holds_for_the_draft():
    inner = Listener(
        offers=Offers(adaptive=True, reproducible=False, calibration=CALIBRATION, max_depth=2, max_nodes=2)
    )
    offers = Staged(MODEL, inner, 2).offers
    assert (offers.adaptive, offers.reproducible, offers.calibration) == (True, False, CALIBRATION)
    own = Threshold(SHORT_CALIBRATION)
    assert Staged(MODEL, inner, length=own).offers.calibration == SHORT_CALIBRATION


def test_what_cannot_be_staged_is_refused_with_the_reason():
    with pytest.raises(ValueError, match="branches, and the draft model judges chains"):
        Staged(MODEL, Merged([wrong, PromptLookup(1)]))
    with pytest.raises(ValueError, match="hidden layers"):
        Staged(MODEL, Listener(Needs(hidden=(0,))))
    with pytest.raises(ValueError, match="width must be an integer, 1 or more"):
        Staged(MODEL, wrong, width=0)
    with pytest.raises(ValueError, match="temperature"):
        Staged(MODEL, wrong, temperature=-1.0)
    with pytest.raises(ValueError, match="inner source 'small_transformer' drafts from 7 ids, and draft_model has"):
        Staged(MODEL, SmallTransformer(TabularLM.random(7, 1, 0), 2), 2)
    for told, message in (
        ({"parents": torch.tensor([[-1, -1]])}, "inner source 'listener' drafted a tree, and declares"),
        ({"num_nodes": torch.tensor([2])}, "inner source 'listener' drafted 2 tokens, over its budget of 1"),
    ):
        with pytest.raises(ValueError, match=message):
            SpeculativeDecoder(ORACLE, Staged(MODEL, Careless(told=told), 2)).generate([[1, 2]], 8)
