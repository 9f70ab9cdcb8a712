"""The tokenizer of a checkpoint directory: ``tokenizer.json``, and what ``tokenizer_config.json`` adds to it."""

from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.weights import is_there

CONFIG = "tokenizer_config.json"
_ADDED = "added_tokens_decoder"


def read_tokenizer_config(folder: Path) -> dict[str, Any]:
    """Return the contents of a directory's ``tokenizer_config.json``; empty if there is none."""
    path = folder / CONFIG
    return read_json(path) if is_there(path) else {}


def checkpoint_tokenizer(path: Path) -> Tokenizer | None:
    """Return the tokenizer of a file, without truncation and padding; None if there is no file.

    ``added_tokens_decoder`` in the ``tokenizer_config.json`` beside it may list tokens that the file lacks or has with
    other flags. They are added as ``transformers`` does: else a chat template's control tokens would be plain text.

    Raises:
        ValueError: the file holds no tokenizer, that table is invalid, or one of its tokens would get another id.
    """
    if not is_there(path):
        return None
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises bare Exception
        raise ValueError(f"{path} is no tokenizer: {error}") from error
    # Files keep these settings from training; here no prompt is cut or padded.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    _add_tokens(tokenizer, path.parent)
    return tokenizer


def _add_tokens(tokenizer: Tokenizer, folder: Path) -> None:
    """Give a tokenizer the tokens of a directory's table that it lacks, in order of their ids."""
    table = read_tokenizer_config(folder).get(_ADDED) or {}
    try:
        listed = {int(index): AddedToken(**token) for index, token in table.items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG}: {_ADDED!r} is no table of ids and tokens: {error}") from error
    known = set(map(repr, tokenizer.get_added_tokens_decoder().values()))
    missing = {index: listed[index] for index in sorted(listed) if repr(listed[index]) not in known}
    new = [index for index, token in missing.items() if tokenizer.token_to_id(token.content) is None]
    tokenizer.add_tokens(list(missing.values()))
    for index in new:
        content = missing[index].content
        if (found := tokenizer.token_to_id(content)) != index:
            raise ValueError(
                f"{folder / CONFIG}: {_ADDED!r} gives {content!r} the id {index}, and after the tokens of "
                f"tokenizer.json it would be {found}; take both files from one checkpoint"
            )
