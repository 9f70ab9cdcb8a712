"""The chat template of a checkpoint directory."""

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from oracles.checkpoints.config_keys import errors_of
from oracles.checkpoints.tokenizer_files import CONFIG, read_tokenizer_config
from oracles.checkpoints.weights import is_there
from specdec.prompts.chat import ChatTemplate

FILE = "chat_template.jinja"
_DEFAULT = "default"
_OTHER_TOKENS = ("unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


class EndsBeyond(UserWarning):
    """All ids that a checkpoint names as the end of a text lie beyond its vocabulary."""


class Chatting(Protocol):
    """What a template is given to."""

    chat_template: ChatTemplate | None
    eos_ids: tuple[int, ...]

    @property
    def vocab_size(self) -> int:
        """Number of ids."""


def checkpoint_template(folder: Path, tokenizer: Tokenizer | None) -> ChatTemplate | None:
    """Return the chat template of a Hugging Face directory; None if it has none, or no tokenizer.

    ``chat_template.jinja`` is preferred to ``chat_template`` in ``tokenizer_config.json``. The latter may be a list of
    named templates, of which the one named "default" is taken. ``tokenizer_config.json`` also has the texts of
    ``bos_token``, ``eos_token`` and the like.

    Raises:
        ValueError: a file is not JSON, UTF-8 or Jinja, or is a folder or a dangling link; the message names it.
    """
    config, path = read_tokenizer_config(folder), folder / FILE
    name = FILE if is_there(path) else CONFIG
    with errors_of(folder / name):
        source = path.read_text(encoding="utf-8") if name == FILE else default_template(config.get("chat_template"))
        if source is None or tokenizer is None:
            return None
        tokens = named_tokens(source, config)
        return ChatTemplate(source, tokenizer, *boundary_tokens(folder), name=name, arguments=tokens)


def boundary_tokens(folder: Path) -> tuple[str | None, str | None]:
    """Return the texts of the BOS and EOS tokens in ``tokenizer_config.json``; None: it does not name that one."""
    config = read_tokenizer_config(folder)
    return _token_text(config.get("bos_token")), _token_text(config.get("eos_token"))


def named_tokens(source: str, tokens: Mapping[str, Any]) -> dict[str, str]:
    """Return the texts, as far as there are any, of the special tokens that a template names, without BOS and EOS."""
    found = {name: _token_text(tokens.get(name)) for name in _OTHER_TOKENS if name in source}
    return {name: text for name, text in found.items() if text is not None}


def ends_within(ids: Sequence[int], vocab_size: int, source: object) -> tuple[int, ...]:
    """Return those ids that end a text and lie within the vocabulary, each once.

    An id beyond the vocabulary can never be drawn. Published checkpoints name such ids: small GPT-2s have the 50,256 of
    the large ones. ``transformers`` decodes with them, so they are no error.

    Warns:
        EndsBeyond: all ids are beyond the vocabulary.
    """
    found = tuple(dict.fromkeys(one for one in ids if 0 <= one < vocab_size))
    if ids and not found:
        words = f"no output ends with what {source} names as 'eos_token_id': {[*ids]} of {vocab_size} ids"
        warnings.warn(f"{words}; name one of these, or give requests a stop", EndsBeyond, stacklevel=2)
    return found


def give_template(oracle: Chatting, template: ChatTemplate | None) -> None:
    """Give an oracle its template; tokens that it writes after an answer end requests from then on, as EOS does."""
    oracle.chat_template = template
    if template is not None:
        ends = [token for token in template.end_ids if token < oracle.vocab_size]
        oracle.eos_ids = tuple(dict.fromkeys((*oracle.eos_ids, *ends)))


def default_template(value: Any) -> str | None:
    """Return the template source that ``chat_template`` holds: the text itself, or the default of several, or None.

    Args:
        value: one text; or several, as a list of named ones (in files) or a dictionary by name (in ``transformers``).
    """
    if isinstance(value, list):
        named = (one for one in value if isinstance(one, dict))
        value = next((one.get("template") for one in named if one.get("name") == _DEFAULT), None)
    elif isinstance(value, dict):
        value = value.get(_DEFAULT)
    return value if isinstance(value, str) else None


def _token_text(value: Any) -> str | None:
    """Return a token's text: a string, or a dictionary with its content."""
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None
