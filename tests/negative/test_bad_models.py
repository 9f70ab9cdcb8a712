"""A drafting model whose logits mean nothing is named, with the request and the position; it is not drafted from."""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from drafts import Cascade, EarlyExit, Merged, NGram, PromptLookup, Quantized, SmallTransformer, Staged, stateless
from oracles.tabular import TabularLM
from specdec import (
    Chain,
    Entropy,
    Fixed,
    Grown,
    Heuristic,
    Kary,
    Offers,
    Paths,
    ReRanked,
    SamplingParams,
    SpeculativeDecoder,
    Threshold,
)
from specdec.contracts import NEVER, Context, DraftSession, Needs
from specdec.drafting import ChainSampler, TreeSampler, Trunk
from specdec.kernels import best_kernels
from specdec.verify import RULES
from tests.support.models.counting import POISONS, SIZE, Counting, Poisoned, counts
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import pairwise

AFTER = 13
# Greedy or not, every model counts, so the second request comes to the poisoned id at position 4; the others never do.
PROMPTS, LENGTH = [[0], [9], [2, 3]], 8
BROKEN = ["nan", "plus infinity", "only nan"]
SURE = SamplingParams(temperature=1.0, top_k=1)
TREES = {
    "chain": Chain(3),
    "binary": Kary(2, 3),
    "paths": Paths([(0, 0, 0), (1,)]),
    "grown": Grown(6, 3, min_confidence=0.3),
}
LENGTHS = {
    "heuristic": Heuristic(2, max_draft_tokens=5),
    "threshold": Threshold(threshold=0.4, max_draft_tokens=5),
    "entropy": Entropy(0.6, max_draft_tokens=5),
}
SOURCES = {
    "chain": lambda model: SmallTransformer(model, 3),
    "long chain": lambda model: SmallTransformer(model, 6),
    "greedy chain": lambda model: SmallTransformer(model, 3, temperature=0),
    **{f"tree, {name}": lambda model, tree=tree: SmallTransformer(model, tree=tree) for name, tree in TREES.items()},
    **{
        f"{name}": lambda model, length=length: SmallTransformer(model, length=length)
        for name, length in LENGTHS.items()
    },
    "greedy tree, re-ranked": lambda model: SmallTransformer(model, tree=ReRanked(6, 3, 2), temperature=0),
    "staged": lambda model: Staged(model, PromptLookup(2), 3),
    "greedy staged": lambda model: Staged(model, PromptLookup(2), 6, temperature=0),
    "staged, with siblings": lambda model: Staged(model, PromptLookup(2), 3, width=2),
    "staged, inside": lambda model: Staged(Counting(), SmallTransformer(model, 2), 6),
    "staged twice": lambda model: Staged(Counting(), Staged(Counting(), SmallTransformer(model, 6), 7), 8),
}


def rule_of(source):
    return "multi_draft" if source.offers.trees else "standard"


def raised(source, sampling, rule):
    """Return the message of the error that a run ends in."""
    decoder = SpeculativeDecoder(Counting(), source, rule)
    with pytest.raises(FloatingPointError, match="gave logits that hold NaN or") as caught:
        decoder.generate(PROMPTS, LENGTH, sampling)
    return str(caught.value)


@pairwise(
    {
        "make": SOURCES,
        "poison": BROKEN,
        "sampling": {"greedy": SamplingParams(), "sampled": SamplingParams(temperature=1.0)},
    }
)
def test_an_undefined_drafting_model_names_source_request_and_position(make, poison, sampling):
    source = make(Poisoned(POISONS[poison]))
    message = raised(source, sampling, rule_of(source))
    assert message.startswith(f"draft {source.name!r}, request 1: the model of {source.name!r} ")
    assert "position 5" in message


@pytest.mark.parametrize("rule", [name for name, rule in RULES.items() if rule.trees])
def test_the_member_of_a_combination_is_named(rule):
    @stateless(num_draft_tokens=2)
    def silent(ids, budget):
        return [] if ids[0] == 9 else counts(ids[-1] + 1, budget)

    right, wrong = SmallTransformer(Counting(), 2), SmallTransformer(Poisoned(POISONS["nan"]), 2)
    for source, name in (
        (Merged([right, wrong]), "small_transformer 2"),
        (Merged([wrong, right]), "small_transformer"),
        (Merged([PromptLookup(1), Cascade([silent, wrong])]), "small_transformer"),
        (Cascade([silent, Merged([right, PromptLookup(2), Staged(Poisoned([math.nan] * SIZE), right)])]), "staged"),
    ):
        message = raised(source, SamplingParams(temperature=1.0), rule)
        assert message.startswith(f"draft {source.name!r}, request 1: the model of '{name}")
        assert "position 5" in message


@pytest.mark.parametrize("temperature", [None, 0])
def test_an_undefined_exit_head_is_named(temperature):
    oracle = tiny_transformer(4, num_layers=3)
    calls = []

    def head(streams):
        calls.append(streams)
        logits = oracle.read_out(streams)
        return logits if len(calls) < 3 else torch.full_like(logits, math.nan)

    source = EarlyExit(oracle, 1, head, num_draft_tokens=2, temperature=temperature)
    with pytest.raises(FloatingPointError, match=r"request 0: the model of 'early_exit' gave .* for position"):
        SpeculativeDecoder(oracle, source).generate([[1, 2]], 9, SamplingParams(temperature=1.0))


@pytest.mark.parametrize("temperature", [None, 0])
def test_an_undefined_view_is_named(temperature, any_pack):
    oracle, broken = (tiny_unpacked(4, torch.float32) for _ in range(2))
    with torch.no_grad():
        broken.model.layers[1].mlp.down_proj.weight[0, 0] = math.nan
    target = any_pack(oracle)
    source = Quantized(target, any_pack(broken), num_draft_tokens=2, temperature=temperature)
    with pytest.raises(FloatingPointError, match=r"request 0: the model of 'quantized' gave .* for position"):
        SpeculativeDecoder(target, source).generate([[1, 2]], 9, SamplingParams(temperature=1.0))


def ngrams(broken):
    """Return a model that counts, with NaN among the named arrays where the last id is the poisoned one."""
    model = NGram.train([counts(0, 5 * SIZE)], SIZE, 2, progress=False).model
    (state,) = model.states(np.array([[AFTER]]))
    changed = {name: getattr(model, name).copy() for name in broken}
    for name, values in changed.items():
        values[model.starts[state] if name == "probs" else state] = math.nan
    return replace(model, **changed)


NGRAMS = {
    "sampled": (["probs"], {"num_draft_tokens": 3, "sampled": True}),
    "sampled, backoff": (["backoff"], {"num_draft_tokens": 3, "sampled": True}),
    "sampled tree": (["probs"], {"tree": Kary(2, 3), "sampled": True}),
    "greedy": (["best_probs"], {"num_draft_tokens": 3}),
    "greedy, threshold": (["best_probs"], {"length": LENGTHS["threshold"]}),
    "greedy, entropy": (["probs"], {"length": LENGTHS["entropy"]}),
    "greedy tree": (["probs"], {"tree": Kary(2, 3)}),
}


@pytest.mark.parametrize(("broken", "settings"), NGRAMS.values(), ids=NGRAMS)
def test_an_undefined_table_of_n_grams_is_named(broken, settings):
    source = NGram(ngrams(broken), **settings)
    message = raised(source, SURE, rule_of(source))
    assert message.startswith("draft 'ngram', request 1: the model of 'ngram' ")
    assert "position 5" in message


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_laws_that_leave_nothing_to_draw_and_logits_that_nobody_reads_raise_nothing(make, temperature):
    """A model may ban every id behind some text; rows that draft no further are not read."""
    for poison, prompts in (("only minus infinity", PROMPTS), ("nan", [[0], [6], [2, 3]])):
        source = make(Poisoned(POISONS[poison]))
        decoder = SpeculativeDecoder(Counting(), source, rule_of(source))
        result = decoder.generate(prompts, 6, SamplingParams(temperature=temperature))
        assert result.tokens == [counts(prompt[-1] + 1, 6) for prompt in prompts]


RAGGED = {
    **SOURCES,
    "staged behind a model": lambda model: Staged(model, SmallTransformer(Counting(), 4), 5),
    "greedy n-grams": lambda model: NGram(ngrams(["best_probs"]), 5),
    "n-grams that nobody samples": lambda model: NGram(ngrams(["probs"]), 5),
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("make", RAGGED.values(), ids=RAGGED)
def test_what_padding_and_rows_at_their_limit_would_read_raises_nothing(make, temperature):
    """Padding holds id 0, behind which the model is undefined; drafts end before 13, behind which n-grams are."""
    source, oracle = make(Poisoned(POISONS["nan"], after=0)), Counting(max_context=9)
    prompts = [[1], [2, 3], [6, 7, 8, 9, 10, 11]]
    result = SpeculativeDecoder(oracle, source, rule_of(source)).generate(prompts, 6, SamplingParams(temperature))
    assert result.tokens == [counts(2, 6), counts(4, 6), counts(12, 3)]


class Careless(DraftSession):
    """Count, in chains or trees, with NaN for every row that the sampler does not ask about."""

    name, needs, vocab_size = "careless", Needs(), None
    offers = Offers(laws=True, trees=True, max_depth=3, max_nodes=7)

    def __init__(self, tree):
        self.tree = tree

    def open(self, oracle, num_rows, capacity):
        self.chains = ChainSampler(Fixed(3).open(num_rows), None, oracle.device)
        self.trees = TreeSampler(Kary(2, 3), None, oracle.device)
        return self

    def propose(self, rows, context, budget, randomness):
        every = np.arange(len(rows))
        pending = torch.from_numpy(context.ids[every, context.num_committed - 1]).unsqueeze(1)

        def logits(tokens, live):
            following = torch.nn.functional.one_hot((tokens + 1) % SIZE, SIZE).double().log()
            return following.index_fill(0, torch.from_numpy(np.setdiff1d(every, live)), torch.nan)

        def of_chain(depth, tokens, live):
            return logits(tokens[:, depth - 1 : depth] if depth else pending, live)

        def of_frontier(frontier):
            tokens = frontier.tokens
            return logits(tokens[:, frontier.first :] if tokens.shape[1] else pending, frontier.live)

        if self.tree:
            return self.trees(context, budget, budget.max_depth, randomness, of_frontier)
        return self.chains(rows, context, np.clip(budget.max_depth, 0, 3), randomness, of_chain)


@pytest.mark.parametrize("tree", [False, True], ids=["chains", "trees"])
def test_a_source_may_hand_anything_for_rows_that_are_not_read(tree):
    prompts = [[1], [2, 3], [6, 7, 8, 9, 10, 11]]
    decoder = SpeculativeDecoder(Counting(max_context=9), Careless(tree), "multi_draft")
    result = decoder.generate(prompts, 6, SamplingParams(temperature=1.0))
    assert result.tokens == [counts(2, 6), counts(4, 6), counts(12, 3)]


def test_the_first_of_several_undefined_models_is_told():
    context = Context(np.zeros((3, 4), dtype=np.int64), np.array([2, 3, 4]), SimpleNamespace(kernels=best_kernels()))
    trunk = Trunk(context, 6, 0, False, torch.device("cpu"))
    trunk.counts[:] = [0, 1, 2]
    trunk.note_undefined(np.array([1, 2]), np.array([[NEVER, NEVER], [3, 1]]))
    assert trunk.undefined[0] >= NEVER <= trunk.undefined[1]
    assert trunk.undefined[2] == 3
    trunk.note_undefined(np.array([0, 1, 2]), np.array([[0, 2], [NEVER, 1], [2, 2]]))
    assert trunk.undefined.tolist() == [0, 2, 3]


def test_the_oracle_is_blamed_first():
    both = Poisoned(POISONS["nan"])
    with pytest.raises(FloatingPointError, match="request 1: the oracle's logits"):
        SpeculativeDecoder(both, SmallTransformer(both, 5)).generate(PROMPTS, LENGTH)


def test_a_draft_must_say_by_source_what_is_undefined():
    table = TabularLM.random(SIZE, 1, 0)

    class Odd(SmallTransformer):
        def open(self, oracle, num_rows, capacity):
            session = super().open(oracle, num_rows, capacity)
            propose = session.propose
            session.propose = lambda *given: replace(propose(*given), undefined=torch.zeros(1, 3, dtype=torch.int64))
            return session

    with pytest.raises(ValueError, match=r"undefined \(1, 3\) should be \(1, 1\)"):
        SpeculativeDecoder(table, Odd(table)).generate([[1]], 4)
