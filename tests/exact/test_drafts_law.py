"""The engine keeps the oracle's law with every exported source, and loses it with a dishonest variant of one."""

from dataclasses import replace
from typing import Any

import pytest

from drafts import EarlyExit, Lookahead, Merged, NGram, PromptLookup, Quantized, SmallTransformer, Staged
from oracles.tabular import TabularLM
from specdec import Grown, Kary, Paths, SamplingParams, SpeculativeDecoder, Threshold
from specdec.contracts import Draft, DraftSource, Oracle
from specdec.drafting import ChainSampler
from specdec.exactness import check_lossless
from tests.reference.tables import random_table
from tests.support.draft_rows import StopBelow
from tests.support.registry import ENUMERATED, POLICIES, SMALL_SHAPES, THREE_IDS, temperature_of

PROMPT, MATES = [1, 2], [[0], [1, 2, 0, 1], [2, 2, 1]]
TARGET = TabularLM(random_table(3, 2, 21))
MODEL, OTHER, LAYERED, NGRAMS = THREE_IDS.model, THREE_IDS.other, THREE_IDS.layered, THREE_IDS.ngrams
VIEW = THREE_IDS.view
LENGTHS = {name: short for name, (_, short) in POLICIES.items()}
SOURCES = {
    **ENUMERATED,
    "lookup that wraps": PromptLookup(2, wrap=True),
    "sampled ngram": NGram(NGRAMS, 2, sampled=True),
    "ngram, tree": NGram(NGRAMS, tree=Paths([(0, 0), (1,)])),
    "sampled ngram, grown": NGram(NGRAMS, sampled=True, tree=Grown(3, 2)),
    "hot model": SmallTransformer(MODEL, 2, temperature=2.0),
    "greedy model": SmallTransformer(MODEL, 2, temperature=0),
    "model, own length": SmallTransformer(MODEL, length=StopBelow(0.4, max_depth=2)),
    "greedy model, binary tree": SmallTransformer(MODEL, tree=Kary(2, 2), temperature=0),
    "hot early exit": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=2.0),
    "greedy early exit": EarlyExit(LAYERED, 1, num_draft_tokens=2, temperature=0),
    "early exit, own length": EarlyExit(LAYERED, 1, length=StopBelow(0.4, max_depth=2)),
    "hot view": Quantized(LAYERED, VIEW, 2, temperature=2.0),
    "greedy view": Quantized(LAYERED, VIEW, 2, temperature=0),
    **{f"view, {name}": Quantized(LAYERED, VIEW, length=length) for name, length in LENGTHS.items()},
    "small lookahead": Lookahead(window=2, ngram=3, guesses=2),
    "lookahead, window alone": Lookahead(window=3, ngram=2, guesses=3, pool_size=4, from_prompt=False),
    "staged, one inside": Staged(MODEL, NGram(NGRAMS, 1), 2),
    "staged, drawn inside": Staged(MODEL, SmallTransformer(OTHER, 1), 2),
    "staged, own length": Staged(MODEL, PromptLookup(1), length=StopBelow(0.4, max_depth=2)),
    "staged, heuristic length": Staged(MODEL, PromptLookup(1), length=LENGTHS["heuristic"]),
    "staged twice": Staged(MODEL, Staged(OTHER, NGram(NGRAMS, 1), 1), 2),
    "staged with siblings": Staged(MODEL, NGram(NGRAMS, 1), 1, width=2),
    "staged, greedy": Staged(MODEL, SmallTransformer(OTHER, 1), 2, temperature=0),
    "two models merged": Merged([SmallTransformer(MODEL, 1), SmallTransformer(OTHER, 1)]),
    "merged, drawn and chosen": Merged([SmallTransformer(MODEL, 1), NGram(NGRAMS, 2)]),
    **{f"model, {name}": SmallTransformer(MODEL, length=length) for name, length in LENGTHS.items()},
    "sampled ngram, entropy": NGram(NGRAMS, sampled=True, length=LENGTHS["entropy"]),
    "ngram, entropy": NGram(NGRAMS, length=LENGTHS["entropy"]),
    "lookup, threshold": PromptLookup(wrap=True, length=Threshold(threshold=0.45, max_draft_tokens=2)),
    **{
        f"model, {name}": SmallTransformer(MODEL, tree=shape, temperature=temperature_of(shape))
        for name, shape in SMALL_SHAPES.items()
    },
}
SAMPLINGS = {
    "plain": SamplingParams(temperature=1.0),
    "penalties": SamplingParams(temperature=0.8, top_p=0.9, repetition_penalty=1.3, frequency_penalty=0.5),
}


def target_of(source: DraftSource) -> Oracle:
    """Return the oracle to decode with: a source's own, where it drafts on its cache."""
    return source.needs.cache_of or TARGET


def rule_of(source: DraftSource) -> str:
    """Return a rule that reads the source's laws."""
    return "multi_draft" if source.offers.trees else "standard"


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_the_output_law_with_penalties_is_the_oracles(source):
    decoder = SpeculativeDecoder(target_of(source), source, rule_of(source))
    check_lossless(decoder, PROMPT, 3, SAMPLINGS["penalties"], depth=2, mates=MATES)


@pytest.mark.parametrize("source", SOURCES.values(), ids=SOURCES)
def test_coupled_output_with_penalties_is_that_of_plain_decoding(source):
    sampling = SamplingParams(temperature=0.9, presence_penalty=0.3)
    decoder = SpeculativeDecoder(target_of(source), source, "coupled")
    check_lossless(decoder, PROMPT, 24, sampling, mates=MATES, batch_size=5, num_seeds=8)


def dropping(self: ChainSampler, *arguments: Any) -> Draft:
    """Drop the doubtful token that ended a chain, although it was drawn."""
    draft = CALL(self, *arguments)
    if not draft.width:
        return draft
    is_low = draft.confidence.gather(1, (draft.num_nodes - 1).clamp(min=0).unsqueeze(1)).squeeze(1) < 0.4
    return replace(draft, num_nodes=(draft.num_nodes - is_low.long()).clamp(min=0))


CALL = ChainSampler.__call__


def test_a_policy_that_drops_a_drawn_token_moves_the_law(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ChainSampler, "__call__", dropping)
    decoder = SpeculativeDecoder(TARGET, SOURCES["model, own length"])
    with pytest.raises(AssertionError, match="off by a total variation"):
        check_lossless(decoder, PROMPT, 3, SAMPLINGS["plain"], mates=MATES)
