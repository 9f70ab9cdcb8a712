"""Torch's default device is no matter of a run: what is computed lies where the oracle and the host want it."""

import pytest
import torch

from drafts import Cascade, Lookahead, Merged, NGram, PromptLookup, SmallTransformer, Staged, SuffixAutomaton
from oracles import RecordedText, TabularLM
from oracles.native import NativeTransformer
from oracles.parallel.shares import Share
from oracles.parallel.split_bits import has_bitwise_splits
from specdec import Kary, SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.verify import RULES, native_judge
from tests.support.backends import needed_kernels, needed_native
from tests.support.models.tiny_models import tiny_transformer, tiny_unpacked
from tests.support.pairwise import pairwise
from tests.support.registry import CORPUS

ELSEWHERE = torch.device("meta")
PROMPTS = [[1, 2, 3, 1, 2], [3], [5, 4, 5, 4]]
SAMPLING = [
    SamplingParams(temperature=0.8, top_k=4, repetition_penalty=1.3),
    SamplingParams(logit_bias={2: -1.0}),
    SamplingParams(temperature=1.0, top_p=0.9, frequency_penalty=0.2),
]
SOURCES = {
    "none": lambda model: None,
    "chain": lambda model: SmallTransformer(model, 3),
    "tree": lambda model: SmallTransformer(model, tree=Kary(2, 2)),
    "merged": lambda model: Merged([SmallTransformer(model, 2), NGram.train(CORPUS, 6, 2, progress=False)]),
    "cascade": lambda model: Cascade([PromptLookup(2, min_ngram=2), Staged(model, PromptLookup(2), 3)]),
    "shared": lambda model: SmallTransformer(model, 3, temperature=0),
    "lookahead": lambda model: Merged([Lookahead(2, 3), SuffixAutomaton(3, max_nodes=4)]),
}


def a_run(make, rule, kernels, oracle, model):
    source = make(model)
    rule = rule if RULES[rule].trees or source is None or not source.offers.trees else "multi_draft"
    shared = SharedBudget(4) if make is SOURCES["shared"] else None
    decoder = SpeculativeDecoder(oracle, source, rule, kernels=kernels, budget=shared)
    result = decoder.generate(PROMPTS, 9, SAMPLING, seed=3, batch_size=2, return_logprobs=True)
    return result.tokens, result.logprobs, result.judge


@pairwise({"make": SOURCES, "rule": ("standard", "coupled"), "kernels": ("native", "reference")})
def test_runs_are_the_same_under_another_default_device(make, rule, kernels):
    needed_kernels()
    given = make, rule, kernels, TabularLM.random(6, 2, 0), TabularLM.random(6, 1, 1)
    wanted = a_run(*given)
    with ELSEWHERE:
        assert a_run(*given) == wanted


def test_native_models_run_under_another_default_device():
    needed_native()
    oracle, model = (tiny_transformer(6, torch.float32, seed, NativeTransformer) for seed in (0, 1))
    given = SOURCES["tree"], "multi_draft", "native", oracle, model
    wanted = a_run(*given)
    with ELSEWHERE:
        assert a_run(*given) == wanted


@pytest.mark.parametrize("name", RULES)
def test_rules_are_compared_with_their_judges_under_another_default_device(name, monkeypatch):
    for made in ("_cached_disagreement", "_draft", "_logits"):
        monkeypatch.setattr(native_judge, made, getattr(native_judge, made).__wrapped__)
    with ELSEWHERE:
        assert native_judge.confirm_judge(RULES[name], needed_kernels().walks) is RULES[name].native_judge


def test_models_are_packed_under_another_default_device():
    model = tiny_unpacked(6, torch.float32)
    wanted = tiny_transformer(6, torch.float32)
    with ELSEWHERE:
        model.pack()
    assert model.bitwise
    given = SOURCES["chain"], "standard", "reference"
    assert a_run(*given, model, model) == a_run(*given, wanted, wanted)


def test_tables_records_and_the_check_of_shares_need_no_default_device():
    share = Share(tiny_unpacked(6, torch.float32).config, 0, 1, 2)

    def made():
        text = RecordedText([[1, 2, 1]], [[2, 1, 2, 0]])
        tables = TabularLM.random(4, 1, 0), *TabularLM.pair(4, 1, 0.5, 0), TabularLM([0.25, 0.75])
        run = SpeculativeDecoder(text, PromptLookup(2)).generate([[1, 2, 1]], 4)
        return [model.table.tolist() for model in tables], run.tokens, has_bitwise_splits(share)

    wanted = made()
    with ELSEWHERE:
        assert made() == wanted
