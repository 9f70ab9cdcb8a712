"""Every legal source x rule x batch size x way of sampling keeps the oracle's law; an illegal pair says what is legal.

The quick suite covers every source with every rule, batch size and way of sampling, but not every combination of them;
``make exactness`` runs the whole product.
"""

import itertools
from typing import Any

import pytest

from specdec import RULES, SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless
from tests.exact.test_drafts_law import MATES, PROMPT, SOURCES, TARGET

SAMPLINGS = {
    "greedy": SamplingParams(),
    "sampled": SamplingParams(temperature=1.0),
    "top-p": SamplingParams(temperature=0.9, top_p=0.8),
}
BATCHES = (1, 3, 8)
EXACT = [name for name, rule in RULES.items() if rule.lossless]


def is_legal(source: str, rule: str) -> bool:
    return RULES[rule].trees or not SOURCES[source].offers.trees


PAIRS = [pair for pair in itertools.product(SOURCES, EXACT) if is_legal(*pair)]
ILLEGAL = [pair for pair in itertools.product(SOURCES, EXACT) if not is_legal(*pair)]
PRODUCT = [(*pair, batch, sampling) for pair, batch, sampling in itertools.product(PAIRS, BATCHES, SAMPLINGS)]
# Latin squares: within a pair every batch size and every way of sampling occurs once, shifted from pair to pair.
COVERING = [
    (*pair, batch, list(SAMPLINGS)[(i + j) % len(SAMPLINGS)])
    for i, pair in enumerate(PAIRS)
    for j, batch in enumerate(BATCHES)
]


def check(source: str, rule: str, batch: int, sampling: str) -> None:
    decoder, params = SpeculativeDecoder(TARGET, SOURCES[source], rule), SAMPLINGS[sampling]
    options: dict[str, Any] = {"mates": MATES, "batch_size": batch}
    check_lossless(decoder, PROMPT, 3, params, **options)
    if params.temperature == 0 or RULES[rule].coupled:
        prompts = [PROMPT, *MATES]
        plain = SpeculativeDecoder(TARGET, None, "coupled").generate(prompts, 24, params)
        assert decoder.generate(prompts, 24, params, batch_size=batch).tokens == plain.tokens


@pytest.mark.parametrize(("source", "rule", "batch", "sampling"), COVERING)
def test_the_law_stands(source, rule, batch, sampling):
    check(source, rule, batch, sampling)


@pytest.mark.long
@pytest.mark.parametrize(("source", "rule", "batch", "sampling"), [case for case in PRODUCT if case not in COVERING])
def test_the_law_stands_in_the_rest_of_the_product(source, rule, batch, sampling):
    check(source, rule, batch, sampling)


@pytest.mark.parametrize(("source", "rule"), ILLEGAL)
def test_an_illegal_pair_is_refused_with_a_legal_one(source, rule):
    with pytest.raises(ValueError, match=f"rule '{rule}' judges chains only; use rule='multi_draft'"):
        SpeculativeDecoder(TARGET, SOURCES[source], rule)


def test_the_quick_cases_cover_every_pair_batch_and_way_of_sampling():
    for source, rule in PAIRS:
        mine = [case[2:] for case in COVERING if case[:2] == (source, rule)]
        assert {batch for batch, _ in mine} == set(BATCHES)
        assert {way for _, way in mine} == set(SAMPLINGS)
