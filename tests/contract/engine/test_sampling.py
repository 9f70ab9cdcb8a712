"""Sampling parameters: defaults that change nothing, legal values at the border, what each of them changes."""

import dataclasses
import math
import pickle

import pytest
import torch

from oracles import TabularLM
from specdec import Draft, SamplingParams
from specdec.grammars import make_grammars
from specdec.kernels.compiled import NEUTRAL
from specdec.sampling import BatchWarping, ParameterTable
from tests.support.drafting.warpings import warping_of
from tests.support.texts.grammars import END, pieces_of

LOGITS = torch.tensor([[[0.3, -1.2, 2.0, 0.0]]], dtype=torch.float64)
NO_DRAFT = Draft.empty(1, torch.device("cpu"))


NUMBERS = TabularLM.random(4, 1, 0, eos_id=3)
NUMBERS.tokenizer = pieces_of(("1", "a", "2", END))


def law_of(params: SamplingParams) -> torch.Tensor:
    grammars = make_grammars(NUMBERS, [params.constraint], [1])
    return warping_of([params], [[2]], [[0]], (3,), grammars).laws(LOGITS, NO_DRAFT).dense(4)[0, 0]


def test_the_default_is_greedy():
    assert SamplingParams().temperature == 0
    assert law_of(SamplingParams()).tolist() == [0.0, 0.0, 1.0, 0.0]


def test_the_neutral_values_leave_the_models_own_law():
    filters = {name: type(getattr(SamplingParams(), name))(value) for name, value in NEUTRAL.items()}
    neutral = SamplingParams(
        **filters, repetition_penalty=1.0, presence_penalty=0.0, frequency_penalty=0.0, logit_bias={}, min_new_tokens=0
    )
    torch.testing.assert_close(law_of(neutral), LOGITS[0, 0].softmax(-1), rtol=1e-14, atol=0)
    assert neutral == SamplingParams(temperature=1.0), "laws.h and SamplingParams have the same neutral numbers"


@pytest.mark.parametrize(
    "values",
    [
        {"top_k": 1},
        {"top_p": 1e-9},
        {"min_p": 1.0},
        {"temperature": 1e-3},
        {"logit_bias": {0: -math.inf, 1: -math.inf, 3: -math.inf}},
    ],
    ids=str,
)
def test_values_at_the_border_leave_the_best_id(values):
    law = law_of(SamplingParams(**{"temperature": 1.0, **values}))
    assert law[2] == 1.0
    assert law.sum() == 1.0


@pytest.mark.parametrize("field", dataclasses.fields(SamplingParams), ids=lambda field: field.name)
def test_every_parameter_but_ignore_eos_changes_a_law(field):
    others = {
        "temperature": 0.5,
        "top_k": 2,
        "top_p": 0.5,
        "min_p": 0.5,
        "repetition_penalty": 1.5,
        "presence_penalty": 0.5,
        "frequency_penalty": 0.5,
        "logit_bias": {1: 2.0},
        "min_new_tokens": 2,
        "ignore_eos": True,
        "json_schema": {"type": "integer"},
        "regex": "1[12]*",
        "grammar": 'start: "1" ("1" | "2")*',
    }
    assert field.name in others, f"give {field.name} a value here that changes the law of LOGITS"
    other = others[field.name]
    changed = not torch.equal(
        law_of(SamplingParams(**{"temperature": 1.0, field.name: other})), law_of(SamplingParams(temperature=1.0))
    )
    assert changed == (field.name != "ignore_eos"), "ignore_eos is about the end of a request, not about its law"


def test_rows_of_a_table_can_be_picked_in_any_order():
    params = [SamplingParams(temperature=t, logit_bias={0: t}) for t in (0.1, 0.2, 0.3)]
    whole = ParameterTable.of(params)
    picked = whole.select(torch.tensor([2, 0]).numpy())
    assert picked.column("temperature").tolist() == [0.3, 0.1]
    assert [float(bias[1][0]) for bias in picked.bias] == [0.3, 0.1]
    assert isinstance(warping_of(params, [[0]] * 3, [[]] * 3).select(torch.tensor([1]).numpy()), BatchWarping)


def test_biases_are_those_of_the_construction():
    given = {1: 2.0}
    params = SamplingParams(logit_bias=given)
    given[1] = -2.0
    assert params.logit_bias == {1: 2.0}
    assert pickle.loads(pickle.dumps(params)) == params
