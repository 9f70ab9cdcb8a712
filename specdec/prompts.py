"""Prompts, read through ``datasets``: local JSONL, parquet or text, or a data set's name on the hub."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Columns that hold the text, the kind and the name of a prompt, the first that exists; "turns" is Spec-Bench's.
TEXT_COLUMNS = ("prompt", "text", "turns", "question", "instruction")
KIND_COLUMNS = ("kind", "category")
NAME_COLUMNS = ("id", "question_id", "task_id")
_SUFFIXES = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".txt": "text"}


@dataclass(frozen=True)
class NamedPrompt:
    """One prompt.

    Attributes:
        name: its id in the file, or "row" and its number.
        kind: its kind or category; "all" where the file has none.
        text: what is decoded from.
    """

    name: str
    kind: str
    text: str


@contextmanager
def _without_bars() -> Iterator[Any]:
    """Hand out ``datasets`` with its progress bars off, and leave them as they were."""
    import datasets

    were_on = not datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield datasets
    finally:
        if were_on:
            datasets.enable_progress_bars()


def _read_local(path: Path) -> Any:
    kind = _SUFFIXES.get(path.suffix)
    if kind is None:
        raise ValueError(f"prompts: {path} ends in {path.suffix!r}; give a file ending in one of {list(_SUFFIXES)}")
    try:
        with _without_bars() as datasets:
            return getattr(datasets.Dataset, f"from_{kind}")(str(path))
    except Exception as error:
        raise ValueError(f"prompts: {path} could not be read as {kind}: {error}; check the file") from error


def _read_hub(name: str, split: str) -> Any:
    try:
        with _without_bars() as datasets:
            return datasets.load_dataset(name, split=split)
    except Exception as error:
        message = f"prompts: {name!r} is no local file, and the hub did not give its split {split!r}: {error}"
        raise ValueError(f"{message}; give a file that exists, or a data set's name and network access") from error


def _pick(columns: Sequence[str], wanted: Sequence[str]) -> str | None:
    return next((name for name in wanted if name in columns), None)


def _text(value: Any, column: str, row: int) -> str:
    """Return a cell's text; of a list, its first entry (the first turn of a conversation)."""
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, str) or not first:
        raise ValueError(f"prompts: row {row} has no text in column {column!r} but {value!r}; fix it or use --column")
    return first


def _spread(kinds: Sequence[str], num_prompts: int | None) -> list[int]:
    """Return the rows to take, ascending: every n-th of the rows sorted by kind."""
    by_kind = sorted(range(len(kinds)), key=lambda row: kinds[row])
    take = len(kinds) if num_prompts is None else min(num_prompts, len(kinds))
    return sorted(by_kind[i * len(kinds) // take] for i in range(take))


def load_prompts(
    source: str | Path, column: str | None = None, num_prompts: int | None = None, split: str = "train"
) -> list[NamedPrompt]:
    """Return the prompts of a file or a data set.

    Args:
        source: path of a ``.jsonl``, ``.json``, ``.parquet`` or ``.txt`` file (one prompt a line), or a hub name.
        column: holds the text; of a list of turns the first is taken. None: the first of ``TEXT_COLUMNS`` that exists.
        num_prompts: how many, taken at equal distances within the kinds, each by its share; None: all.
        split: of a hub data set.

    Raises:
        ValueError: unreadable source, unknown ending or column, empty prompt, no prompts; the message has the fix.
    """
    if num_prompts is not None and num_prompts < 1:
        raise ValueError(f"num_prompts must be at least 1, got {num_prompts}")
    path = Path(source)
    looks_local = path.suffix in _SUFFIXES or path.is_absolute()
    if looks_local and not path.is_file():
        raise ValueError(f"prompts: the file {path} does not exist; check the path")
    data = _read_local(path) if path.is_file() else _read_hub(str(source), split)
    text = _pick(data.column_names, TEXT_COLUMNS) if column is None else column
    if text is None or text not in data.column_names:
        wanted = f"one of {list(TEXT_COLUMNS)}" if column is None else repr(column)
        raise ValueError(f"prompts: {source} has the columns {data.column_names}, not {wanted}; name one with --column")
    if len(data) == 0:
        raise ValueError(f"prompts: {source} has no rows; give a file with prompts")
    kind, name = _pick(data.column_names, KIND_COLUMNS), _pick(data.column_names, NAME_COLUMNS)
    kinds = ["all"] * len(data) if kind is None else [str(value) for value in data[kind]]
    prompts = []
    for row in _spread(kinds, num_prompts):
        label = f"row {row}" if name is None else str(data[row][name])
        prompts.append(NamedPrompt(label, kinds[row], _text(data[row][text], text, row)))
    return prompts
