"""Lookahead drafts, step by step, what the scalar reference drafts: both branches, the pool and the window."""

import numpy as np
import pytest

from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from tests.reference.lookahead import LookaheadRow
from tests.reference.tables import law_after, random_table
from tests.support.drafting.lookahead_spy import SpiedLookahead

TABLE = random_table(5, 2, 41)
PROMPTS = [[1], [2, 3, 2, 3], [0, 4, 0, 4, 0, 1, 0], [4, 4], [1, 2, 3, 4, 0, 1, 2, 3], [3, 0, 2], [2, 2, 2], [1, 0]]
SETTINGS = [
    {"window": 3, "ngram": 3, "guesses": 2, "pool_size": 64, "from_prompt": False},
    {"window": 5, "ngram": 4, "guesses": 5, "pool_size": 64, "from_prompt": True},
    {"window": 4, "ngram": 2, "guesses": 3, "pool_size": 9, "from_prompt": True},
    {"window": 1, "ngram": 5, "guesses": 1, "pool_size": 3, "from_prompt": False},
    {"window": 0, "ngram": 3, "guesses": 3, "pool_size": 64, "from_prompt": True},
    {"window": 6, "ngram": 3, "guesses": 2, "pool_size": 2, "from_prompt": True},
    {"window": 3, "ngram": 4, "guesses": 2, "pool_size": 0, "from_prompt": True},
]
NEW = 25


def predict(ids: list[int]) -> int:
    return int(np.argmax(law_after(TABLE, tuple(ids))))


@pytest.mark.parametrize("temperature", [0.0, 1.5])
@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_drafts_are_those_of_the_scalar_reference(settings, temperature):
    """Eight rows through three slots, to their ends, where budgets shrink; sampled runs leave the window's paths."""
    source = SpiedLookahead(**settings)
    sampling = SamplingParams(temperature=temperature)
    decoder = SpeculativeDecoder(TabularLM(TABLE), source, "multi_draft")
    result = decoder.generate(PROMPTS, NEW, sampling, batch_size=3)
    rows = [LookaheadRow(prompt, predict, **settings) for prompt in PROMPTS]
    num_seen = 0
    for prompt, output, row in zip(PROMPTS, result.tokens, rows, strict=True):
        whole = prompt + output
        at, seen = len(prompt), source.seen[tuple(prompt)]
        for drafted in seen:
            assert drafted.num_committed == at
            after = next((one.num_committed for one in seen if one.num_committed > at), len(whole))
            assert drafted.paths == row.step(len(whole) - at - 1, drafted.max_nodes, whole[at:after])
            at, num_seen = after, num_seen + 1
        assert at == len(whole)
    assert num_seen == result.stats.num_steps
    if settings["pool_size"] > 9:
        assert result.stats.num_accepted > 0


def test_the_drafts_compared_have_many_shapes():
    """Without ragged trees, cut windows and pools that forget the test above would show less than it says."""
    source = SpiedLookahead(**SETTINGS[1])
    SpeculativeDecoder(TabularLM(TABLE), source, "multi_draft").generate(PROMPTS, NEW, batch_size=3)
    shapes = {
        (sum(not scout for _, scout in one.paths), sum(scout for _, scout in one.paths))
        for seen in source.seen.values()
        for one in seen
    }
    verified, scouts = ({shape[i] for shape in shapes} for i in (0, 1))
    assert len(verified) > 5
    assert {0, 5, 14} <= scouts
