"""The tokenizer: exact round trips, white space that costs little, and an end-of-text token."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from oracles.checkpoints import tokenization
from oracles.checkpoints.tokenization import END_OF_TEXT, bytes_per_token, end_of_text_id, sample, train_tokenizer
from oracles.factory.corpus import Entry, SourceFile
from oracles.factory.train import TOKENIZER

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


def source(sha256: str, text: str) -> SourceFile:
    return SourceFile(Entry("a", f"{sha256}.py", sha256, len(text.encode()), "train"), text)


def test_the_sample_follows_the_hashes_and_ends_when_it_is_large_enough() -> None:
    sources = [source("c", "x = 3\n"), source("a", "x = 1\n"), source("b", "x = 2\n")]
    assert sample(sources, 7) == ["x = 1\n", "x = 2\n"]
    assert sample(sources, 12) == ["x = 1\n", "x = 2\n"]
    assert sample(sources) == ["x = 1\n", "x = 2\n", "x = 3\n"]


def test_bytes_per_token_counts_utf8() -> None:
    tokenizer = train_tokenizer([], vocab_size=257)
    assert bytes_per_token(tokenizer, ["ab\n", "\u00e9"]) == 1.0


def test_the_command_trains_on_train_and_measures_dev(tmp_path: Path, monkeypatch, capsys) -> None:
    texts = {"train": "def f(x):\n    return x\n" * 9, "dev": "return x\n"}
    monkeypatch.setattr(tokenization, "read_split", lambda name, root: [source("a", texts[name])])
    tokenization.main(["--out", str(tmp_path / "new" / "tokenizer.json"), "--vocab-size", "300"])
    made = Tokenizer.from_file(str(tmp_path / "new" / "tokenizer.json"))
    assert made.to_str() == train_tokenizer([texts["train"]], 300).to_str()
    assert f"dev: {bytes_per_token(made, [texts['dev']]):.3f} bytes a token" in capsys.readouterr().out
