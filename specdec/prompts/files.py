"""The rows of a local file of prompts: JSON and text are read here, parquet by ``pyarrow``.

``datasets`` reads JSON with a parser that turns strings into times if they look so, leaves a byte-order mark in text,
and takes a path for a pattern.
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SUFFIXES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}
_INK = re.compile(r"\S")
_LINE_END = re.compile(rb"\r\n?|\n")


# By name, a cell for each row.
Columns = Mapping[str, Sequence[Any]]


def read_file(path: Path) -> Columns:
    """Return the columns of a file; a row of JSON that lacks one has None there.

    Args:
        path: ``.jsonl`` or ``.json`` (objects one after the other, or a list of objects or strings; a list of messages
            is a row with the column "messages"), ``.txt`` (a row a line, in the column "text"), or ``.parquet``. Text
            is UTF-8, with or without a byte-order mark; blank lines are no rows.

    Raises:
        ValueError: another ending, a file that cannot be read, text that is not UTF-8, a row that is not an object; the
            message has the file, the row and the fix.
    """
    kind = SUFFIXES.get(path.suffix)
    if kind is None:
        raise ValueError(f"prompts: {path} ends in {path.suffix!r}; give a file ending in one of {list(SUFFIXES)}")
    try:
        if kind == "parquet":
            return _read_parquet(path)
        text = _read_utf8(path)
        values = _lines(text) if kind == "text" else _json_values(text)
    except NotUTF8:
        raise
    except Exception as error:
        raise ValueError(f"prompts: {path} could not be read as {kind}: {error}; check the file") from error
    for row, value in enumerate(values):
        if not isinstance(value, dict):
            raise ValueError(f"prompts: {path}: row {row} is {value!r:.80}; give an object with a key for each column")
    names = dict.fromkeys(name for value in values for name in value)
    return {name: [value.get(name) for value in values] for name in names}


def is_unicode(text: str) -> bool:
    """Tell whether a string can be written: halves of surrogate pairs cannot, and tokenizers refuse them."""
    return text.encode(errors="ignore").decode() == text


class _Cells(Sequence[Any]):
    """A column whose cells are read when they are asked for: one that is not UTF-8 is found in its row."""

    def __init__(self, column: Any) -> None:
        self._column = column

    def __len__(self) -> int:
        return len(self._column)

    def __getitem__(self, row: Any) -> Any:
        return self._column[row].as_py()


def _read_parquet(path: Path) -> Columns:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        table = file.read()
    return {name: _Cells(column) for name, column in zip(table.column_names, table.columns, strict=True)}


class NotUTF8(ValueError):
    """A file's text is in another encoding."""

    def __init__(self, source: object, place: str, error: UnicodeDecodeError) -> None:
        byte = error.object[error.start]
        super().__init__(f"prompts: {source} is not UTF-8 in {place}, which holds the byte {byte:#x}; save it as UTF-8")


@contextmanager
def without_bars() -> Iterator[Any]:
    """Hand out ``datasets`` with its progress bars off, and leave them as they were."""
    import datasets

    were_on = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        if were_on:
            datasets.enable_progress_bars()


def _read_utf8(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        *above, _ = _LINE_END.split(error.object[: error.start])
        place = f"line {len(above) + 1}"
        if path.suffix != ".json":  # whose rows are no lines
            place = f"row {sum(bool(line.strip()) for line in above)} ({place})"
        raise NotUTF8(path, place, error) from error


def _lines(text: str) -> list[Any]:
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [{"text": line} for line in lines if line.strip()]


def _is_conversation(value: Any) -> bool:
    """Tell whether a value is a list of messages: all have a role, and all say something, or some and a user."""
    if not isinstance(value, list) or not all(isinstance(one, dict) and "role" in one for one in value):
        return False
    says = ["content" in one or "tool_calls" in one for one in value]
    return any(says) and (all(says) or any(one["role"] == "user" for one in value))


def _row_of(value: Any) -> Any:
    """Return a value as a row: a string and a conversation are one of a single column."""
    if isinstance(value, str):
        return {"text": value}
    return {"messages": value} if _is_conversation(value) else value


def _json_values(text: str) -> list[Any]:
    """Return the values that stand one after the other; of a list that is not a conversation, its own."""
    decoder, at = json.JSONDecoder(), 0
    values: list[Any] = []
    while found := _INK.search(text, at):
        try:
            value, at = decoder.raw_decode(text, found.start())
        except json.JSONDecodeError as error:
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(f"the value that begins on line {line} is broken: {error}") from error
        if isinstance(value, list) and not _is_conversation(value):
            values += map(_row_of, value)
        else:
            values.append(_row_of(value) if isinstance(value, list) else value)
    return values
