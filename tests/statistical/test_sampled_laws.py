"""Sampled runs through the real cache and the real randomness follow the law, at sizes where enumeration ends."""

import dataclasses
from functools import cache

import numpy as np
import pytest
import torch

from drafts import PromptLookup, SmallTransformer
from oracles import TabularLM
from oracles.native import NativeTransformer
from specdec import SamplingParams, SpeculativeDecoder
from specdec.drafting import ChainSampler
from specdec.exactness import oracle_law
from specdec.laws import Laws
from specdec.sampling.randomness import Keyed, seed_keys
from specdec.theory import expected_tokens, lockstep_expected_tokens
from tests.reference.tables import random_table
from tests.support.backends import needed_native
from tests.support.calibration import LEVEL, detectable, p_value
from tests.support.drafting.sources import RandomTrees
from tests.support.models.tiny_models import tiny_transformer

VOCAB, LENGTH, NUM_REQUESTS = 5, 3, 6144
PROMPT, PARAMS = [1, 3, 2], SamplingParams(temperature=0.9, top_p=0.97, presence_penalty=0.2)
EFFECT = 0.13  # total variation of the joint law of three tokens that the test below sees


@cache
def _oracle():
    return tiny_transformer(VOCAB, torch.float32)


@cache
def _law():
    """Return the law of three tokens as a flat array."""
    law = np.zeros((VOCAB,) * LENGTH)
    for ids, mass in oracle_law(_oracle(), PROMPT, LENGTH, PARAMS).items():
        law[ids] = mass
    return law.ravel()


def _counts(source, rule, num_requests=NUM_REQUESTS):
    """Return how often each sequence came, among requests that pass through 512 slots."""
    decoder = SpeculativeDecoder(_oracle(), source, rule)
    result = decoder.generate([PROMPT] * num_requests, LENGTH, PARAMS, seed=17, batch_size=512)
    # A draft of compiled code takes part only if it is drawn there, as in any run.
    assert result.drafter.startswith("native: ") == isinstance(getattr(source, "model", None), NativeTransformer)
    flat = np.ravel_multi_index(np.array(result.tokens).T, (VOCAB,) * LENGTH)
    return np.bincount(flat, minlength=VOCAB**LENGTH).astype(np.float64)


def _native(seed):
    needed_native()
    return tiny_transformer(VOCAB, torch.float32, seed, NativeTransformer)


SOURCES = {
    "small transformer": lambda: (SmallTransformer(tiny_transformer(VOCAB, torch.float32, seed=5), 2), "standard"),
    "native transformer": lambda: (SmallTransformer(_native(5), 2), "standard"),
    "lookup": lambda: (PromptLookup(2, max_ngram=1), "standard"),
    "trees": lambda: (RandomTrees(random_table(VOCAB, 1, 71)), "sample_and_match"),
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=SOURCES)
def test_the_joint_law_of_three_tokens_through_the_real_cache(make):
    assert p_value("joint law through the real cache", _counts(*make()), _law()) > LEVEL


def test_the_stated_effect_is_detectable():
    assert detectable(NUM_REQUESTS, _law()) <= EFFECT


def test_a_source_that_declares_other_laws_is_seen(monkeypatch):
    original = ChainSampler.__call__

    def call(self, *args):
        draft = original(self, *args)
        uniform = torch.full((*draft.tokens.shape, VOCAB), 1 / VOCAB, dtype=torch.float64)
        return dataclasses.replace(draft, laws=Laws.from_probs(uniform))

    monkeypatch.setattr(ChainSampler, "__call__", call)
    counts, law = _counts(*SOURCES["small transformer"](), NUM_REQUESTS // 4), _law()
    assert p_value("joint law through the real cache", counts, law) < LEVEL


ALPHA, GAMMA, NUM_TOKENS = 0.8, 5, 2600


def test_every_row_of_a_batch_emits_what_theory_says():
    target, draft = TabularLM.pair(8, 2, ALPHA, seed=3)
    decoder = SpeculativeDecoder(target, SmallTransformer(draft, num_draft_tokens=GAMMA))
    prompts = [[i, (3 * i) % 8] for i in range(8)]
    records = decoder.generate(prompts, NUM_TOKENS, SamplingParams(temperature=1.0)).records.columns()
    request, emitted = np.array(records["request"]), np.array(records["num_emitted"])
    full = np.array(records["num_drafted"]) == GAMMA
    probs = np.array([ALPHA**i * (1 - ALPHA) for i in range(GAMMA)] + [ALPHA**GAMMA])
    sizes = np.arange(1, GAMMA + 2)
    assert probs @ sizes == pytest.approx(expected_tokens(ALPHA, GAMMA), abs=1e-12)
    assert probs @ sizes == pytest.approx(3.689, abs=5e-4)
    assert lockstep_expected_tokens(ALPHA, GAMMA, 8) == pytest.approx(1.202, abs=5e-4)
    for row in range(8):
        steps = emitted[(request == row) & full]
        counts = np.bincount(steps, minlength=GAMMA + 2)[1:].astype(np.float64)
        assert p_value("emitted per step of a row", counts, probs) > LEVEL
        assert detectable(len(steps), probs) < 0.25
        assert steps.mean() > 3.0, "no row waits for the batch"


def test_coupled_acceptance_is_the_published_formula():
    p, q = np.array([0.6, 0.2, 0.1, 0.1]), np.array([0.7, 0.2, 0.05, 0.05])
    rate = sum(1 / np.maximum(p / p[x], q / q[x]).sum() for x in range(4))
    assert rate == pytest.approx(0.8818, abs=5e-5)
    decoder = SpeculativeDecoder(TabularLM(p), SmallTransformer(TabularLM(q), num_draft_tokens=1), "coupled")
    records = decoder.generate([[0]] * 160, 96, SamplingParams(temperature=1.0), seed=5).records.columns()
    full = np.array(records["num_drafted"]) == 1
    accepted = float(np.array(records["num_accepted"])[full].sum())
    counts = np.array([accepted, full.sum() - accepted])
    probs = np.array([rate, 1 - rate])
    assert p_value("coupled acceptance", counts, probs) > LEVEL
    assert detectable(int(full.sum()), probs) < 0.05


NAMES = {
    "nodes": lambda r: (r, 0, "a", r, 1, "a"),
    "purposes": lambda r: (r, 0, "a", r, 0, "b"),
    "stages": lambda r: (r, 0, "a", r.extend("inner"), 0, "a"),
    "members": lambda r: (r.extend(0), 0, "a", r.extend(1), 0, "a"),
}


@pytest.mark.parametrize("pair", NAMES.values(), ids=NAMES)
def test_draws_of_different_names_are_independent(pair):
    law = np.array([0.5, 0.3, 0.15, 0.05])
    randomness = Keyed.at(seed_keys([(1, i) for i in range(20_000)]), np.full(20_000, 9))
    laws = Laws(torch.from_numpy(law[None]), torch.zeros(20_000, dtype=torch.int64), torch.zeros(20_000).long())
    one, node_one, purpose_one, two, node_two, purpose_two = pair(randomness)
    first = one.choose(laws, node_one, 0, purpose_one).numpy()
    second = two.choose(laws, node_two, 0, purpose_two).numpy()
    counts = np.bincount(4 * first + second, minlength=16).astype(np.float64)
    assert p_value("independence of draws", counts, np.outer(law, law).ravel()) > LEVEL
    assert detectable(20_000, np.outer(law, law).ravel()) < 0.05
