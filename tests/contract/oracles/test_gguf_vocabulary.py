"""The tokenizer that a GGUF file holds in parts is the one that it was taken from."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from oracles.checkpoints.gguf import GGUFFile, Vocabulary, read_vocabulary
from oracles.checkpoints.gguf.gguf_vocabulary import SPLITTING_RULES
from tests.support.models.gguf_files import CONTROL, MERGES, SPECIAL, TOKENS, family_model, tokenizer_keys, write_gguf

TEXTS = [
    "the thing, then 1234 and 12 x 3", "  two  spaces\n\n\nand\r\nlines\t\t", "I'll, I'LL; he's 'S don't",
    "é naïve e\u0301 日本語",
    "½ Ⅷ ٣٤ ①②", "", " ", "\n", "a<|end|>b <|turn|>the <tool> in", "<|en d|>", "x=1;y=(2);;;\n  }", "🙂🙃 the\u00a0an",
]  # fmt: skip
# As the models' own tokenizer.json has them.
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def splitting(pattern: str):
    return pre_tokenizers.Split(Regex(pattern), behavior="isolated")


# Per label: what splits, and whether text is composed and pieces are taken whole.
REFERENCES = {
    "gpt-2": ([splitting(GPT2)], False, False),
    "smollm": ([splitting(r"\p{N}"), splitting(GPT2)], False, False),
    "starcoder": ([splitting(r"\p{N}"), splitting(GPT2)], False, False),
    "refact": ([splitting(r"\p{N}"), splitting(GPT2)], False, False),
    "llama-bpe": ([splitting(LLAMA3)], False, True),
    "llama-v3": ([splitting(LLAMA3)], False, True),
    "llama3": ([splitting(LLAMA3)], False, True),
    "qwen2": ([splitting(QWEN2)], True, False),
    "deepseek-r1-qwen": ([splitting(QWEN2)], True, False),
}


def reference(label: str) -> Tokenizer:
    """Return the tokenizer as its model's own file would have it."""
    rules, composes, whole_first = REFERENCES[label]
    vocabulary = {token: i for i, token in enumerate(TOKENS)}
    merges = [tuple(merge.split(" ")) for merge in MERGES]
    tokenizer = Tokenizer(models.BPE(vocabulary, merges, ignore_merges=whole_first))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [*rules, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    if composes:
        tokenizer.normalizer = normalizers.NFC()
    for token, kind in SPECIAL.items():
        added = AddedToken(token, normalized=False, special=kind == CONTROL)
        (tokenizer.add_special_tokens if kind == CONTROL else tokenizer.add_tokens)([added])
    return tokenizer


def read(path: Path, label: str | None = "smollm", general=None, **changes) -> Vocabulary:
    keys = tokenizer_keys(label, **changes)
    return read_vocabulary(
        GGUFFile(write_gguf(path / "model.gguf", family_model("llama"), tokenizer=keys, general=general))
    )


@pytest.fixture(scope="module", params=SPLITTING_RULES)
def pair(request, tmp_path_factory) -> tuple[Tokenizer, Tokenizer]:
    found = read(tmp_path_factory.mktemp("vocabulary"), request.param).tokenizer
    assert found is not None
    return found, reference(request.param)


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False).ids


def test_ids_are_those_of_the_models_own_tokenizer(pair):
    found, expected = pair
    for text in TEXTS:
        assert ids(found, text) == ids(expected, text)
        for skipped in (False, True):
            assert found.decode(ids(found, text), skipped) == expected.decode(ids(expected, text), skipped)


@given(text=st.text(alphabet=st.sampled_from("the in12 \t\r\n'sSLl.,(é½日\u0301"), max_size=30))
@settings(max_examples=60, deadline=None)
def test_ids_of_random_texts_are_too(text, pair):
    found, expected = pair
    assert ids(found, text) == ids(expected, text)


def test_every_label_has_a_reference_and_they_differ():
    assert REFERENCES.keys() == SPLITTING_RULES.keys()
    found = {
        label: tuple(tuple(ids(reference(label), text)) for text in TEXTS)
        for label in ("gpt-2", "smollm", "llama3", "qwen2")
    }
    assert len(set(found.values())) == 4


def test_smollm_takes_digits_one_by_one(tmp_path):
    twelve, one, two = (TOKENS.index(piece) for piece in ("12", "1", "2"))
    assert ids(read(tmp_path).tokenizer, "12") == [one, two]
    assert ids(read(tmp_path, "gpt-2").tokenizer, "12") == [twelve]


def test_llama_3_takes_pieces_whole_that_are_tokens(tmp_path):
    assert ids(read(tmp_path, "llama-bpe").tokenizer, " then") == [TOKENS.index("Ġthen")]
    assert ids(read(tmp_path, "qwen2").tokenizer, " then") == [TOKENS.index("Ġthe"), TOKENS.index("n")]


def test_control_tokens_are_cut_wherever_they_stand(tmp_path):
    tokenizer = read(tmp_path).tokenizer
    found = ids(tokenizer, "in<|end|><tool>in")
    assert found == [TOKENS.index("in"), 0, 3, TOKENS.index("in")]
    assert tokenizer.decode(found) == "in<tool>in"
    assert tokenizer.decode(found, skip_special_tokens=False) == "in<|end|><tool>in"


def test_what_goes_with_the_tokens_is_kept(tmp_path):
    found = read(tmp_path, general={"tokenizer.chat_template": "{{ messages }}"})
    assert (found.size, found.eos_ids, found.bos, found.eos) == (len(TOKENS), (0, 1), "<|begin|>", "<|end|>")
    assert found.chat_template == "{{ messages }}"
    assert found.tokenizer.get_vocab_size() == len(TOKENS)
    assert read(tmp_path, eos_token_id=1, eom_token_id=0).eos_ids == (1, 0)
    assert read(tmp_path, eos_token_ids=[3, 9999, 0]).eos_ids == (0, 1, 3, 9999)
    absent = read(tmp_path, eot_token_id=None, bos_token_id=None, eos_token_id=9999)
    assert (absent.eos_ids, absent.bos, absent.eos) == ((9999,), None, None)
    assert read(tmp_path).chat_template is None


def test_bos_is_added_if_the_file_or_its_label_says_so(tmp_path):
    plain = ids(read(tmp_path).tokenizer, "the")
    for label, key, added in (
        ("smollm", True, True), ("smollm", None, False), ("llama-bpe", None, True), ("llama-bpe", False, False),
    ):  # fmt: skip
        tokenizer = read(tmp_path, label, add_bos_token=key).tokenizer
        assert tokenizer.encode("the").ids == [2] * added + plain
        assert tokenizer.encode("the", add_special_tokens=False).ids == plain
    assert read(tmp_path, add_bos_token=True).tokenizer.encode("").ids == [2]


def test_without_a_tokenizer_prompts_are_ids(tmp_path):
    path = write_gguf(tmp_path / "model.gguf", family_model("llama"), general={"tokenizer.chat_template": "x"})
    assert read_vocabulary(GGUFFile(path)) == Vocabulary(chat_template="x")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"label": None}, "label of the splitting rule, is missing; known: gpt-2, smollm"),
        ({"label": "tekken"}, "is 'tekken'; known: "),
        ({"label": "default"}, "is 'default'; known: "),
        ({"model": "llama"}, r"tokenizer\.ggml\.\*: 'model' is 'llama'; only 'gpt2'"),
        ({"model": 3}, "'model' is 3; it must be of type str"),
        ({"tokens": None}, r"tokenizer\.ggml\.\* lacks 'tokens'"),
        ({"merges": None}, "lacks 'merges'"),
        ({"tokens": ["a"] * 288}, "an empty token, or one twice"),
        ({"tokens": ["", *map(str, range(287))]}, "an empty token, or one twice"),
        ({"merges": ["the"]}, "'the'; a merge is two pieces"),
        ({"merges": ["t h e"]}, "'t h e'; a merge is two pieces"),
        ({"merges": ["t nothing"]}, "merges' do not fit the tokens"),
        ({"token_type": [1, 2]}, "a kind from 1 to 6 for each of 288 tokens"),
        ({"token_type": [9] * 288}, "a kind from 1 to 6"),
        ({"token_type": "control"}, "must be of type ndarray"),
        ({"add_bos_token": True, "bos_token_id": None}, "'bos_token_id' is missing"),
        ({"add_bos_token": 1}, "'add_bos_token' is 1; it must be of type bool"),
        ({"eos_token_id": "end"}, "'eos_token_id' is 'end'"),
        ({"add_eos_token": True}, "'add_eos_token' is True; only False is supported"),
        ({"add_space_prefix": True}, "'add_space_prefix' is True"),
        ({"precompiled_charsmap": [1, 2]}, "'precompiled_charsmap' .* is unknown"),
    ],
)
def test_tokenizers_that_cannot_be_rebuilt_are_refused_by_name(changes, words, tmp_path):
    with pytest.raises(ValueError, match=words) as caught:
        read(tmp_path, **changes)
    assert re.search(re.escape(str(tmp_path)), str(caught.value))
