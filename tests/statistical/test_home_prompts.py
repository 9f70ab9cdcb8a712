"""What two strategies promise on the shipped prompts: counts, not times."""

from functools import cache
from pathlib import Path

import pytest

import oracles
from drafts import Lookahead
from experiments.strategies import STRATEGIES
from experiments.strategies.strategy import default_of
from specdec import DraftSource, SpeculativeDecoder
from specdec.prompts import load_prompts
from specdec.stats.report.intervals import Interval, paired_ratio

pytestmark = pytest.mark.long
PROMPTS = Path(__file__).parents[2] / "experiments" / "prompts" / "code.jsonl"


@cache
def _oracle():
    return oracles.load("code")


def requests_of(draft: DraftSource):
    """Return the statistics of each of 24 prompts, decoded greedily."""
    texts = [prompt.text for prompt in load_prompts(str(PROMPTS), None, 24)]
    rule = "multi_draft" if draft.offers.trees else "standard"
    return SpeculativeDecoder(_oracle(), draft, rule).generate(texts, 48, batch_size=8).stats.requests


def block_efficiency(draft: DraftSource) -> Interval:
    found = requests_of(draft)
    return paired_ratio([one.num_emitted for one in found], [one.num_steps for one in found])


def test_lookahead_emits_more_than_with_an_empty_pool():
    empty = block_efficiency(Lookahead(pool_size=0))
    assert empty.value == 1
    for draft in (Lookahead(), Lookahead(from_prompt=False)):
        assert block_efficiency(draft).low > 1


def test_an_early_exit_is_accepted_more_often_than_an_ngram():
    def acceptance(name: str) -> float:
        run = {"oracle": "code", "device": "cpu", "dtype": None}
        own = {option.key: default_of(name, option, run) for option in STRATEGIES[name].options}
        draft = STRATEGIES[name].build({**own, **run, "num_draft_tokens": 5}, _oracle())
        found = requests_of(draft)
        accepted, recovered = (sum(getattr(one, count) for one in found) for count in ("num_accepted", "num_recovered"))
        return accepted / (accepted + recovered)

    assert acceptance("early_exit") > acceptance("ngram")
