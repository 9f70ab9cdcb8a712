"""The splitting rules that ``tokenizer.ggml.pre`` names: a file holds only their label."""

from dataclasses import dataclass

from tokenizers import Regex, pre_tokenizers

PreTokenizer = pre_tokenizers.PreTokenizer

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

    def pre_tokenizer(self) -> PreTokenizer:
        """Return the pre-tokenizer; it maps bytes to the characters that stand for them in tokens."""
        parts: list[PreTokenizer] = []
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
