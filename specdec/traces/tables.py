"""Columns as parquet files with a note, written whole and read back; a byte that changed since is noticed."""

import hashlib
import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from specdec.system import write_whole

_NOTE, _HASHES = b"specdec", b"specdec.sha256"


def write_table(path: Path, columns: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    """Write columns of equal length and a note (of JSON values) as one parquet file, as ``write_whole`` does.

    The hashes of note and columns go along; pages have their checksums.

    Cost: the table in memory, once more as bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table, text = pa.table(dict(columns)), json.dumps(note)
    hashes = json.dumps({"note": _hash(text.encode()), "columns": _hashes(_plain(table))})
    buffer = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({_NOTE: text, _HASHES: hashes}), buffer, write_page_checksum=True)
    write_whole(path, buffer.getvalue())


def read_note(path: Path) -> dict[str, Any]:
    """Return the note of a file; its columns are not read.

    Raises:
        ValueError: the file is not one of ours, or its note is damaged.
    """
    import pyarrow.parquet as pq

    with _reading(path):
        metadata = pq.read_schema(path).metadata or {}
    if _NOTE not in metadata:
        raise ValueError(f"{path} was not written by specdec.traces: it has no note in its schema")
    with _reading(path):
        if _HASHES in metadata and json.loads(metadata[_HASHES])["note"] != _hash(metadata[_NOTE]):
            raise ValueError("the note in its schema is not the one that was written")
        note: dict[str, Any] = json.loads(metadata[_NOTE])
    return note


def read_columns(path: Path) -> dict[str, Any]:
    """Return name -> arrays of numbers or bools, lists of strings, or lists of lists.

    Raises:
        ValueError: the file is damaged; names the columns, if they can be told.
    """
    import pyarrow.parquet as pq

    with _reading(path):
        table = pq.read_table(path, page_checksum_verification=True)
        columns = _plain(table)
        hashes = (table.schema.metadata or {}).get(_HASHES)
        if hashes is not None:  # files of earlier versions have none
            found, written = _hashes(columns), json.loads(hashes)["columns"]
            wrong = [name for name in {**found, **written} if found.get(name) != written.get(name)]
            if wrong:
                raise ValueError(f"its columns {', '.join(map(repr, wrong))} are not those that were written")
    return columns


def _plain(table: Any) -> dict[str, Any]:
    """Return the columns of a table as ``read_columns`` does."""
    import pyarrow as pa

    plain = {field.name: pa.types.is_floating(field.type) or pa.types.is_integer(field.type) for field in table.schema}
    plain |= {field.name: True for field in table.schema if pa.types.is_boolean(field.type)}
    return {
        name: column.to_numpy() if plain[name] else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def _hashes(columns: Mapping[str, Any]) -> dict[str, str]:
    """Return the hash of each column's values."""
    return {
        name: _hash(values.dtype.str.encode() + values.tobytes())
        if isinstance(values, np.ndarray)
        else _hash(json.dumps(values).encode())
        for name, values in columns.items()
    }


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Raise ValueError, with the fix, for whatever a reader makes of broken bytes; not for what the system refuses."""
    try:
        yield
    except (FileNotFoundError, MemoryError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{path} is damaged ({reason}): delete it, and record again what it held") from error


def dictionary_column(codes: Any, names: list[str]) -> Any:
    """Return indices into ``names``, -1 for none, as a column of strings."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(names, pa.string()))
