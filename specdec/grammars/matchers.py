"""From what parameters ask for to matchers of ``llguidance``, which is imported when a grammar is asked for."""

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenizers import Tokenizer

from specdec.contracts import ChatEncoder, Oracle, capability_of
from specdec.grammars.grammar import Grammar

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

EXTRA = "grammars need the library llguidance: pip install 'exactspec[grammar]'"


class Constraint(NamedTuple):
    """A grammar as it was asked for.

    Attributes:
        kind: "json_schema", "regex" or "grammar".
        value: the schema as JSON, the expression, or the rules in Lark's notation.
    """

    kind: str
    value: str


def make_grammars(
    oracle: Oracle, constraints: Sequence[Constraint | None], prompt_lengths: Sequence[int]
) -> list[Grammar | None]:
    """Return the grammar of each request, None if it asked for none.

    Raises:
        ImportError: ``llguidance`` is missing.
        ValueError: names the request: the oracle has no tokenizer that the library reads, the library refuses the
            grammar, or no id can begin a text of it.

    Cost: a few tenths of a second the first time that a tokenizer is met; the library's own time for each other
        grammar.
    """
    made: dict[Constraint, Grammar] = {}
    found: list[Grammar | None] = []
    for i, (constraint, length) in enumerate(zip(constraints, prompt_lengths, strict=True)):
        if constraint is None:
            found.append(None)
            continue
        owner = f"request {i}"
        if constraint not in made:
            start = _matcher(oracle, constraint, f"sampling[{i}].{constraint.kind}")
            made[constraint] = Grammar(start, oracle.vocab_size, _end_ids(oracle), (owner, constraint.kind), length)
        found.append(made[constraint].of_another(owner, length))
    return found


def _end_ids(oracle: Oracle) -> tuple[int, ...]:
    """Return the ids that end a text: EOS, those of a chat template's turns, or one beyond the vocabulary."""
    encoder: ChatEncoder | None = capability_of(oracle, "chat_template")
    ends = dict.fromkeys((*oracle.eos_ids, *(() if encoder is None else encoder.end_ids)))
    return tuple(ends) or (oracle.vocab_size,)


def _matcher(oracle: Oracle, constraint: Constraint, name: str) -> "LLMatcher":
    try:
        from llguidance import LLMatcher
    except ImportError as error:
        raise ImportError(f"{name}: {EXTRA}") from error
    if oracle.tokenizer is None:
        raise ValueError(f"{name} is about text, and the oracle has no tokenizer: give an oracle with one")
    makers: dict[str, Callable[[str], str]] = {
        "json_schema": LLMatcher.grammar_from_json_schema,
        "regex": LLMatcher.grammar_from_regex,
        "grammar": LLMatcher.grammar_from_lark,
    }
    try:
        text = makers[constraint.kind](constraint.value)
    except ValueError as error:
        raise ValueError(f"{name} is not usable: {error}") from error
    try:
        vocabulary = _vocabulary(oracle.tokenizer, oracle.vocab_size, _end_ids(oracle))
    except Exception as error:  # whatever a tokenizer of another kind raises
        raise ValueError(
            f"{name}: llguidance cannot read the oracle's tokenizer ({type(error).__name__}: {error}): give an oracle "
            "with one of the package tokenizers, or ask for no grammar"
        ) from error
    matcher = LLMatcher(vocabulary, text, log_level=0)
    if matcher.is_error():
        raise ValueError(f"{name} is not usable: {matcher.get_error()}")
    return matcher


@lru_cache(maxsize=4)
def _vocabulary(tokenizer: Any, vocab_size: int, end_ids: tuple[int, ...]) -> "LLTokenizer":
    """Return a tokenizer as the library reads it; ids that it lacks are control tokens, which no text holds."""
    from llguidance import LLTokenizer

    own = Tokenizer.from_str(tokenizer.to_str())
    own.no_padding()
    own.no_truncation()
    size = max(vocab_size, *(one + 1 for one in end_ids))
    own.add_special_tokens([f"<|no piece {one}|>" for one in range(own.get_vocab_size(), size)])
    return LLTokenizer(own.to_str(), eos_token=list(end_ids))
