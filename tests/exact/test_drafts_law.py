"""The engine keeps the oracle's law with every exported source, and loses it with a dishonest variant of one."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from drafts import NGram, PromptLookup, SmallTransformer, stateless
from oracles.tabular import TabularLM
from specdec import Entropy, Heuristic, SamplingParams, SpeculativeDecoder, Threshold
from specdec.calibration import Calibration, Monotone
from specdec.contracts import Draft
from specdec.draft_length import Tracked
from specdec.drafting import ChainSampler
from specdec.exactness import check_lossless
from tests.contract.draft_rows import StopBelow
from tests.reference.tables import random_table

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET, MODEL = TabularLM(random_table(3, 2, 21)), TabularLM(random_table(3, 2, 22))
NGRAMS = NGram.train([[0, 1, 2, 0, 1, 1, 2, 0, 2, 2, 1, 0]], 3, 3, progress=False).model
CALIBRATION = Calibration(
    0.8, Monotone((0.2, 0.9), (0.3, 0.9)), Monotone((0.0, 0.6, 1.0), (0.0, 0.2, 0.8)), 0.15, 0.05, 1.5
)
LENGTHS = {
    "heuristic": Heuristic(1, max_draft_tokens=2),
    "moving threshold": Threshold(CALIBRATION, max_draft_tokens=2, probe_every=2),
    "constant": Threshold(threshold=0.4, max_draft_tokens=2),
    "tracked": Threshold(threshold=Tracked(0.4, step=0.5, inertia=0.2), per_token=True, max_draft_tokens=2),
    "entropy": Entropy(0.6, max_draft_tokens=2),
    "tracked entropy": Entropy(Tracked(0.55, step=0.3, inertia=0.2), max_draft_tokens=2),
}
SOURCES = {
    "lookup": PromptLookup(2, wrap=True),
    "ngram": NGram(NGRAMS, 2),
    "sampled ngram": NGram(NGRAMS, 2, sampled=True),
    "model": SmallTransformer(MODEL, 2),
    "hot model": SmallTransformer(MODEL, 2, temperature=2.0),
    "greedy model": SmallTransformer(MODEL, 2, temperature=0),
    "model, own length": SmallTransformer(MODEL, length=StopBelow(0.4, max_depth=2)),
    "stateless": stateless(num_draft_tokens=2)(lambda ids, budget: ids[::-1][:budget]),
    **{f"model, {name}": SmallTransformer(MODEL, length=length) for name, length in LENGTHS.items()},
    "sampled ngram, entropy": NGram(NGRAMS, sampled=True, length=LENGTHS["entropy"]),
    "ngram, entropy": NGram(NGRAMS, length=LENGTHS["entropy"]),
    "lookup, threshold": PromptLookup(wrap=True, length=Threshold(threshold=0.45, max_draft_tokens=2)),
}
SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_output_law_is_the_oracles(source, sampling):
    check_lossless(SpeculativeDecoder(TARGET, source), PROMPT, 3, sampling, mates=MATES)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_coupled_output_is_that_of_plain_decoding(source):
    sampling = SamplingParams(temperature=0.9, presence_penalty=0.3)
    check_lossless(SpeculativeDecoder(TARGET, source, "coupled"), PROMPT, 24, sampling, mates=MATES, batch_size=5)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_greedy_output_is_that_of_plain_decoding(source):
    prompts = [PROMPT, *MATES]
    plain = SpeculativeDecoder(TARGET).generate(prompts, 40)
    for batch_size in (1, 3, None):
        assert SpeculativeDecoder(TARGET, source).generate(prompts, 40, batch_size=batch_size).tokens == plain.tokens


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
