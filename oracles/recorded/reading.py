"""Read records from files, and turn them into ids."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from specdec.contracts import IntArray
from specdec.prompts import TEXT_COLUMNS, Columns, read_file

Text = str | Sequence[int] | IntArray

# Columns of prompts, and of what was written after them; the first that exists is taken.
PROMPT_COLUMNS = (*(name for name in TEXT_COLUMNS if name != "messages"), "prompt_ids")
OUTPUT_COLUMNS = ("completion", "continuation", "output", "response", "reference", "output_ids")


def read_records(path: Path, column: str | None, output_column: str | None) -> tuple[list[Text], list[Text]]:
    """Return the prompts and the outputs of a file; arguments as in ``RecordedText.load``.

    A cell is text or a list of ids; from a list of texts (turns of a conversation) the first is taken.

    Raises:
        ValueError: the file is missing or cannot be read, or a column or a cell is missing.
    """
    if not os.path.isfile(path):
        raise ValueError(f"records: the file {path} does not exist; check the path")
    data = read_file(path)
    prompts = _cells(data, path, column, PROMPT_COLUMNS, "column")
    return prompts, _cells(data, path, output_column, OUTPUT_COLUMNS, "output_column")


def _cells(data: Columns, path: Path, asked: str | None, known: Sequence[str], option: str) -> list[Text]:
    """Return the cells of the column asked for, else of the first known one."""
    name = next((name for name in known if name in data), None) if asked is None else asked
    if name is None or name not in data:
        wanted = f"one of {list(known)}" if asked is None else repr(asked)
        raise ValueError(f"records: {path} has the columns {[*data]}, not {wanted}; name one as {option}")
    return [_cell(value, f"{path}: row {row}, column {name!r}") for row, value in enumerate(data[name])]


def _cell(value: Any, place: str) -> Text:
    if isinstance(value, list) and value and isinstance(value[0], str):
        value = value[0]
    if isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value)):
        return value
    raise ValueError(f"records: {place} holds {value!r:.80}; give it text or a list of ids")


def ids_of(prompt: Text, output: Text, tokenizer: Tokenizer | None, row: int) -> tuple[IntArray, IntArray]:
    """Return the ids of a record's prompt ``[P]`` and output ``[N]``, int64, at least one each.

    A prompt is tokenized as the engine tokenizes prompts. A text output is tokenized together with a text prompt; if
    the result does not begin with the prompt's own ids (a token would cross the border), the output is tokenized
    alone, without the special tokens that a tokenizer puts around texts.

    Raises:
        ValueError: there is no tokenizer for text, or no id at all; the message names the row.
    """
    if tokenizer is None and (isinstance(prompt, str) or isinstance(output, str)):
        raise ValueError(
            f"row {row} is text, and there is no tokenizer; give the one of the model that wrote it, or ids"
        )
    before = _array(_read(tokenizer, prompt, row, "prompt"), row, "prompt")
    if isinstance(prompt, str) and isinstance(output, str):
        both = _read(tokenizer, prompt + output, row, "text")
        if len(both) > len(before) and both[: len(before)] == before.tolist():
            return before, np.array(both[len(before) :], dtype=np.int64)
    return before, _array(_read(tokenizer, output, row, "output", special=False), row, "output")


def _read(tokenizer: Tokenizer | None, text: Text, row: int, part: str, special: bool = True) -> Any:
    """Return the ids of a text; ids are returned as they are."""
    if tokenizer is None or not isinstance(text, str):
        return text
    try:
        return tokenizer.encode(text, add_special_tokens=special).ids
    except Exception as error:  # the library raises bare Exception
        fix = "give the one of the model that wrote it"
        raise ValueError(f"row {row}: the tokenizer cannot read its {part}: {error}; {fix}") from error


def _array(ids: Any, row: int, part: str) -> IntArray:
    made = np.asarray(ids)
    if made.size == 0:
        raise ValueError(f"row {row}: its {part} is empty; leave the row out")
    if made.ndim != 1 or not np.issubdtype(made.dtype, np.integer):
        raise ValueError(f"row {row}: its {part} is neither text nor a list of ids")
    return made.astype(np.int64)
