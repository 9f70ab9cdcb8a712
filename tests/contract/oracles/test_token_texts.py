"""What ids stand for by themselves: their texts put together are the text, whatever they divide."""

import pytest
from tokenizers import Tokenizer, decoders, models

from experiments.harness.tracing import token_texts
from oracles.checkpoints.loading import load_tokenizer

TEXT = "def f(x):\n\treturn 'é€😀'  # \u00a0ß\u202e\r\n"


def bytes_of(text):
    return text.encode() if isinstance(text, str) else bytes(text)


@pytest.mark.parametrize("name", ["code", "arithmetic"])
def test_the_texts_of_ids_are_the_text(name):
    tokenizer = load_tokenizer(name)
    text = TEXT if name == "code" else "123+456="
    ids = tokenizer.encode(text).ids
    texts = token_texts(tokenizer, ids)
    assert b"".join(bytes_of(texts[one]) for one in ids).decode() == text


def test_parts_of_characters_are_bytes_and_special_ids_are_their_names():
    tokenizer = load_tokenizer("code")
    texts = token_texts(tokenizer, [*tokenizer.encode("😀").ids, 0, tokenizer.get_vocab_size() + 5])
    parts = [text for text in texts.values() if isinstance(text, list)]
    assert len(parts) >= 2
    assert texts[0] == "<|endoftext|>"
    assert texts[tokenizer.get_vocab_size() + 5] is None


def test_byte_fallback_and_sentencepiece_spaces():
    vocabulary = {"<unk>": 0, "<0xE2>": 1, "<0x0A>": 2, "\u2581the": 3}
    tokenizer = Tokenizer(models.BPE(vocabulary, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    assert tokenizer.decode([3]) == "the"  # which is why decoding does not tell
    assert token_texts(tokenizer, [3, 1, 2, 3]) == {1: [0xE2], 2: "\n", 3: " the"}


def test_without_a_decoder_or_a_tokenizer():
    assert token_texts(Tokenizer(models.WordLevel({"a": 0, "é": 1}, unk_token="a")), [1, 0]) == {0: "a", 1: "é"}
    assert token_texts(None, [4, 4, 2]) == {4: None, 2: None}
