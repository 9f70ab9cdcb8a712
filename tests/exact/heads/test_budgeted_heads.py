"""Heads whose drafts a budget across rows cuts: their drafts, tokens and joint law are as they ought to be."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from drafts import BlockDrafter, Eagle3, Medusa
from specdec import SamplingParams, SharedBudget, SpeculativeDecoder
from specdec.contracts import WatchedSession, WatchedSource
from specdec.exactness import oracle_law, output_law, product_law, total_variation
from tests.support.models.eagle3_heads import tiny_eagle3
from tests.support.models.head_folders import tiny_block, tiny_medusa
from tests.support.models.tiny_models import tiny_transformer

PLAIN = SamplingParams(temperature=1.0)
PROMPTS = [[1, 2, 3, 1], [0, 2], [3, 3, 1], [2, 1]]
ORACLE = tiny_transformer(seed=3)
HEADS = {
    "Eagle3": lambda oracle, k: Eagle3(tiny_eagle3(oracle), k),
    "BlockDrafter": lambda oracle, k: BlockDrafter(tiny_block(oracle, "dspark gated"), k),
    "BlockDrafter, independent": lambda oracle, k: BlockDrafter(tiny_block(oracle, "dflash"), k),
    "Medusa": lambda oracle, k: Medusa(tiny_medusa(oracle), k),
}


@dataclass
class Keeping(WatchedSession):
    """A session that keeps the law of each first token by the ids that it follows."""

    laws: dict[tuple[int, ...], Any]

    def propose(self, rows, context, budget, randomness):
        draft = self.inner.propose(rows, context, budget, randomness)
        for row in np.flatnonzero(draft.num_nodes.numpy() > 0):
            ids = tuple(context.ids[row, : context.num_committed[row]].tolist())
            self.laws[ids] = draft.node_laws[row, 0].dense().numpy()
        return draft


def laws_along(source, prompts, length, batch_size=3, **options):
    """Return the laws of first tokens along a run, by the ids that they follow, and its result."""
    laws = {}
    watched = WatchedSource(source, lambda session, *_: Keeping(session, laws))
    return laws, SpeculativeDecoder(ORACLE, watched, **options).generate(prompts, length, PLAIN, batch_size=batch_size)


@pytest.mark.parametrize("max_nodes", [1, 3])
@pytest.mark.parametrize("name", HEADS)
def test_heads_draft_after_a_cut_what_they_draft_after_the_same_prompt(name, max_nodes):
    source = HEADS[name](ORACLE, 3)
    laws, result = laws_along(source, PROMPTS, 14, budget=SharedBudget(max_nodes))
    assert 0 < result.stats.num_accepted < result.stats.num_drafted <= max_nodes * result.stats.target_calls
    # Each in a row of its own; of two tokens the first step alone drafts.
    fresh, _ = laws_along(source, [list(ids) for ids in laws], 2, batch_size=None)
    assert len(fresh) > 20
    for ids, law in fresh.items():  # after one id some heads know nothing
        assert np.abs(laws[ids] - law).max() < 1e-12, ids


@pytest.mark.parametrize("name", HEADS)
def test_greedy_and_coupled_tokens_are_plain_decodings(name):
    source = HEADS[name](ORACLE, 3)
    for rule, sampling in (("standard", SamplingParams()), ("coupled", PLAIN)):
        wanted = SpeculativeDecoder(ORACLE, None, rule).generate(PROMPTS, 14, sampling).tokens
        shared = SpeculativeDecoder(ORACLE, source, rule, budget=SharedBudget(2))
        assert shared.generate(PROMPTS, 14, sampling, batch_size=3).tokens == wanted


@pytest.mark.long
@pytest.mark.parametrize("name", HEADS)
def test_the_joint_law_of_two_rows_is_the_product(name):
    oracle, prompts = tiny_transformer(2, seed=3), ([1, 0], [0, 0, 1])
    decoder = SpeculativeDecoder(oracle, HEADS[name](oracle, 1), budget=SharedBudget(1))
    wanted = product_law([oracle_law(oracle, prompt, 2, PLAIN) for prompt in prompts])
    assert total_variation(output_law(decoder, prompts, 2, PLAIN, rows=2), wanted) < 1e-12
