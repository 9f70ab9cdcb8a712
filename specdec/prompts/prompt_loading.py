"""Prompts: from local JSON, parquet or text, or from a data set on the hub."""

import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from specdec.prompts.chat.messages import check_messages
from specdec.prompts.files import SUFFIXES, Columns, NotUTF8, is_unicode, read_file, without_bars
from specdec.theory import check_count

# Columns that may hold the text; "turns" is Spec-Bench's, a list of what a user says in turn, "messages" holds whole
# conversations, "prompt" is HumanEval's, "text" or "prompt" MBPP's, "question" GSM8K's.
TEXT_COLUMNS = ("prompt", "text", "turns", "messages", "question", "instruction")
# If a task's rows have two columns, what the second one is called: Alpaca's, Dolly's, SQuAD's.
SECOND_COLUMNS = {"instruction": ("input", "context"), "question": ("context",)}
# Columns of a prompt's kind and of its name; the first that exists counts.
KIND_COLUMNS = ("kind", "category")
NAME_COLUMNS = ("id", "question_id", "task_id")
# What tables call the prompts of every kind together.
ALL = "all"
_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:/([\w.-]+))?(?::([\w.-]+))?")


@dataclass(frozen=True)
class NamedPrompt:
    """One prompt.

    Attributes:
        name: its id in the file, with its row if the file has that id more than once; or "row" and its number.
        kind: its kind or category; "no kind" if it has none, "all" if no prompt of the source has one.
        text: decoding starts from it; of a conversation, the user's last words, "" if that message has none.
        messages: of a conversation, with a role and a content each, up to the last of a user; () if it is none.
        later_turns: what the user says next, after each answer.
        turn: of the conversation, from 1.
        origin: what prompts that are cut out of one text share, so that statistics do not take them for several; "" if
            there is none.
    """

    name: str
    kind: str
    text: str
    messages: tuple[Mapping[str, Any], ...] = ()
    later_turns: tuple[str, ...] = ()
    turn: int = 1
    origin: str = ""

    @property
    def start(self) -> Any:
        """What decoding starts from, as ``generate`` takes it: the messages, or the text if there are none."""
        return list(self.messages) or self.text


def _read_hub(name: str, subset: str | None, split: str) -> Columns:
    try:
        with without_bars() as datasets:
            table = datasets.load_dataset(name, subset, split=split)
            return {column: table[column] for column in table.column_names}
    except Exception as error:
        part = f"split {split!r}" if subset is None else f"subset {subset!r}, split {split!r}"
        message = f"prompts: {name!r} is no local file, and the hub did not give its {part}: {error}"
        raise ValueError(f"{message}; give a file that exists, or a data set's name and network access") from error


def _is_text(value: Any) -> bool:
    """Tell whether a value is a string that has a place in files and on screens."""
    return isinstance(value, str) and is_unicode(value)


def _prompt(name: str, kind: str, value: Any, column: str, place: str) -> NamedPrompt:
    """Return what a cell holds: a text, a list of a user's turns, or a list of messages."""
    turns: list[Any] = value if isinstance(value, list) else [value]
    if all(isinstance(turn, Mapping) for turn in turns):
        asked = [number for number, message in enumerate(turns) if message.get("role") == "user"]
        if asked:
            return _conversation(name, kind, turns[: asked[-1] + 1], place)
    if not turns or not all(_is_text(turn) and turn for turn in turns):
        raise ValueError(
            f"prompts: {place} has no text in column {column!r} but {value!r}; fix it, or name another one as column "
            "(--column)"
        )
    return NamedPrompt(name, kind, turns[0], later_turns=tuple(turns[1:]))


def _conversation(name: str, kind: str, messages: list[Mapping[str, Any]], place: str) -> NamedPrompt:
    """Return the prompt of messages, if decoding takes them."""
    try:
        check_messages(messages)
    except ValueError as error:
        raise ValueError(f"prompts: {place}: {error}") from error
    said = messages[-1].get("content")
    texts = [part.get("text") for part in said] if isinstance(said, list) else [said]
    return NamedPrompt(name, kind, "".join(text for text in texts if isinstance(text, str)), tuple(messages))


def _labels(data: Columns, wanted: Sequence[str], count: int, source: str | Path, absent: str) -> list[str]:
    """Return the cells of the first column that exists as strings; ``absent``, about a row's number, if none is."""
    column = next((name for name in wanted if name in data), None)
    try:
        cells: list[Any] = [None] * count if column is None else list(data[column])
    except UnicodeDecodeError as error:
        raise NotUTF8(source, f"column {column!r}", error) from error
    labels = [absent.format(row) if cell is None else str(cell) for row, cell in enumerate(cells)]
    for row, label in enumerate(labels):
        if not _is_text(label):
            raise ValueError(f"prompts: {source}: row {row} has {label!r} in column {column!r}; give it Unicode text")
    return labels


def _kinds(data: Columns, count: int, source: str | Path) -> list[str]:
    """Return each row's kind; errors are as in ``load_prompts``."""
    if not any(name in data for name in KIND_COLUMNS):
        return [ALL] * count
    kinds = _labels(data, KIND_COLUMNS, count, source, "no kind")
    if {*kinds} == {"no kind"}:
        return [ALL] * count
    if ALL in kinds and len({*kinds}) > 1:
        row = kinds.index(ALL)
        raise ValueError(f"prompts: {source}: row {row} is of kind {ALL!r}, which stands for every kind: rename it")
    return kinds


def _apart(names: list[str]) -> list[str]:
    """Return the names, each with its row if another one is equal."""
    while len(counts := Counter(names)) < len(names):
        names = [f"{name} (row {row})" if counts[name] > 1 else name for row, name in enumerate(names)]
    return names


def _cell(cells: Sequence[Any], row: int, source: str | Path) -> Any:
    try:
        return cells[row]
    except UnicodeDecodeError as error:
        raise NotUTF8(source, f"row {row}", error) from error


def _evenly(kinds: Sequence[str], num_prompts: int | None) -> list[int]:
    """Return the rows to take, ascending: every n-th of the rows sorted by kind."""
    by_kind = sorted(range(len(kinds)), key=lambda row: kinds[row])
    take = len(kinds) if num_prompts is None else min(num_prompts, len(kinds))
    return sorted(by_kind[i * len(kinds) // take] for i in range(take))


def _text_column(columns: Sequence[str], asked: str | None, source: str | Path) -> str:
    """Return the column that was asked for, or the only one that may hold the text, alone or with a second one.

    Errors are as in ``load_prompts``.
    """
    wanted = TEXT_COLUMNS if asked is None else (asked,)
    found = [name for name in wanted if name in columns]
    paired = [name for name in found if any(second in columns for second in SECOND_COLUMNS.get(name, ()))]
    for clear in (found, paired):  # Alpaca's rows have both columns once more, as one text
        if len(clear) == 1:
            return clear[0]
    named = repr(asked) if asked is not None else f"one of {list(TEXT_COLUMNS)}"
    wrong = f", and {found} may hold prompts" if found else f", not {named}"
    raise ValueError(f"prompts: {source} has the columns {list(columns)}{wrong}; name one as column (--column)")


def _with_second(prompt: NamedPrompt, data: Columns, text: str, row: int, source: str | Path) -> NamedPrompt:
    """Return a prompt with what its row has in a second column, if any, below its text."""
    cells = [_cell(data[name], row, source) for name in SECOND_COLUMNS.get(text, ()) if name in data]
    below = next((cell for cell in cells if isinstance(cell, str) and cell.strip()), None)
    if below is None or prompt.messages:
        return prompt
    if not _is_text(below):
        raise ValueError(f"prompts: {source}: row {row} has {below!r} beside {text!r}; give it Unicode text")
    return replace(prompt, text=f"{prompt.text}\n\n{below}")


def load_prompts(
    source: str | Path, column: str | None = None, num_prompts: int | None = None, split: str = "train"
) -> list[NamedPrompt]:
    """Return the prompts of a file or a data set.

    Args:
        source: path of a ``.jsonl``, ``.json``, ``.parquet`` or ``.txt`` file (one prompt a line), or a data set on
            the hub, OWNER/NAME[/SUBSET][:SPLIT], as "openai/gsm8k/main:test". In JSON a list of messages by itself is
            one conversation, a list of such lists several.
        column: holds the text, a list of a user's turns, or a conversation's messages, which ends with the last of a
            user. None: the one of ``TEXT_COLUMNS`` that exists, and below it, after an empty line, what a row has in
            its column of ``SECOND_COLUMNS``.
        num_prompts: how many, taken at equal distances within the kinds, each by its share; None: all.
        split: of a hub data set whose name has none.

    Raises:
        ValueError: unreadable source, unknown ending or column, several columns that may hold the text, empty prompt,
            no prompts, messages that ``generate`` refuses too, a kind "all" beside others, or ``num_prompts`` is not a
            positive integer; the message has the fix.

    Cost: reads the whole file, or downloads the split.
    """
    if num_prompts is not None:
        check_count("num_prompts", num_prompts)
    data = _read(source, split)
    count = len(next(iter(data.values()), ()))
    if not count:
        raise ValueError(f"prompts: {source} has no rows; give a file with prompts")
    text = _text_column([*data], column, source)
    kinds = _kinds(data, count, source)
    names = _apart(_labels(data, NAME_COLUMNS, count, source, "row {}"))
    rows = _evenly(kinds, num_prompts)
    found = [_prompt(names[i], kinds[i], _cell(data[text], i, source), text, f"{source}: row {i}") for i in rows]
    if column is not None:
        return found
    return [_with_second(prompt, data, text, row, source) for prompt, row in zip(found, rows, strict=True)]


def _read(source: str | Path, split: str) -> Columns:
    path = Path(source)
    if os.path.isfile(path):  # False for what can be no name of a file, as one that is too long
        return read_file(path)
    if path.suffix in SUFFIXES or path.is_absolute():
        raise ValueError(f"prompts: the file {path} does not exist; check the path")
    named = _HUB_NAME.fullmatch(str(source))
    if named is None:
        raise ValueError(
            f"prompts: there is no file {str(source)!r}; data sets of the hub are named OWNER/NAME[/SUBSET][:SPLIT]"
        )
    return _read_hub(named[1], named[2], named[3] or split)
