"""The tokenizer of a GGUF file, rebuilt from ``tokenizer.ggml.*``, and what the file says about its tokens.

Of the rule by which texts are split into pieces, a file holds only a label, ``tokenizer.ggml.pre``.
"""

from dataclasses import dataclass

import numpy as np
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from oracles.checkpoints.config_keys import ConfigKeys, errors_of
from oracles.checkpoints.gguf.gguf_reading import GGUFFile

_PREFIX = "tokenizer.ggml."
_NO_TOKENIZER = ("no_vocab", "none")
# token_type: text is cut at tokens of these kinds wherever they occur; tokens of the first kinds are not text.
_CONTROL, _USER_DEFINED, _UNUSED = (2, 3), 4, 5
_KINDS = range(1, 7)
_ENDS = ("eos_token_id", "eot_token_id", "eom_token_id")
_OTHER_IDS = """
bos padding unknown seperator separator cls mask prefix suffix middle
fim_pre fim_suf fim_mid fim_pad fim_rep fim_sep
"""
# Keys that do not affect the ids of a text.
_INERT = {"scores", "token_type_count", *_ENDS, *(f"{name}_token_id" for name in _OTHER_IDS.split())}
# Keys that would change them, and the one value under which they do not.
_FIXED = {
    "add_space_prefix": False, "add_eos_token": False, "add_sep_token": False, "remove_extra_whitespaces": False,
    "escape_whitespaces": False, "normalizer.lowercase": False,
}  # fmt: skip

# A contraction | letters with one sign before them | digits | signs, with line ends | line ends | other white space.
_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class SplittingRule:
    """How text is split into the pieces within which byte pairs are merged.

    Args:
        words: a pattern of pieces; None: GPT-2's own rule.
        single_digits: whether each digit is split off as a piece, before any other rule.
        composes: whether text is brought into normal form NFC first.
        whole_first: whether a piece that is a token is taken whole, whatever the merges say.
        adds_bos: whether BOS is put before a text if the file does not say.
    """

    words: str | None = None
    single_digits: bool = False
    composes: bool = False
    whole_first: bool = False
    adds_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        """Return the pre-tokenizer; it maps bytes to the characters that stand for them in tokens."""
        parts: list[pre_tokenizers.PreTokenizer] = []
        if self.single_digits:
            parts.append(pre_tokenizers.Digits(individual_digits=True))
        if self.words is not None:
            parts.append(pre_tokenizers.Split(Regex(self.words), behavior="isolated"))
        parts.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=self.words is None))
        return pre_tokenizers.Sequence(parts)


_GPT2, _SINGLE_DIGITS = SplittingRule(), SplittingRule(single_digits=True)
_LLAMA3 = SplittingRule(_WORDS.format(digits=r"\p{N}{1,3}"), whole_first=True, adds_bos=True)
_QWEN2 = SplittingRule(_WORDS.format(digits=r"\p{N}"), composes=True)
# By label.
SPLITTING_RULES: dict[str, SplittingRule] = {
    "gpt-2": _GPT2,
    "smollm": _SINGLE_DIGITS,
    "starcoder": _SINGLE_DIGITS,
    "refact": _SINGLE_DIGITS,
    "llama-bpe": _LLAMA3,
    "llama-v3": _LLAMA3,
    "llama3": _LLAMA3,
    "qwen2": _QWEN2,
    "deepseek-r1-qwen": _QWEN2,
}


@dataclass(frozen=True)
class Vocabulary:
    """What a file says about its tokens.

    Args:
        tokenizer: None: the file has none, and prompts must be ids.
        size: the true number of ids; None without a tokenizer.
        eos_ids: ids that end a text: its named ends of text, turn and message.
        bos, eos: the tokens, or None.
        chat_template: source of the Jinja template, or None.
    """

    tokenizer: Tokenizer | None = None
    size: int | None = None
    eos_ids: tuple[int, ...] = ()
    bos: str | None = None
    eos: str | None = None
    chat_template: str | None = None


def read_vocabulary(file: GGUFFile) -> Vocabulary:
    """Return a file's tokenizer, and what the file says about its tokens.

    Raises:
        ValueError: the tokenizer is not byte-level BPE, the label of its splitting rule is unknown, or a key is
            missing, of a wrong type, out of range, unsupported or unknown; the message names the file and the key.
    """
    template = ConfigKeys(file.keys, str(file.path)).read("tokenizer.chat_template", str, None)
    values = {k.removeprefix(_PREFIX): v for k, v in file.keys.items() if k.startswith(_PREFIX)}
    keys = ConfigKeys(values, f"{file.path}: {_PREFIX}*")
    model = keys.read("model", str, _NO_TOKENIZER[0])
    if model in _NO_TOKENIZER:
        return Vocabulary(chat_template=template)
    if model != "gpt2":
        raise ValueError(
            f"{keys.source}: 'model' is {model!r}; only 'gpt2' (byte-level BPE) is read: load the checkpoint "
            "directory, which has its tokenizer.json"
        )
    rule = _rule(keys)
    tokens = keys.read("tokens", list)
    kinds = keys.read("token_type", np.ndarray, np.ones(len(tokens), np.int32)).tolist()
    if len(kinds) != len(tokens) or not set(kinds) <= set(_KINDS):
        raise ValueError(f"{keys.source}: 'token_type' must hold a kind from 1 to 6 for each of {len(tokens)} tokens")
    tokens, kinds = _without_padding(tokens, kinds)
    bos, eos = _token(keys, "bos_token_id", tokens), _token(keys, "eos_token_id", tokens)
    with errors_of(keys.source):
        tokenizer = _tokenizer(tokens, kinds, keys.read("merges", list), rule)
        if keys.read("add_bos_token", bool, rule.adds_bos):
            if bos is None:
                raise ValueError("'bos_token_id' is missing, and the tokenizer puts BOS before each text")
            tokenizer.post_processor = processors.TemplateProcessing(
                single=[bos, "$A"], pair=[bos, "$A", bos, "$B:1"], special_tokens=[(bos, tokens.index(bos))]
            )
    more = keys.read("eos_token_ids", np.ndarray, np.zeros(0, np.int64)).tolist()
    if not all(isinstance(one, int) for one in more):
        raise ValueError(f"{keys.source}: 'eos_token_ids' must hold ids, not {more}")
    keys.close(_INERT, _FIXED)
    ends = [*(keys.read(name, int, None) for name in _ENDS), *more]
    eos_ids = tuple(dict.fromkeys(found for found in ends if found is not None))
    return Vocabulary(tokenizer, len(tokens), eos_ids, bos, eos, template)


def _rule(keys: ConfigKeys) -> SplittingRule:
    label = keys.read("pre", str, None)
    if label not in SPLITTING_RULES:
        found = "missing" if label is None else repr(label)
        raise ValueError(
            f"{keys.source}: 'pre', the label of the splitting rule, is {found}; known: {', '.join(SPLITTING_RULES)}. "
            "By another rule texts would become other ids: load the checkpoint directory, which has its tokenizer.json"
        )
    return SPLITTING_RULES[label]


def _without_padding(tokens: list[str], kinds: list[int]) -> tuple[list[str], list[int]]:
    """Return the tokens without those that converters append if an embedding has more rows."""
    size = len(tokens)
    while size and kinds[size - 1] == _UNUSED and tokens[size - 1] == f"[PAD{size - 1}]":
        size -= 1
    return tokens[:size], kinds[:size]


def _tokenizer(tokens: list[str], kinds: list[int], merges: list[str], rule: SplittingRule) -> Tokenizer:
    vocabulary = {token: index for index, token in enumerate(tokens)}
    if len(vocabulary) < len(tokens) or "" in vocabulary:
        raise ValueError("'tokens' holds an empty token, or one twice")
    pairs = [(left, right) for left, _, right in (merge.partition(" ") for merge in merges)]
    for merge, (left, right) in zip(merges, pairs, strict=True):
        if not (left and right) or " " in right:
            raise ValueError(f"'merges' holds {merge!r:.40}; a merge is two pieces with a space between")
    try:
        model = models.BPE(vocabulary, pairs, ignore_merges=rule.whole_first)
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"'merges' do not fit the tokens: {error}") from error
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = rule.pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel()
    if rule.composes:
        tokenizer.normalizer = normalizers.NFC()
    of_kind = list(zip(tokens, kinds, strict=True))
    tokenizer.add_special_tokens([AddedToken(t, normalized=False, special=True) for t, k in of_kind if k in _CONTROL])
    tokenizer.add_tokens([AddedToken(t, normalized=False, special=False) for t, k in of_kind if k == _USER_DEFINED])
    return tokenizer


def _token(keys: ConfigKeys, name: str, tokens: list[str]) -> str | None:
    """Return the token whose id a key holds; None: there is no such key, or the id lies beyond the vocabulary."""
    found: int | None = keys.read(name, int, None)
    return tokens[found] if found is not None and 0 <= found < len(tokens) else None
