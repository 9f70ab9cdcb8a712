"""Whether a source and an oracle mean the same by an id."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from specdec.contracts.oracle import Oracle

# How the refusal of a foreign vocabulary ends.
FOREIGN = "use a source made for the oracle's tokenizer, or give the model to drafts.OtherVocabulary"


def ids_before_text(encoded: Any) -> list[int]:
    """Return the ids that a tokenizer put before a text by itself, such as its BOS.

    Args:
        encoded: a ``tokenizers.Encoding`` of a text of one id or more.
    """
    own = encoded.special_tokens_mask
    ids: list[int] = encoded.ids
    return ids[: own.index(0)] if 0 in own else []


def check_vocabulary(name: str, vocab_size: int, tokenizer: object | None, oracle: Oracle) -> None:
    """Refuse a source whose ids do not mean what the oracle's ids mean.

    Sizes are compared as they are without padding (``Oracle.vocab_size``), so logits of different width are no
    obstacle. If both sides have a tokenizer, their vocabularies must be equal; merges and normalisation may differ,
    since a draft never passes through text.

    Args:
        name: the source, for the message.
        vocab_size: the source's true vocabulary.
        tokenizer: the source's tokenizer, or None.
        oracle: the target.

    Raises:
        ValueError: the vocabularies differ.

    Cost: O(V) the first time that two tokenizers meet; tokens that are added to one later go unnoticed.
    """
    if vocab_size != oracle.vocab_size:
        raise ValueError(
            f"{name} drafts from a vocabulary of {vocab_size} ids, but the oracle's has {oracle.vocab_size}: {FOREIGN}"
        )
    theirs = oracle.tokenizer
    if tokenizer is None or theirs is None or tokenizer is theirs:
        return
    if not _same_ids(_ByIdentity(tokenizer), _ByIdentity(theirs)):
        raise ValueError(
            f"{name} and the oracle have vocabularies of {vocab_size} ids each, but their tokenizers give the ids "
            f"other meanings: {FOREIGN}"
        )


@dataclass(frozen=True, eq=False)
class _ByIdentity:
    """A tokenizer that is equal only to itself."""

    tokenizer: Any

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _ByIdentity) and self.tokenizer is other.tokenizer

    def __hash__(self) -> int:
        return id(self.tokenizer)


@lru_cache(maxsize=16)
def _same_ids(first: _ByIdentity, second: _ByIdentity) -> bool:
    """Tell whether two tokenizers give the same ids to the same tokens."""
    return bool(first.tokenizer.get_vocab() == second.tokenizer.get_vocab())
