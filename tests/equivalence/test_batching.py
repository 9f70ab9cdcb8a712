"""A request's output is its own: no batch size, order, slot, neighbour or scheduling changes a token of it."""

import numpy as np
import pytest

from drafts.stateless import stateless
from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from tests.reference.tables import random_table
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.pairwise import diagonal, first_of

SIZE = 5
TARGET, DRAFT = random_table(SIZE, 2, 41), random_table(SIZE, 2, 42)
ORACLE = TabularLM(TARGET, eos_id=4)


@stateless(num_draft_tokens=4)
def repeated(ids: list[int], budget: int) -> list[int]:
    return ids[-2:][:budget]


SOURCES = {
    "plain": (None, "standard"),
    "given chains": (repeated, "standard"),
    "drawn chains": (Chains(DRAFT, 4), "standard"),
    "chains, matched": (Chains(DRAFT, 4), "sample_and_match"),
    "chains, coupled": (Chains(DRAFT, 4), "coupled"),
    "trees": (RandomTrees(DRAFT, max_nodes=6), "sample_and_match"),
    "trees, coupled": (RandomTrees(DRAFT, max_nodes=6), "coupled"),
}
SAMPLINGS = {
    "greedy": [SamplingParams()],
    "sampled": [SamplingParams(temperature=1.0)],
    "mixed": [
        SamplingParams(temperature=1.3, top_p=0.9),
        SamplingParams(),
        SamplingParams(temperature=0.7, frequency_penalty=0.4, min_new_tokens=3),
        SamplingParams(repetition_penalty=1.3, frequency_penalty=0.1, logit_bias={1: -float("inf")}),
        SamplingParams(temperature=1.0, top_k=2, min_p=0.1, ignore_eos=True),
    ],
}
PROMPTS = [np.random.default_rng(i).integers(0, SIZE, 1 + 3 * i % 7).tolist() for i in range(13)]
SEEDS = [(5, i) for i in range(len(PROMPTS))]
STOP = [[3, 3, 0]]
all_sources = pytest.mark.parametrize(("source", "rule"), SOURCES.values(), ids=SOURCES)


def params_of(samplings):
    return [samplings[i % len(samplings)] for i in range(len(PROMPTS))]


@all_sources
@pytest.mark.parametrize("asked", first_of("mixed", "greedy", "sampled"))
def test_output_does_not_depend_on_batch_size_or_order(source, rule, asked):
    decoder, params = SpeculativeDecoder(ORACLE, source, rule), params_of(SAMPLINGS[asked])
    whole = decoder.generate(PROMPTS, 14, params, SEEDS, STOP)
    for batch_size in (1, 2, 5):
        again = decoder.generate(PROMPTS, 14, params, SEEDS, STOP, batch_size)
        assert again.tokens == whole.tokens
        assert again.finish_reasons == whole.finish_reasons
        assert [r.num_accepted for r in again.stats.requests] == [r.num_accepted for r in whole.stats.requests]
    order = np.random.default_rng(0).permutation(len(PROMPTS)).tolist()
    moved = decoder.generate(
        [PROMPTS[i] for i in order], 14, [params[i] for i in order], [SEEDS[i] for i in order], STOP, 3
    )
    assert moved.tokens == [whole.tokens[i] for i in order]


@diagonal({"source, rule": SOURCES, "samplings": SAMPLINGS})
def test_one_request_is_replayed_alone_with_its_seed(source, rule, samplings):
    decoder, params = SpeculativeDecoder(ORACLE, source, rule), params_of(samplings)
    whole = decoder.generate(PROMPTS, 14, params, seed=9, stop=STOP, batch_size=4, return_logprobs=True)
    for i in (0, 4, 7, 12):
        alone = decoder.generate([PROMPTS[i]], 14, params[i], whole.seeds[i : i + 1], STOP, return_logprobs=True)
        assert alone.tokens == [whole.tokens[i]]
        assert alone.logprobs == [whole.logprobs[i]]


@all_sources
def test_greedy_and_coupled_output_is_that_of_plain_decoding(source, rule):
    params = params_of(SAMPLINGS["mixed"])
    plain, fast = (
        SpeculativeDecoder(ORACLE, *how).generate(PROMPTS, 14, params, SEEDS, STOP).tokens
        for how in ((None, "coupled"), (source, rule))
    )
    for wanted, found, asked in zip(plain, fast, params, strict=True):
        assert found == wanted or (asked.temperature > 0 and rule != "coupled")


@all_sources
def test_equal_prompts_with_different_seeds_go_apart_and_with_equal_seeds_do_not(source, rule):
    decoder = SpeculativeDecoder(ORACLE, source, rule)
    sampling = SamplingParams(temperature=1.0, ignore_eos=True)
    tokens = decoder.generate([[1, 2]] * 4, 40, sampling, [(0, 0), (0, 1), (0, 0), (1, 0)]).tokens
    assert tokens[0] == tokens[2]
    assert tokens[0] != tokens[1]
    assert tokens[0] != tokens[3]
    assert tokens[1] != tokens[3]
