"""The drafting model: its laws, its passes, its cache, and where it stops."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from drafts import SmallTransformer
from oracles import TabularLM, Transformer, TransformerConfig
from specdec import Kary, SpeculativeDecoder
from specdec.drafting.lengths import Fixed
from specdec.sampling import SamplingParams
from tests.support.drafting.draft_rows import Rows, StopBelow, chains
from tests.support.models.watched_models import PROMPTS, SAMPLED, Watched, all_models, rescored, transformer


@all_models
@pytest.mark.parametrize("temperature", [None, 1.7, 0.0])
def test_laws_are_those_of_one_pass_over_everything(make, temperature):
    model = make()
    rows = Rows(SmallTransformer(model, 5, temperature=temperature), sampling=SAMPLED)
    rows.seat(PROMPTS)
    rows.propose(dict.fromkeys(PROMPTS, 9))
    rows.settle({0: [1, 2], 1: [5], 2: [0, 0, 0], 3: [3]})
    rows.prompt_lengths = {row: len(ids) for row, ids in rows.ids.items()}
    draft = rows.propose({0: 5, 1: 3, 2: 9, 3: 1})
    assert draft.num_nodes.tolist() == [5, 3, 5, 1]
    assert (draft.laws is None) == (temperature == 0)
    laws = []
    for row, chain in enumerate(chains(draft)):
        declared = draft.node_laws[row, : len(chain)].dense(6)
        laws.append(rescored(model, rows.ids[row], chain, temperature))
        torch.testing.assert_close(declared, laws[-1], rtol=1e-9, atol=1e-12)
    assert torch.cat(laws).std(0).max() > 0.1, "laws that do not depend on the context show nothing"


def test_catching_up_takes_two_tokens_after_full_acceptance_and_one_otherwise():
    model = Watched(TabularLM.random(6, 2, 3))
    rows = Rows(SmallTransformer(model, 3, temperature=0))
    rows.seat(PROMPTS)
    drafted = chains(rows.propose(dict.fromkeys(PROMPTS, 9)))
    assert model.passes[-3:] == [{0: 1, 1: 1, 2: 1, 3: 1}] * 3
    model.passes.clear()
    others = [(chain[0] + 1) % 6 for chain in drafted]
    rows.settle(
        {0: [*drafted[0], 0], 1: [others[1]], 2: [*drafted[2][:2], (drafted[2][2] + 1) % 6], 3: [*drafted[3], 5]}
    )
    rows.propose(dict.fromkeys(PROMPTS, 9))
    assert model.passes == [{0: 2, 1: 1, 2: 1, 3: 2}, *[{0: 1, 1: 1, 2: 1, 3: 1}] * 2]


def test_rows_take_part_only_in_the_passes_that_they_need():
    model = Watched(TabularLM.random(6, 2, 3))
    rows = Rows(SmallTransformer(model, 4))
    rows.seat(PROMPTS)
    model.passes.clear()
    rows.propose({0: 0, 1: 2, 2: 9, 3: 1})
    assert [set(one) for one in model.passes] == [{1, 2, 3}, {1, 2}, {2}, {2}]


def test_a_row_that_sat_out_many_steps_catches_up_in_chunks():
    model = Watched(TabularLM.random(6, 2, 3))
    rows = Rows(SmallTransformer(model, 2, temperature=0), capacity=400)
    rows.seat({0: [1], 1: [2, 3]})
    generator = np.random.default_rng(0)
    for _ in range(100):
        rows.settle({0: generator.integers(0, 6, 3).tolist()})
    rows.settle({1: [4]})
    model.passes.clear()
    worn = chains(rows.propose({0: 9, 1: 9}))
    assert [one[0] for one in model.passes] == [128, 128, 43, 2, 1]
    assert [one.get(1) for one in model.passes] == [None, None, None, 2, 1]
    fresh = Rows(SmallTransformer(model, 2, temperature=0), capacity=400)
    fresh.seat(rows.ids)
    assert chains(fresh.propose({0: 9, 1: 9})) == worn


def test_ids_that_replace_a_part_of_the_prompt_are_fed():
    """Ids 0 are what the session's notes hold before anything is written there."""
    model = Watched(TabularLM.random(6, 2, 3))
    rows = Rows(SmallTransformer(model, 1))
    rows.seat({0: [1, 2, 3, 2, 4]})
    model.passes.clear()
    rows.settle({0: [0, 0, 5]}, keep={0: 1})
    rows.propose({0: 9})
    assert model.passes == [{0: 1}, {0: 2}]


def test_a_row_near_the_end_of_its_cache_catches_up_beside_a_long_one():
    rows = Rows(SmallTransformer(TabularLM.random(6, 2, 3), 2, temperature=0), capacity=140)
    generator = np.random.default_rng(1)
    rows.seat({0: [1], 1: generator.integers(0, 6, 131).tolist()})
    rows.settle({0: generator.integers(0, 6, 130).tolist(), 1: [2, 3, 4, 5]})
    fresh = Rows(SmallTransformer(TabularLM.random(6, 2, 3), 2, temperature=0), capacity=140)
    fresh.seat(rows.ids)
    assert chains(rows.propose({0: 9, 1: 9})) == chains(fresh.propose({0: 9, 1: 9}))


def test_prompts_are_prefilled_in_chunks_without_their_last_token():
    model = Watched(TabularLM.random(6, 2, 3))
    rows = Rows(SmallTransformer(model, 2), capacity=400)
    rows.seat({0: [1] * 300, 1: [2]})
    assert [one[0] for one in model.passes] == [128, 128, 43]


@pytest.mark.parametrize(
    "make", [lambda n: transformer(n), lambda n: TabularLM(TabularLM.random(6, 2, 3).table, max_context=n)]
)
def test_a_model_with_a_shorter_context_drafts_less_and_then_nothing(make):
    rows = Rows(SmallTransformer(make(8), 4, temperature=0))
    rows.seat({0: [1, 2, 3, 4, 5], 1: [1, 2, 3], 2: [0] * 8, 3: [0] * 30})
    assert rows.propose(dict.fromkeys(range(4), 9)).num_nodes.tolist() == [3, 4, 0, 0]
    rows.settle({0: [1], 1: [2, 2, 2], 2: [1], 3: [1]})
    assert rows.propose(dict.fromkeys(range(4), 9)).num_nodes.tolist() == [2, 2, 0, 0]
    rows.settle({0: [1, 1], 1: [2, 2, 2], 2: [1], 3: [1]})
    assert rows.propose(dict.fromkeys(range(4), 9)).num_nodes.tolist() == [0, 0, 0, 0]
    rows.settle({0: [1]}, keep={0: 3})
    assert rows.propose(dict.fromkeys(range(4), 9)).num_nodes.tolist() == [4, 0, 0, 0]


def test_runs_go_on_where_the_drafting_model_has_ended():
    oracle, model = transformer(seed=1), transformer(max_context=10, seed=2)
    prompts = [[1], [2, 3, 2, 3, 5, 1, 1, 0, 4], [0] * 20]
    plain = SpeculativeDecoder(oracle).generate(prompts, 30)
    assert SpeculativeDecoder(oracle, SmallTransformer(model, 4)).generate(prompts, 30).tokens == plain.tokens


@pytest.mark.parametrize("temperature", [None, 0.0])
def test_policies_end_chains_behind_a_doubtful_token(temperature):
    model = TabularLM.random(6, 2, 3)
    rows = Rows(
        SmallTransformer(model, length=StopBelow(0.2, num_skipped=1), temperature=temperature), sampling=SAMPLED
    )
    rows.seat(PROMPTS)
    draft = rows.propose(dict.fromkeys(PROMPTS, 9))
    sizes = draft.num_nodes.tolist()
    assert sizes[0] == 0
    assert len(set(sizes)) > 2
    for row, chain in enumerate(chains(draft)):
        if not chain:
            continue
        if temperature == 0:
            # A greedy token has no law to read: its confidence is what the unwarped model gives it.
            path = torch.tensor([rows.ids[row] + chain])
            scores = model.score(path, None, torch.tensor([path.shape[1]]), model.new_cache(1, 20), np.array([0]))
            own = scores.logits[0, len(rows.ids[row]) - 1 : -1].softmax(-1)
        else:
            own = draft.node_laws[row, : len(chain)].dense(6)
        wanted = own.gather(1, torch.tensor(chain).unsqueeze(1)).squeeze(1)
        torch.testing.assert_close(draft.confidence[row, : len(chain)], wanted, rtol=1e-12, atol=0)
        reached = wanted.cumprod(0)
        assert (reached[:-1] >= 0.2).all()
        assert reached[-1] < 0.2 or len(chain) == 5


def test_confidences_are_declared_where_they_are_read():
    model = TabularLM.random(6, 2, 3)
    assert SmallTransformer(model, length=StopBelow(0.5)).offers.confidence
    source = SmallTransformer(model, length=Fixed(3))
    assert not source.offers.confidence
    assert source.offers.max_depth == 3


class Vocabulary:
    def __init__(self, pieces: dict[str, int]) -> None:
        self.pieces = pieces

    def get_vocab(self) -> dict[str, int]:
        return self.pieces


def test_ids_with_other_meanings_are_refused_and_equal_ones_are_not():
    model, oracle = TabularLM.random(2, 1, 0), TabularLM.random(2, 1, 1)
    oracle.tokenizer = Vocabulary({"a": 0, "b": 1})
    source = SmallTransformer(model, 2)
    source.open(oracle, 1, 8)
    model.tokenizer = Vocabulary({"a": 0, "b": 1})
    source.open(oracle, 1, 8)
    model.tokenizer = Vocabulary({"b": 0, "a": 1})
    with pytest.raises(ValueError, match="give the ids other meanings"):
        source.open(oracle, 1, 8)


def test_padding_is_not_another_vocabulary():
    config = TransformerConfig(6, 16, 1, 2, 24, 64, padded_vocab_size=8)
    rows = Rows(SmallTransformer(Transformer(config).double(), 3))
    rows.seat(PROMPTS)
    assert rows.propose(dict.fromkeys(PROMPTS, 9)).num_nodes.tolist() == [3] * 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"temperature": float("inf")}, "temperature must be a finite number"),
        ({"tree": Kary(2, 2), "length": Fixed(3)}, "give tree or a length"),
    ],
    ids=str,
)
def test_bad_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        SmallTransformer(TabularLM.random(6, 1, 0), **arguments)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_model_whose_logits_carry_gradients_drafts_too(temperature):
    class Training(TabularLM):
        def score(self, *args, **named):
            scores = super().score(*args, **named)
            return scores if scores.logits is None else replace(scores, logits=scores.logits.requires_grad_())

    oracle = TabularLM.random(5, 1, seed=3)
    asked = [[1, 2]], 8, SamplingParams(temperature=temperature)
    found = SpeculativeDecoder(oracle, SmallTransformer(Training(oracle.table), 3), rule="coupled").generate(*asked)
    assert found.tokens == SpeculativeDecoder(oracle, rule="coupled").generate(*asked).tokens
    assert found.stats.num_accepted > 0
