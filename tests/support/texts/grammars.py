"""Tables of a few ids with real texts, and grammars of these texts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from llguidance import LLMatcher, LLTokenizer
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel as SplitBytes

from oracles import TabularLM
from specdec import SamplingParams
from tests.reference.grammars import masked_law
from tests.reference.tables import random_table

END = "<end>"


def pieces_of(pieces: Sequence[str]) -> Tokenizer:
    """Return a tokenizer of ASCII pieces: single characters, and pairs of pieces that stand before them."""
    known = {piece: one for one, piece in enumerate(pieces) if piece != END}
    merges = [
        (piece[:cut], piece[cut:])
        for piece in known
        for cut in range(1, len(piece))
        if piece[:cut] in known and piece[cut:] in known
    ]
    made = Tokenizer(BPE(known, merges))
    made.pre_tokenizer, made.decoder = SplitBytes(add_prefix_space=False, use_regex=False), ByteLevel()
    if END in pieces:
        made.add_special_tokens([END])
    return made


@dataclass(frozen=True)
class Written:
    """A small vocabulary, and a grammar of its texts.

    Args:
        pieces: by id, the last one ``END`` if there is an EOS.
        asked: the parameter of ``SamplingParams``, and its value.
        seed: of the tables.
    """

    pieces: tuple[str, ...]
    asked: dict[str, Any]
    seed: int = 0

    def oracle(self, seed: int = 0, zeros: float = 0.0) -> TabularLM:
        """Return a model over the vocabulary; other seeds give other models."""
        size = len(self.pieces)
        eos = size - 1 if END in self.pieces else None
        model = TabularLM(random_table(size, 2, 50 * self.seed + seed, zeros), eos)
        model.tokenizer = pieces_of(self.pieces)
        return model

    def sampling(self, **others: Any) -> SamplingParams:
        """Return parameters that ask for the grammar."""
        return SamplingParams(**{"temperature": 1.0, **others}, **self.asked)

    @property
    def library(self) -> tuple[LLTokenizer, str]:
        """The tokenizer and the grammar as the library reads them, made apart from ours."""
        tokenizer, (kind, value) = pieces_of(self.pieces), *self.asked.items()
        if END not in self.pieces:
            tokenizer.add_special_tokens([END])
        make = {
            "json_schema": LLMatcher.grammar_from_json_schema,
            "regex": LLMatcher.grammar_from_regex,
            "grammar": LLMatcher.grammar_from_lark,
        }[kind]
        return LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id(END)), make(value)

    def law(self, oracle: TabularLM, prompt: Sequence[int], length: int, **others: Any) -> dict[tuple[int, ...], float]:
        """Return the law of outputs that the slow reference gives."""
        asked = {"temperature": 1.0, **others}
        return masked_law(oracle.table.numpy(), *self.library, prompt, length, **asked)


# Each holds a pair of pieces of which one begins the other.
WORDS = Written(("a", "b", "ab", "c", END), {"regex": "(ab|ba?c)*"}, 1)
NESTED = Written(("(", ")", "((", "()", END), {"grammar": 'start: pair+\npair: "(" pair* ")"'}, 2)
LISTS = Written(
    ("[", "]", "1", ",", "[1", "1,"),
    {"json_schema": {"type": "array", "items": {"const": 1}, "x-guidance": {"whitespace_flexible": False}}},
    3,
)
WRITTEN = {"words": WORDS, "nested": NESTED, "lists": LISTS}


def distance(one: dict[tuple[int, ...], float], other: dict[tuple[int, ...], float]) -> float:
    """Return the total variation between two laws."""
    return sum(abs(one.get(ids, 0.0) - other.get(ids, 0.0)) for ids in {*one, *other}) / 2
