"""The tokenizer: exact round trips, white space that costs little, and an end-of-text token."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from oracles.tokenization import END_OF_TEXT, end_of_text_id, train_tokenizer
from oracles.train import TOKENIZER

CODE = Tokenizer.from_file(str(TOKENIZER))
LAYOUT = st.text(alphabet=st.sampled_from(list(" \n\t\r#:_=()'\"ab19\\\u00e9\u4e2d\U0001f600\u200b")), max_size=60)


@given(st.text(max_size=80) | LAYOUT)
def test_decode_inverts_encode(text: str) -> None:
    assert CODE.decode(CODE.encode(text).ids, skip_special_tokens=False) == text


def test_vocabulary_size() -> None:
    assert 2000 <= CODE.get_vocab_size() <= 4096


def test_end_of_text_is_one_token_that_plain_text_never_gives() -> None:
    end = end_of_text_id(CODE)
    assert CODE.encode(END_OF_TEXT).ids == [end]
    assert end not in CODE.encode("end of text\n\n\n|endoftext|").ids


@pytest.mark.parametrize("indent", range(0, 25, 4))
def test_a_line_end_with_its_indent_is_one_token(indent: int) -> None:
    assert len(CODE.encode("\n" + " " * indent).ids) == 1


def test_training_is_deterministic() -> None:
    texts = ["def f(x):\n    return x\n", "class A:\n    x = 1\n"] * 3
    first, second = (train_tokenizer(texts, vocab_size=280).to_str() for _ in range(2))
    assert first == second


def test_a_tokenizer_without_end_of_text_is_refused() -> None:
    with pytest.raises(ValueError, match="endoftext"):
        end_of_text_id(Tokenizer(models.BPE()))
