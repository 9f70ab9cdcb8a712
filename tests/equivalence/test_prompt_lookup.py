"""Prompt lookup equals a scalar reference, and under the stated settings the public implementations."""

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from drafts import PromptLookup
from tests.reference.lookup import lookup, notebook_lookup
from tests.support.drafting.draft_rows import draft_of

QUICK = {"max_examples": 60, "deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}
ROWS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=24), min_size=1, max_size=5)
SETTINGS = [
    {},
    {"match": "first"},
    {"wrap": True},
    {"match": "first", "wrap": True, "max_ngram": 2},
    {"max_ngram": 5, "min_ngram": 2},
    {"max_ngram": 1},
    {"min_continuation": 3},
    {"min_continuation": 4, "match": "first", "max_ngram": 4},
    {"min_continuation": 2, "wrap": True, "min_ngram": 2},
]


@pytest.mark.parametrize("arguments", SETTINGS, ids=str)
@given(rows=ROWS, budgets=st.lists(st.integers(0, 7), min_size=5, max_size=5))
@settings(**QUICK)
def test_every_row_drafts_what_the_scalar_reference_drafts(arguments, rows, budgets):
    drafted = draft_of(PromptLookup(6, **arguments), rows, budgets[: len(rows)])
    assert drafted == [lookup(row, min(budget, 6), **arguments) for row, budget in zip(rows, budgets, strict=False)]


# Ids that a search of bytes or of characters would miss, or find in others.
ODD_IDS = (0, 1, 256, 0xD800, 0xDFFF, 0x10000, 0x1000000 // 16, 0x110000, 1 << 33)


@given(rows=st.lists(st.lists(st.sampled_from(ODD_IDS), min_size=1, max_size=24), min_size=1, max_size=3))
@settings(**QUICK)
def test_odd_ids_are_found_like_all_others(rows):
    assert draft_of(PromptLookup(6), rows) == [lookup(row, 6) for row in rows]


def public_draft(ids: list[int], size: int, tokens: int) -> list[int]:
    from transformers.generation.candidate_generator import PromptLookupCandidateGenerator

    generator = PromptLookupCandidateGenerator(
        num_output_tokens=tokens, max_matching_ngram_size=size, max_length=len(ids) + 100
    )
    return generator.get_candidates(torch.tensor([ids]))[0][0, len(ids) :].tolist()


@pytest.mark.parametrize("size", [1, 2, 4])
def test_match_first_is_transformers_prompt_lookup(size):
    generator = np.random.default_rng(size)
    rows = [generator.integers(0, 4, n).tolist() for n in generator.integers(2, 30, 60)]
    wanted = [public_draft(row, size, 5) for row in rows]
    assert draft_of(PromptLookup(5, max_ngram=size, match="first"), rows) == wanted
    assert draft_of(PromptLookup(5, max_ngram=size, match="last"), rows) != wanted


def test_a_full_continuation_is_the_notebooks_lookup():
    generator = np.random.default_rng(5)
    rows = [generator.integers(0, 4, n).tolist() for n in generator.integers(4, 30, 80)]
    source = PromptLookup(5, max_ngram=3, match="first", min_continuation=5)
    wanted = [notebook_lookup(row, 3, 5) for row in rows]
    assert draft_of(source, rows) == wanted
    assert any(wanted)
    assert not all(wanted)
