"""Three-digit arithmetic: the text of a problem, its split, and the exported GPT-2 form."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oracles.checkpoints.loading import load, load_trainable
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, NUM_HELD_OUT, OPERATORS, PROMPT_LENGTH, Problem, split
from oracles.factory.arithmetic.tokens import ALPHABET, Problems, build_tokenizer, encode, exact_answers
from oracles.factory.train_arithmetic import RECIPES, main
from oracles.factory.training.export import export_checkpoint
from oracles.transformer.eager import Transformer

PROBLEMS = st.builds(Problem, st.integers(0, 999), st.sampled_from(OPERATORS), st.integers(0, 999))


@given(PROBLEMS)
def test_an_answer_ends_with_the_result(problem: Problem) -> None:
    assert len(problem.prompt) == PROMPT_LENGTH
    assert len(problem.answer) == ANSWER_LENGTH
    expected = problem.left + problem.right if problem.operator == "+" else problem.left - problem.right
    assert int(problem.answer[-4:]) == expected
    assert set(problem.prompt + problem.answer) <= set(ALPHABET)


@given(PROBLEMS)
def test_every_column_of_the_working_is_right(problem: Problem) -> None:
    sign, mark, entering = (1, "c", 0) if problem.operator == "+" else (-1, "b", 0)
    for column in (problem.answer[first : first + 5] for first in (0, 5, 10)):
        above, below, before, digit, after = column
        assert before == (mark if entering else ".")
        leaving = int(after == mark)
        assert int(above) + sign * (int(below) + entering) == int(digit) + sign * 10 * leaving
        entering = leaving


def test_numbers_name_problems() -> None:
    assert Problem.of_number(0) == Problem(0, "+", 0)
    assert Problem.of_number(1_999_999) == Problem(999, "-", 999)
    assert all(Problem.of_number(number).number == number for number in range(0, 2_000_000, 99_991))


def test_no_problem_out_of_range() -> None:
    with pytest.raises(ValueError, match="operands"):
        Problem(1000, "+", 0)
    with pytest.raises(ValueError, match="operands"):
        Problem(1, "*", 0)


def test_held_out_problems_are_never_trained_on_nor_with_operands_exchanged() -> None:
    train, held_out = split()
    assert len(set(held_out.tolist())) == NUM_HELD_OUT
    kept_back = {*held_out.tolist(), *(Problem.of_number(int(n)).mirror.number for n in held_out)}
    assert not kept_back & set(train.tolist())
    assert len(train) + len(kept_back) == 2_000_000


def test_batches_draw_training_problems_by_seed_and_step() -> None:
    rows = Problems(64, 0).batch(3, 10)
    assert rows.shape == (64, PROMPT_LENGTH + ANSWER_LENGTH)
    assert torch.equal(rows, Problems(64, 0).batch(3, 99))
    assert not torch.equal(rows, Problems(64, 0).batch(4, 10))
    assert not torch.equal(rows, Problems(64, 1).batch(3, 10))
    texts = ["".join(ALPHABET[i] for i in row) for row in rows.tolist()]
    drawn = [Problem(int(text[1:4]), text[4], int(text[5:8])) for text in texts]
    assert np.isin([problem.number for problem in drawn], split()[0]).all()
    assert [problem.prompt + problem.answer for problem in drawn] == texts


def test_the_tokenizer_gives_a_token_a_character() -> None:
    problem = Problem(12, "-", 345)
    text = problem.prompt + problem.answer
    tokenizer = build_tokenizer()
    assert tokenizer.get_vocab_size() == 17
    assert tokenizer.encode(text).ids == encode([text])[0].tolist()
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    with pytest.raises(ValueError, match="none of"):
        encode(["12 + 3"])


def test_shapes_are_those_of_the_study() -> None:
    sizes = {name: sum(p.numel() for p in Transformer(r.config, seed=None).parameters()) for name, r in RECIPES.items()}
    assert sizes["arithmetic"] == pytest.approx(10.65e6, rel=0.005)
    assert sizes["arithmetic-draft"] <= 0.5e6


def test_the_export_is_the_same_model_for_everyone(tmp_path: Path) -> None:
    config = RECIPES["arithmetic-draft"].config
    model = Transformer(config, seed=3).bfloat16().float()
    export_checkpoint(model.state_dict(), config, build_tokenizer(), tmp_path)
    rows = Problems(8, 0).batch(0, 1)[:, :-1]
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.no_grad():
        torch.testing.assert_close(theirs(rows).logits, model(rows))
        assert torch.equal(load_trainable(tmp_path)(rows), model(rows))
    oracle = load(tmp_path)
    assert oracle.eos_ids == ()
    assert oracle.max_context == PROMPT_LENGTH + ANSWER_LENGTH


def test_a_model_that_knows_nothing_answers_nothing() -> None:
    problems = [Problem.of_number(number) for number in range(0, 2_000_000, 50_021)]
    assert exact_answers(Transformer(RECIPES["arithmetic-draft"].config, seed=0), problems) == 0


def test_a_run_that_cannot_be_ends_with_the_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["train", "arithmetic-draft", "--precision", "float32", "--out", str(tmp_path), "--steps", "0"]
    monkeypatch.setattr("sys.argv", words)
    with pytest.raises(SystemExit, match=r"oracles\.factory\.train_arithmetic: --steps is 0; give at least 1"):
        main()
