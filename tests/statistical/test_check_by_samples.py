"""``check_lossless`` by samples: its rate of false alarms, what it sees, and the real oracle through its real cache."""

from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import oracles
from drafts import PromptLookup, SmallTransformer
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.exactness import check_lossless, oracle_law
from specdec.exactness.goodness import samples_for
from specdec.exactness.oracle_law import PlainRequest, plain_logits
from specdec.exactness.sampled_law import MOST_CELLS, Cells
from tests.reference.tables import random_table
from tests.support.calibration import LEVEL
from tests.support.models.tiny_models import tiny_transformer

PLAIN_LAWS = import_module("specdec.exactness.oracle_law")  # the package calls a function so
VOCAB = 40
TABLE = random_table(VOCAB, 1, 91)
PLAIN = SamplingParams(temperature=1.0)
EFFECT = 0.15
MANY = 512  # rows in flight: fewer steps of as many requests


def decoder(table=TABLE, rule="standard"):
    return SpeculativeDecoder(TabularLM(table), SmallTransformer(TabularLM(random_table(VOCAB, 1, 92)), 2), rule)


def alarms(made, seeds, level, length=3, effect=EFFECT):
    """Return how many of so many seeds end in an alarm."""
    found = 0
    for seed in range(seeds):
        try:
            options = {"effect": effect, "level": level, "batch_size": MANY, "seed": seed}
            check_lossless(made, [3], length, PLAIN, depth=length - 1, **options)
        except AssertionError:
            found += 1
    return found


def test_false_alarms_come_no_more_often_than_stated():
    # Of 40 tests at 0.1, more than 12 come with a probability below 1e-4, however few requests are sampled.
    assert alarms(decoder(), 40, 0.1, effect=0.3) <= 12


def test_a_rare_id_is_no_alarm():
    made = SpeculativeDecoder(TabularLM(np.array([0.6, 0.4 - 1.1e-4, 1.1e-4])))
    for seed in range(40):
        check_lossless(made, [0], 1, PLAIN, effect=0.3, batch_size=MANY, seed=seed)


def biased(law, effect):
    """Return a law at that total variation: of all such, the one whose chi-square distance is least."""
    order = np.argsort(-law)
    upper = order[: int(np.searchsorted(np.cumsum(law[order]), 0.5)) + 1]
    part = np.isin(np.arange(len(law)), upper)
    return law + effect * np.where(part, law / law[part].sum(), -law / law[~part].sum())


def test_a_bias_of_the_stated_size_is_seen(monkeypatch):
    law = np.full(20, 0.05)
    made = SpeculativeDecoder(TabularLM(biased(law, EFFECT)), PromptLookup(2, max_ngram=1))
    monkeypatch.setattr(PLAIN_LAWS, "plain_logits", lambda _, prefixes: plain_logits(TabularLM(law), prefixes))
    # Fewer come with a probability below 2e-3 at a power of 0.99.
    assert alarms(made, 24, 1e-6, length=1) >= 22
    with pytest.raises(AssertionError, match="do not follow the oracle's law: p-value"):
        check_lossless(made, [3], 1, PLAIN, depth=0, effect=EFFECT)


def test_dishonest_drafts_are_seen_after_several_tokens(monkeypatch):
    other = TabularLM(random_table(VOCAB, 1, 92))
    monkeypatch.setattr(PLAIN_LAWS, "plain_logits", lambda _, prefixes: plain_logits(other, prefixes))
    with pytest.raises(AssertionError, match=r"came +expected"):
        check_lossless(decoder(), [3], 3, PLAIN, effect=EFFECT)


def test_an_id_of_probability_0_fails_at_once(monkeypatch):
    law = np.array([0.6, 0.4, 0.0])
    made = SpeculativeDecoder(TabularLM(np.array([0.5995, 0.4, 0.0005])))
    monkeypatch.setattr(PLAIN_LAWS, "plain_logits", lambda _, prefixes: plain_logits(TabularLM(law), prefixes))
    with pytest.raises(AssertionError, match=r"cannot come from the oracle: an id of probability 0"):
        check_lossless(made, [0], 3, PLAIN, effect=0.05, batch_size=MANY)


@pytest.mark.parametrize(
    ("change", "stop"),
    [
        (lambda ids: [*ids, 1], None),
        (lambda ids: ids[:-1], None),
        (lambda ids: [2, *ids[1:]] if len(ids) > 1 else ids, None),  # goes on after EOS
        (lambda ids: [1, 1, *ids[2:]] if len(ids) > 2 else ids, [(1, 1)]),  # and after a stop
    ],
)
def test_outputs_that_end_too_late_or_too_early_fail(change, stop, monkeypatch):
    made = SpeculativeDecoder(TabularLM(random_table(3, 2, 93), eos_id=2))
    generate = made.generate
    monkeypatch.setattr(made, "generate", lambda *args: SimpleNamespace(tokens=[*map(change, generate(*args).tokens)]))
    with pytest.raises(AssertionError, match="ends where neither EOS, stop nor length ends it"):
        check_lossless(made, [0], 4, PLAIN, stop=stop, effect=0.2)


def test_cells_partition_all_outputs():
    oracle = TabularLM(random_table(3, 2, 93), eos_id=2)
    cells = Cells.of(PlainRequest(oracle, [0], PLAIN, []), 4, 0.01, 12)
    assert sum(cells.probs) == pytest.approx(1, abs=1e-12)
    wanted = dict.fromkeys(range(len(cells.probs)), 0.0)
    for ids, mass in oracle_law(oracle, [0], 4, PLAIN).items():
        wanted[cells.number(ids)] += mass
    assert list(wanted.values()) == pytest.approx(cells.probs, abs=1e-12)
    assert 6 <= len(cells.probs) <= 14
    assert len(cells.others) == len(cells.laws)


SAMPLINGS = {
    "plain": PLAIN,
    "warped": SamplingParams(temperature=0.8, top_p=0.9, presence_penalty=0.5, min_new_tokens=2),
}


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
def test_the_embedded_oracle_with_lookups(sampling):
    oracle = oracles.load("code-draft-tiny")
    made = SpeculativeDecoder(oracle, PromptLookup(4, max_ngram=2))
    check_lossless(
        made, "def f(x):\n    return f(x", 4, sampling, depth=3, effect=0.1, level=LEVEL, mates=["x = [1, 2, 1,"]
    )


def test_a_draft_model_through_the_real_cache_with_stops():
    target, draft = tiny_transformer(50, torch.float32), tiny_transformer(50, torch.float32, seed=5)
    made = SpeculativeDecoder(target, SmallTransformer(draft, 3))
    check_lossless(made, [1, 2, 3], 4, PLAIN, stop=[(7,)], effect=0.1, level=LEVEL, batch_size=MANY)


def test_greedy_outputs_are_one_cell():
    check_lossless(decoder(), [3], 4, SamplingParams(), effect=0.5)
    made = SpeculativeDecoder(TabularLM(TABLE))
    assert len(Cells.of(PlainRequest(made.oracle, [3], SamplingParams(), []), 4, 0.01, 8).cells) == 1


def test_the_number_of_requests_follows_the_effect():
    sizes = [samples_for(effect, MOST_CELLS, 1e-6, 0.99) for effect in (0.05, 0.1)]
    assert sizes[0] == pytest.approx(4 * sizes[1], rel=0.01)
    assert 11_000 < sizes[0] < 14_000


@pytest.mark.parametrize("name", ["effect", "level"])
@pytest.mark.parametrize("value", [0, 1, -0.5])
def test_impossible_sizes_are_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value}; give a number between 0 and 1"):
        check_lossless(decoder(), [3], 3, PLAIN, **{"effect": 0.1, name: value})
