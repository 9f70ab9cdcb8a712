"""Rounding the inputs of linear layers: whose scale is whose, and that a model's every layer takes part."""

import numpy as np
import pytest
import torch

from oracles.factory.dialogues.dialogue_parts import Conversation
from oracles.factory.evaluation.input_rounding import first_answers, logits_of_rounded_inputs, round_inputs
from tests.support.models import small_model


@pytest.mark.parametrize(("group", "scales"), [(2, (1 / 127, 100 / 127)), (None, (100 / 127, 100 / 127))])
def test_inputs_are_whole_numbers_of_their_groups_scale(group, scales):
    x = torch.tensor([[1.0, -0.3, 100.0, 7.0], [0.0, 0.0, 0.0, 0.0]])
    found = round_inputs(x, group)
    expected = [round(value / scales[i // 2]) * scales[i // 2] for i, value in enumerate(x[0].tolist())]
    assert found[0].tolist() == pytest.approx(expected)
    assert found[1].tolist() == [0.0] * 4


def test_a_model_says_what_rounded_inputs_give_and_afterwards_what_it_said():
    model = small_model(tie_embeddings=True).eval()
    model.lm_head = model.cut_head()
    ids = torch.arange(12)[None] % 23
    with torch.no_grad():
        plain = model(ids)
        fine, coarse = (logits_of_rounded_inputs(model, group)(ids) for group in (4, None))
        assert 0 < (plain - fine).abs().mean() < (plain - coarse).abs().mean()
        assert torch.equal(model(ids), plain)


def test_first_answers_follow_what_stands_before_them():
    ids = np.arange(10, 22, dtype=np.uint16)
    two, chat = (((3, 5), (8, 12)), "two turns"), (((4, 12),), "chat")
    made = [Conversation(ids, answers, kind, 0.0, "dev") for answers, kind in (two, chat)]
    first, second = first_answers(made, (1, 2), 5)
    assert (first.prompt, first.new) == ((1, 2, 10, 11, 12), (13, 14))
    assert (second.prompt, second.new) == ((1, 2, 10, 11, 12, 13), tuple(range(14, 22)))
    assert len(first_answers(made, (1,), 1)) == 1
