"""The engine keeps the oracle's law with every exported source, and loses it with a dishonest variant of one."""

from dataclasses import replace
from typing import Any

import pytest

from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, DraftSource
from specdec.drafting import ChainSampler
from specdec.exactness import check_lossless
from tests.support.law_sources import (
    MATES,
    PROMPT,
    SAMPLINGS,
    SOURCES,
    TARGET,
    target_of,
)


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
