"""The prompts that an oracle continues, and how the text really continued."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from tokenizers import Tokenizer

from specdec.prompts import load_prompts

# Of an excerpt, about as many as the shipped prompts have.
PROMPT_TOKENS = 256


@dataclass(frozen=True)
class Passage:
    """A prompt and what follows it in the real text, as ids; ``name`` says where it is from."""

    name: str
    prompt: tuple[int, ...]
    reference: tuple[int, ...]


def read_passages(path: Path, tokenizer: Tokenizer, num_passages: int | None) -> list[Passage]:
    """Return the passages of a file with the columns ``prompt`` and ``reference``.

    Args:
        path: JSONL, JSON or parquet, read as prompts are.
        tokenizer: of the oracle.
        num_passages: how many, spread evenly over the kinds; None: all.

    Raises:
        ValueError: the file does not exist, or lacks a column.
    """
    prompts, references = (load_prompts(path, column, num_passages) for column in ("prompt", "reference"))
    return [
        Passage(prompt.name, tuple(tokenizer.encode(prompt.text).ids), tuple(tokenizer.encode(reference.text).ids))
        for prompt, reference in zip(prompts, references, strict=True)
    ]


def excerpts(texts: Sequence[str], tokenizer: Tokenizer, num_passages: int, num_tokens: int) -> list[Passage]:
    """Return passages from the middle of the first texts that are long enough, one of each.

    Args:
        texts: in the order in which they are taken.
        tokenizer: of the oracle.
        num_passages: how many at most.
        num_tokens: of a reference; a prompt has ``PROMPT_TOKENS``.

    Raises:
        ValueError: no text is long enough.
    """
    length = PROMPT_TOKENS + num_tokens
    encoded = ((number, tuple(tokenizer.encode(text).ids)) for number, text in enumerate(texts))
    long_enough = ((number, ids) for number, ids in encoded if len(ids) >= length)
    found = [_from_the_middle(f"text {number}", ids, length) for number, ids in islice(long_enough, num_passages)]
    if not found:
        raise ValueError(f"no text has the {length} tokens of a passage; read more text, or ask for fewer tokens")
    return found


def _from_the_middle(name: str, ids: tuple[int, ...], length: int) -> Passage:
    first = (len(ids) - length) // 2
    cut = first + PROMPT_TOKENS
    return Passage(name, ids[first:cut], ids[cut : first + length])
