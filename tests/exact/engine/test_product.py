"""Every legal source x rule x batch size x way of sampling keeps the oracle's law; an illegal pair says what is legal.

A source has parts, as its name tells: what drafts, its shape of trees, its lengths. The quick suite has every part with
every rule, batch size and way of sampling, and every source, but few combinations. It enumerates two tokens, not three,
where branches are very many or another rule's numbers the same (``is_shortened``); ``make exactness`` runs the rest,
three tokens long.
"""

import functools
import itertools
from dataclasses import replace
from typing import Any

import pytest

from specdec import RULES, SamplingParams, SpeculativeDecoder
from specdec.contracts import Draft, Oracle
from specdec.drafting import ChainSampler
from specdec.exactness import check_lossless
from tests.support.drafting.law_sources import MATES, PENALTIES, PROMPT, SOURCES, TARGET, target_of
from tests.support.pairwise import WANTS_LONG, cover

# The first ones stand in most combinations of the quick suite.
SAMPLINGS = {
    "penalties": PENALTIES,
    "top-p": SamplingParams(temperature=0.9, top_p=0.8),
    "sampled": SamplingParams(temperature=1.0),
    "greedy": SamplingParams(),
}
BATCHES = (8, 3, 1)
PROMPTS = [PROMPT, *MATES, [0, 1, 2] * 5, [1], [2, 0], [0, 0, 1]]
NEW = 10
EXACT = [name for name, rule in RULES.items() if rule.lossless]


def is_legal(source: str, rule: str) -> bool:
    return RULES[rule].trees or not SOURCES[source].offers.trees


PAIRS = [pair for pair in itertools.product(SOURCES, EXACT) if is_legal(*pair)]
ILLEGAL = [pair for pair in itertools.product(SOURCES, EXACT) if not is_legal(*pair)]
AXES = (tuple(SOURCES), tuple(EXACT), BATCHES, tuple(SAMPLINGS))
PRODUCT = [case for case in itertools.product(*AXES) if is_legal(*case[:2])]


def meetings(case: tuple[str, str, int, str]) -> set[object]:
    """Return its source, and what occurs together in a case, two and two: parts of the source and the other axes."""
    source, *others = case
    parts = [("part", part) for part in source.split(", ")]
    return {source, *itertools.combinations([*parts, *enumerate(others)], 2)}


COVERING = cover(PRODUCT, meetings)


def is_shortened(source: str, rule: str, batch: int, sampling: str) -> bool:
    """Tell whether two tokens are enumerated, not three: where laws are dear and prove little.

    A rule that draws at every node makes many times the branches, and proves the least: it is exact for any proposal.
    Trees branch much too, and one row at a time takes longest; their laws at three tokens stand in wider batches. On
    chains the numbers of "multi_draft" are those of "standard", and those of "traversal" of "block": for these
    three tokens are enumerated.
    """
    if not SOURCES[source].offers.trees and rule in ("multi_draft", "traversal"):
        return sampling != "greedy"
    return sampling == "sampled" and (rule == "sample_and_match" or (batch == 1 and SOURCES[source].offers.trees))


SHORTENED = {case for case in COVERING if is_shortened(*case)}
WHOLE = {*COVERING} - SHORTENED
LONG = [case for case in PRODUCT if WANTS_LONG and case not in WHOLE]


@functools.cache
def plain_tokens(target: Oracle, sampling: str) -> list[list[int]]:
    return SpeculativeDecoder(target, None, "coupled").generate(PROMPTS, NEW, SAMPLINGS[sampling]).tokens


def check(source: str, rule: str, batch: int, sampling: str, length: int = 3) -> None:
    target, params = target_of(SOURCES[source]), SAMPLINGS[sampling]
    decoder = SpeculativeDecoder(target, SOURCES[source], rule)
    if not RULES[rule].coupled:
        check_lossless(decoder, PROMPT, length, params, depth=length - 1, mates=MATES, batch_size=batch)
    if params.temperature == 0 or RULES[rule].coupled:
        made = decoder.generate(PROMPTS, NEW, params, batch_size=batch)
        assert made.tokens == plain_tokens(target, sampling)


@pytest.mark.parametrize(("source", "rule", "batch", "sampling"), COVERING)
def test_the_law_stands(source, rule, batch, sampling):
    check(source, rule, batch, sampling, 2 if (source, rule, batch, sampling) in SHORTENED else 3)


@pytest.mark.long
@pytest.mark.parametrize(("source", "rule", "batch", "sampling"), LONG)
def test_the_law_stands_in_the_rest_of_the_product(source, rule, batch, sampling):
    check(source, rule, batch, sampling)


@pytest.mark.parametrize(("source", "rule"), ILLEGAL)
def test_an_illegal_pair_is_refused_with_a_legal_one(source, rule):
    with pytest.raises(ValueError, match=f"rule '{rule}' judges chains only; use rule='multi_draft'"):
        SpeculativeDecoder(target_of(SOURCES[source]), SOURCES[source], rule)


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
    decoder = SpeculativeDecoder(TARGET, SOURCES["SmallTransformer, own length"])
    with pytest.raises(AssertionError, match="off by a total variation"):
        check_lossless(decoder, PROMPT, 3, SAMPLINGS["sampled"], mates=MATES)
