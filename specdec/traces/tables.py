"""Columns as parquet files with a note, written whole and read back."""

import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from specdec.whole_file import write_whole

_NOTE = b"specdec"


def write_table(path: Path, columns: Mapping[str, Any], note: Mapping[str, Any]) -> None:
    """Write columns of equal length and a note (of JSON values) as one parquet file, as ``write_whole`` does.

    Cost: the table in memory, once more as bytes.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table(dict(columns)).replace_schema_metadata({_NOTE: json.dumps(note)})
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    write_whole(path, buffer.getvalue())


def read_note(path: Path) -> dict[str, Any]:
    """Return the note of a file; its columns are not read.

    Raises:
        ValueError: the file is not one of ours.
    """
    import pyarrow.parquet as pq

    metadata = pq.read_schema(path).metadata or {}
    if _NOTE not in metadata:
        raise ValueError(f"{path} was not written by specdec.traces: it has no note in its schema")
    note: dict[str, Any] = json.loads(metadata[_NOTE])
    return note


def read_columns(path: Path) -> dict[str, Any]:
    """Return name -> arrays of numbers or bools, lists of strings, or lists of lists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(path)
    plain = {field.name: pa.types.is_floating(field.type) or pa.types.is_integer(field.type) for field in table.schema}
    plain |= {field.name: True for field in table.schema if pa.types.is_boolean(field.type)}
    return {
        name: column.to_numpy() if plain[name] else column.to_pylist()
        for name, column in zip(table.column_names, table.columns, strict=True)
    }


def coded(codes: Any, names: list[str]) -> Any:
    """Return indices into ``names``, -1 for none, as a column of strings."""
    import pyarrow as pa

    return pa.DictionaryArray.from_arrays(pa.array(codes, mask=codes < 0), pa.array(names, pa.string()))
