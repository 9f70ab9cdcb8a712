"""The recipe for a length policy works as it is written."""

import pytest

from drafts import SmallTransformer
from oracles.tabular import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from specdec.traces import record_chains, replay
from tests.support.pages import run_recipe


@pytest.fixture(scope="module")
def policy():
    return run_recipe("draft_length.md", 3)["Cautious"]


def test_its_bound_falls_after_a_rejection_and_rises_after_full_acceptance(policy):
    target, model = TabularLM.pair(6, 2, 0.7, 3)
    sampling = SamplingParams(temperature=1.0)
    result = SpeculativeDecoder(target, SmallTransformer(model, length=policy(6))).generate([[1], [2]], 200, sampling)
    used = [depth for depth, count in enumerate(result.stats.steps_by_depth) if count]
    assert used[0] == 0
    assert len(used) > 2
    assert max(used) <= 6


def test_replays_ask_it_as_a_run_does(policy):
    target, model = TabularLM.pair(6, 2, 0.7, 3)

    def make(length) -> DraftSource:
        return SmallTransformer(model, length=length)

    dense = record_chains(target, make, [[1, 2], [3]], 6, 60, entropies=True)
    stats = SpeculativeDecoder(target, make(policy(6))).generate([[1, 2], [3]], 60).stats
    assert replay(dense, length=policy(6)).num_steps == stats.num_steps
