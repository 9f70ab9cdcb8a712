"""The engine keeps the oracle's law with every exported source, and loses it with a dishonest variant of one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import Cascade, Merged, NGram, PromptLookup, SmallTransformer, Staged, stateless
from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft
from specdec.drafting import ChainSampler
from specdec.exactness import check_lossless
from tests.contract.draft_rows import StopBelow
from tests.reference.tables import random_table

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET, MODEL, OTHER = (TabularLM(random_table(3, 2, seed)) for seed in (21, 22, 23))
NGRAMS = NGram.train([[0, 1, 2, 0, 1, 1, 2, 0, 2, 2, 1, 0]], 3, 3, progress=False).model
SOURCES = {
    "lookup": PromptLookup(2, wrap=True),
    "ngram": NGram(NGRAMS, 2),
    "sampled ngram": NGram(NGRAMS, 2, sampled=True),
    "model": SmallTransformer(MODEL, 2),
    "hot model": SmallTransformer(MODEL, 2, temperature=2.0),
    "greedy model": SmallTransformer(MODEL, 2, temperature=0),
    "model, own length": SmallTransformer(MODEL, length=StopBelow(0.4, max_depth=2)),
    "stateless": stateless(num_draft_tokens=2)(lambda ids, budget: ids[::-1][:budget]),
    "staged": Staged(MODEL, NGram(NGRAMS, 1), 2),
    "staged, drawn inside": Staged(MODEL, SmallTransformer(OTHER, 1), 2),
    "staged, own length": Staged(MODEL, PromptLookup(1), length=StopBelow(0.4, max_depth=2)),
    "staged twice": Staged(MODEL, Staged(OTHER, NGram(NGRAMS, 1), 1), 2),
    "staged with siblings": Staged(MODEL, NGram(NGRAMS, 1), 1, width=2),
    "staged, greedy": Staged(MODEL, SmallTransformer(OTHER, 1), 2, temperature=0),
    "cascade": Cascade([PromptLookup(2, min_ngram=2), SmallTransformer(MODEL, 2)]),
    "two models merged": Merged([SmallTransformer(MODEL, 1), SmallTransformer(OTHER, 1)]),
    "merged, chosen and drawn": Merged([PromptLookup(1), SmallTransformer(MODEL, 1)]),
    "merged, drawn and chosen": Merged([SmallTransformer(MODEL, 1), NGram(NGRAMS, 2)]),
}


def rule_for(source):
    return "multi_draft" if source.offers.trees else "standard"


SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_output_law_is_the_oracles(source, sampling):
    check_lossless(SpeculativeDecoder(TARGET, source, rule_for(source)), PROMPT, 3, sampling, mates=MATES)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_coupled_output_is_that_of_plain_decoding(source):
    sampling = SamplingParams(temperature=0.9, presence_penalty=0.3)
    check_lossless(SpeculativeDecoder(TARGET, source, "coupled"), PROMPT, 24, sampling, mates=MATES, batch_size=5)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_greedy_output_is_that_of_plain_decoding(source):
    prompts = [PROMPT, *MATES]
    plain = SpeculativeDecoder(TARGET).generate(prompts, 40)
    for batch_size in (1, 3, None):
        decoder = SpeculativeDecoder(TARGET, source, rule_for(source))
        assert decoder.generate(prompts, 40, batch_size=batch_size).tokens == plain.tokens


def dropping(self: ChainSampler, *arguments: Any) -> tuple[Draft, Any]:
    """Drop the doubtful token that ended a chain, although it was drawn."""
    draft, counts = CALL(self, *arguments)
    if not draft.width:
        return draft, counts
    is_low = draft.confidence.gather(1, (draft.num_nodes - 1).clamp(min=0).unsqueeze(1)).squeeze(1) < 0.4
    counts = np.maximum(counts - is_low.numpy(), 0)
    return replace(draft, num_nodes=torch.from_numpy(counts)), counts


CALL = ChainSampler.__call__


def test_a_policy_that_drops_a_drawn_token_moves_the_law(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ChainSampler, "__call__", dropping)
    decoder = SpeculativeDecoder(TARGET, SOURCES["model, own length"])
    with pytest.raises(AssertionError, match="off by a total variation"):
        check_lossless(decoder, PROMPT, 3, SAMPLINGS["plain"], mates=MATES)
