"""The real engine has exactly the oracle's law over whole sequences; only its source of randomness is replaced."""

import copy

import numpy as np
import pytest
from tokenizers import AddedToken

from drafts import SmallTransformer
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless, oracle_law, output_law, total_variation
from specdec.kernels.compiled import FILTERS, NEUTRAL
from specdec.requests import stop_lists
from tests.reference.tables import random_table, sequence_law
from tests.support.drafting.rule_cases import Lenient
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.counting import letters
from tests.support.models.tiny_models import tiny_transformer

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET, DRAFT = random_table(3, 2, 21), random_table(3, 2, 22)
PLAIN = SamplingParams(temperature=1.0)
SAMPLINGS = {
    "plain": PLAIN,
    "greedy": SamplingParams(),
    "cold": SamplingParams(temperature=0.6),
    "top_k": SamplingParams(temperature=1.2, top_k=2),
    "top_p": SamplingParams(temperature=1.0, top_p=0.8),
    "min_p": SamplingParams(temperature=1.5, min_p=0.25),
    "penalties": SamplingParams(
        temperature=0.9, repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.5, logit_bias={1: 0.7}
    ),
    "ban": SamplingParams(temperature=1.0, logit_bias={0: -float("inf")}),
    "all": SamplingParams(
        temperature=0.8,
        top_k=2,
        top_p=0.95,
        min_p=0.05,
        repetition_penalty=1.2,
        presence_penalty=-0.4,
        frequency_penalty=0.2,
        min_new_tokens=2,
    ),
}
SOURCES = {
    "chains": (Chains(DRAFT, 2), "standard"),
    "chains, matched": (Chains(DRAFT, 2), "sample_and_match"),
    "trees": (RandomTrees(DRAFT, max_nodes=3), "sample_and_match"),
    "plain": (None, "standard"),
}


def test_every_filter_is_enumerated():
    drawn = [params for params in SAMPLINGS.values() if params.temperature > 0]
    asked = {name for params in drawn for name in FILTERS if getattr(params, name) != NEUTRAL[name]}
    assert asked == set(FILTERS), "give each sampling parameter of laws.h a row in SAMPLINGS"


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize(("source", "rule"), SOURCES.values(), ids=SOURCES)
def test_the_output_law_is_the_oracles_in_ragged_batches(source, rule, sampling):
    decoder = SpeculativeDecoder(TabularLM(TARGET), source, rule)
    check_lossless(decoder, PROMPT, 3, sampling, depth=2, mates=MATES)


# The id of EOS, what is asked for, and what ends a run or seats it.
ENDS = {
    "eos": (1, {}, {}),
    "eos, two tokens at least": (1, {"min_new_tokens": 2}, {}),
    "eos that is ignored": (1, {"ignore_eos": True}, {}),
    "a stop inside blocks and across": (1, {}, {"stop": [[2, 0]]}),
    "two stops": (1, {}, {"stop": [[0], [1, 1]]}),
    "few slots and many requests": (0, {}, {"batch_size": 17}),
}


@pytest.mark.parametrize(("eos_id", "asked", "options"), ENDS.values(), ids=ENDS)
@pytest.mark.parametrize(("source", "rule"), SOURCES.values(), ids=SOURCES)
def test_the_law_ends_where_eos_and_stops_end_it(source, rule, eos_id, asked, options):
    decoder = SpeculativeDecoder(TabularLM(TARGET, eos_id), source, rule)
    check_lossless(decoder, PROMPT, 3, SamplingParams(temperature=1.0, **asked), depth=2, mates=MATES, **options)


def spelling():
    """Return an oracle whose last id reads "<end>", a special token; the others are letters."""
    oracle = TabularLM(TARGET)
    oracle.tokenizer = letters(("a", "b", "<end>"))
    oracle.tokenizer.add_special_tokens([AddedToken("<end>", special=True)])
    return oracle


class Turns:
    """Puts every conversation as the same ids; an answer ends with the last id, or before "bb"."""

    end_ids, stop_strings = (2,), ("bb",)

    def encode(self, messages):
        return PROMPT


@pytest.mark.parametrize("effect", [None, 0.3], ids=["enumerated", "sampled"])
def test_the_law_ends_with_a_special_token_that_a_stop_spells(effect):
    oracle = spelling()
    assert oracle_law(oracle, PROMPT, 3, PLAIN, stop="<end>") == oracle_law(oracle, PROMPT, 3, PLAIN, stop=[[2]])
    check_lossless(SpeculativeDecoder(oracle, Chains(DRAFT, 2)), PROMPT, 3, PLAIN, stop=["<end>", "ab"], effect=effect)


@pytest.mark.parametrize("effect", [None, 0.3], ids=["enumerated", "sampled"])
def test_the_law_of_an_answer_ends_where_its_turn_does(effect):
    oracle, asked = spelling(), [{"role": "user", "content": "?"}]
    oracle.chat_template = Turns()
    decoder = SpeculativeDecoder(oracle, Chains(DRAFT, 2))
    for sampling, ends in ((PLAIN, True), (SamplingParams(temperature=1.0, ignore_eos=True), False)):
        check_lossless(decoder, asked, 3, sampling, effect=effect)
        law = oracle_law(oracle, asked, 3, sampling)
        assert ((2,) in law) == ((1, 1) in law) == ends
    assert (2,) not in oracle_law(oracle, PROMPT, 3, PLAIN), "ids alone are no conversation"


MISREADINGS = {
    "stops are dropped": ("_stop_list", lambda *_: ((), ()), PROMPT, [[0]]),
    "one of two is dropped": ("_stop_list", lambda *_: ((), ((0,),)), PROMPT, [[0], [1]]),
    "special tokens are looked for as text": ("_special_ids", lambda _: {}, PROMPT, "<end>"),
    "turns go on": ("_with_ends_of_turns", lambda _, own: own, [{"role": "user", "content": "?"}], None),
}


@pytest.mark.parametrize("effect", [None, 0.3], ids=["enumerated", "sampled"])
@pytest.mark.parametrize(("name", "misread", "prompt", "stop"), MISREADINGS.values(), ids=MISREADINGS)
def test_a_fault_in_the_engines_reading_of_stops_is_seen(name, misread, prompt, stop, effect, monkeypatch):
    oracle = spelling()
    oracle.chat_template = Turns()
    decoder = SpeculativeDecoder(oracle, Chains(DRAFT, 2))
    monkeypatch.setattr(stop_lists, name, misread)
    with pytest.raises(AssertionError):
        check_lossless(decoder, prompt, 3, PLAIN, stop=stop, effect=effect)


@pytest.mark.parametrize(("source", "rule"), SOURCES.values(), ids=SOURCES)
def test_the_context_limit_ends_the_law(source, rule):
    decoder = SpeculativeDecoder(TabularLM(TARGET, max_context=5), source, rule)
    law = output_law(decoder, PROMPT, 7, SamplingParams(temperature=1.0))
    assert {len(ids) for ids in law} == {3}
    assert total_variation(law, oracle_law(decoder.oracle, PROMPT, 7, SamplingParams(temperature=1.0))) < 1e-12


def test_four_tokens_of_an_order_two_table_with_zeros():
    decoder = SpeculativeDecoder(TabularLM(random_table(3, 2, 23, zeros=0.3)), Chains(DRAFT, 2))
    check_lossless(decoder, PROMPT, 4, PLAIN)


@pytest.mark.parametrize("sampled", [True, False])
@pytest.mark.parametrize("source", [Chains(DRAFT, 2), Chains(DRAFT, 4), RandomTrees(DRAFT)], ids=lambda s: s.name)
def test_coupled_output_is_that_of_plain_decoding(source, sampled):
    oracle = TabularLM(TARGET, eos_id=0)
    sampling = SamplingParams(temperature=0.9, frequency_penalty=0.3) if sampled else SamplingParams()
    check_lossless(SpeculativeDecoder(oracle, source, "coupled"), PROMPT, 24, sampling, mates=MATES, batch_size=5)


def test_the_reference_agrees_with_the_product_of_the_table():
    law = oracle_law(TabularLM(TARGET), PROMPT, 3, SamplingParams(temperature=1.0))
    wanted = sequence_law(TARGET, tuple(PROMPT), 3)
    assert max(abs(mass - wanted[ids]) for ids, mass in law.items()) < 1e-12
    assert len(law) == np.count_nonzero(wanted)


def test_enumeration_leaves_the_decoder_as_it_was_and_needs_few_branches():
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2))
    before = copy.copy(vars(decoder))
    law = output_law(decoder, PROMPT, 3, SamplingParams(temperature=1.0), max_leaves=600)
    assert vars(decoder) == before
    assert abs(sum(law.values()) - 1) < 1e-12


def test_too_many_branches_are_refused():
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 3))
    with pytest.raises(ValueError, match=r"max_leaves=100 .*depth= of check_lossless .*effect= of check_lossless"):
        output_law(decoder, PROMPT, 4, SamplingParams(temperature=1.0), max_leaves=100)


def test_a_model_whose_every_draft_is_banned_keeps_the_law():
    certain = TabularLM([[1.0, 0.0, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0]])
    decoder = SpeculativeDecoder(TabularLM(TARGET), SmallTransformer(certain, 2))
    check_lossless(decoder, PROMPT, 3, SamplingParams(temperature=1.0, logit_bias={0: -float("inf")}))


def test_an_undefined_law_is_the_engines_error():
    decoder = SpeculativeDecoder(TabularLM([[0.0, 1.0], [0.5, 0.5]]), None)
    with pytest.raises(FloatingPointError, match="request 0"):
        output_law(decoder, [0], 2, SamplingParams(temperature=1.0, logit_bias={1: -float("inf")}))


def test_coupled_draws_are_not_enumerated():
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), "coupled")
    with pytest.raises(ValueError, match="coupled"):
        output_law(decoder, PROMPT, 2)


def test_a_lossy_rule_fails_with_its_table():
    decoder = SpeculativeDecoder(TabularLM(TARGET), Chains(DRAFT, 2), Lenient())
    with pytest.raises(AssertionError, match=r"total variation of 0\.[\s\S]*oracle  ids"):
        check_lossless(decoder, PROMPT, 3)


# ---- Longer ones: more tables, longer blocks, deeper trees ----


@pytest.mark.long
@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("seed", range(4))
def test_four_tokens_of_random_tables(seed, name):
    sampling = SAMPLINGS[name]
    # Where the table has zeros, banning an id may leave none.
    zeros = 0.2 * (seed % 2) * (name != "ban")
    target = TabularLM(random_table(3, 2, 300 + seed, zeros=zeros), eos_id=seed if seed < 3 else None)
    model = TabularLM(random_table(3, 2, 400 + seed, zeros=0.2 * (seed > 1)))
    for source, rule in ((SmallTransformer(model, 2), "standard"), (RandomTrees(random_table(3, 2, seed)), None)):
        decoder = SpeculativeDecoder(target, source, rule or "sample_and_match")
        check_lossless(decoder, [seed % 3, 1], 4, sampling, mates=MATES, max_leaves=200_000)


@pytest.mark.long
@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
def test_longer_blocks_than_the_sequence_has_room_for(num_draft_tokens):
    target, model = TabularLM.pair(3, 2, 0.6, seed=7)
    decoder = SpeculativeDecoder(target, SmallTransformer(model, num_draft_tokens))
    check_lossless(decoder, [1, 2], 5, mates=MATES, max_leaves=200_000)


@pytest.mark.long
@pytest.mark.parametrize("temperature", [0.5, 1.0])
@pytest.mark.parametrize("shape", [{}, {"sliding_window": 3}], ids=("full", "window"))
def test_deep_trees_and_four_tokens_through_the_real_cache(shape, temperature):
    source = RandomTrees(random_table(4, 2, 51), max_nodes=3)
    decoder = SpeculativeDecoder(tiny_transformer(**shape), source, "sample_and_match")
    sampling = SamplingParams(temperature=temperature, top_k=3)
    check_lossless(decoder, [3, 1], 4, sampling, mates=MATES, batch_size=500, max_leaves=200_000)
