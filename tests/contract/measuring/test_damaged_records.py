"""Records on the disk: a byte that changed is noticed, and one process at a time writes."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import drafts
from experiments.sweep.grid import GridPoint
from experiments.sweep.working import DONE, result_of
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource, WatchedSession, WatchedSource
from specdec.traces import DenseRecords, NodeRecords, record_chains, record_nodes
from specdec.traces.tables import read_columns

ORACLE = TabularLM.random(6, 4, 3)
PROMPTS = [[1, 2, 3], [4, 1], [0, 5, 2]]
PART = "nodes-000000.parquet"


def record(folder: Path, source: DraftSource | None = None, requests_per_part: int = 2) -> NodeRecords:
    decoder = SpeculativeDecoder(ORACLE, source or drafts.PromptLookup(3))
    return record_nodes(decoder, folder, PROMPTS, 8, SamplingParams(1.0), requests_per_part=requests_per_part)


def told(value: Any) -> Any:
    """Return what records say, in a form that can be compared, NaN too."""
    names = [name for name in vars(value) if not name.startswith("_")]
    columns = value.columns() if isinstance(value, NodeRecords) else {}
    return json.dumps([{name: getattr(value, name) for name in names}, columns], default=np.ndarray.tolist)


def a_part(folder: Path) -> tuple[Path, Callable[[], Any]]:
    record(folder, requests_per_part=3)
    return folder / PART, lambda: NodeRecords(folder)


def a_run(folder: Path) -> tuple[Path, Callable[[], Any]]:
    return a_part(folder)[0].with_name("run.json"), lambda: NodeRecords(folder)


def a_dense_record(folder: Path) -> tuple[Path, Callable[[], Any]]:
    path = folder / "dense.parquet"
    made = record_chains(ORACLE, lambda length: drafts.PromptLookup(length=length), PROMPTS, 3, 6)
    made.save(path)
    return path, lambda: DenseRecords.load(path)


@pytest.mark.parametrize(("make", "count"), [(a_part, 100), (a_run, 50), (a_dense_record, 50)])
def test_a_flipped_byte_is_noticed_or_changes_nothing(tmp_path, make, count):
    path, read = make(tmp_path)
    content, wanted, noticed, same = path.read_bytes(), told(read()), 0, 0
    for number in range(count):
        at = number * len(content) // count
        flipped = bytearray(content)
        flipped[at] ^= 255 if number % 2 else 1 << number % 8
        path.write_bytes(flipped)
        try:
            assert told(read()) == wanted, f"byte {at} of {len(content)}"
        except ValueError as error:
            noticed += str(path) in str(error)
        else:
            same += 1
    assert noticed + same == count
    assert noticed > count / 3


def test_a_truncated_part_is_an_error_with_the_fix_and_records_go_on_without_it(tmp_path):
    whole = record(tmp_path)
    part = tmp_path / PART
    for length in (0, 100, part.stat().st_size - 1):
        part.write_bytes(part.read_bytes()[:length])
        with pytest.raises(ValueError, match=rf"{part} is damaged \(.*\): delete it, and record again what it held"):
            record(tmp_path)
    part.unlink()
    assert record(tmp_path).tokens == whole.tokens


def test_what_the_system_refuses_is_no_damage(tmp_path, monkeypatch):
    import pyarrow.parquet as pq

    record(tmp_path)
    for refusal in (PermissionError(13, "denied"), OSError(5, "no answer"), MemoryError("no room")):
        monkeypatch.setattr(pq, "read_schema", Mock(side_effect=refusal))
        with pytest.raises(type(refusal)) as caught:
            NodeRecords(tmp_path)
        assert caught.value is refusal


def test_columns_that_changed_are_named(tmp_path):
    import pyarrow.parquet as pq

    record(tmp_path)
    table = pq.read_table(tmp_path / PART)
    at = table.column_names.index("token")
    pq.write_table(table.set_column(at, table.field(at), [table["token"].to_numpy() + 1]), tmp_path / PART)
    with pytest.raises(ValueError, match=rf"{PART} is damaged .*its columns 'token' are not those that were written"):
        NodeRecords(tmp_path).columns()


def test_files_without_hashes_are_read(tmp_path):
    import pyarrow.parquet as pq

    wanted = record(tmp_path)
    for part in tmp_path.glob("*.parquet"):
        table = pq.read_table(part)
        metadata = {b"specdec": table.schema.metadata[b"specdec"]}
        pq.write_table(table.replace_schema_metadata(metadata), part)
    run = json.loads((tmp_path / "run.json").read_text())
    del run["sha256"]
    (tmp_path / "run.json").write_text(json.dumps(run))
    assert told(NodeRecords(tmp_path)) == told(wanted)


def test_pages_carry_checksums_that_other_readers_can_verify(tmp_path):
    import pyarrow.parquet as pq

    record(tmp_path)
    content = (tmp_path / PART).read_bytes()

    def fault(at: int) -> str:
        (tmp_path / PART).write_bytes(content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :])
        try:
            pq.read_table(tmp_path / PART, page_checksum_verification=True)
        except OSError as error:
            return str(error)
        return ""

    assert any("CRC" in fault(at) for at in range(4, 200, 3))


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ('{"rule": "standard",\n "num_requests": }', "no JSON: .*line 2 column 18"),
        ("[1]", "no JSON object"),
        ('{"rule": "standard"}', "lacks 'num_requests'"),
        (b"\xff\xfe", "no JSON: .*byte 0xff in position 0"),
    ],
)
def test_a_broken_run_file_is_an_error_with_the_place_and_the_fix(tmp_path, content, place):
    whole = record(tmp_path)
    run = tmp_path / "run.json"
    run.write_bytes(content if isinstance(content, bytes) else content.encode())
    for look in (record, NodeRecords):
        with pytest.raises(
            ValueError, match=rf"{run} is damaged: it .*{place}.*delete run\.json, and call record_nodes"
        ):
            look(tmp_path)
    run.unlink()
    assert record(tmp_path).tokens == whole.tokens


def test_a_run_file_that_says_something_else_is_an_error(tmp_path):
    record(tmp_path)
    run = tmp_path / "run.json"
    run.write_text(run.read_text().replace('"num_requests": 3', '"num_requests": 2'))
    with pytest.raises(ValueError, match=rf"{run} is damaged: its hash .*delete run\.json, and call record_nodes"):
        NodeRecords(tmp_path)


def test_a_table_of_something_else_is_no_part(tmp_path):
    record(tmp_path)
    a_dense_record(tmp_path)[0].rename(tmp_path / "nodes-000009.parquet")
    with pytest.raises(ValueError, match=r"nodes-000009.parquet is no part of node records: .*delete .*, and call"):
        NodeRecords(tmp_path)


@pytest.mark.parametrize(("content", "place"), [("{", "no JSON: .*line 1 column 2"), ("{}", "lacks 'key', 'error'")])
def test_a_broken_result_of_a_unit_is_an_error_with_the_place_and_the_fix(tmp_path, content, place):
    unit = GridPoint(0, {}, ())
    path = tmp_path / unit.name / DONE
    path.parent.mkdir()
    path.write_text(content)
    with pytest.raises(ValueError, match=rf"{path} is damaged: it .*{place}.*; delete it: its unit is done again"):
        result_of(tmp_path, unit)


def test_two_processes_do_not_record_in_one_folder(tmp_path):
    refused: list[str] = []

    def open_second(session: Any, oracle: Any, num_rows: int) -> WatchedSession:
        with pytest.raises(ValueError, match="held by another process") as caught:
            record(tmp_path)
        refused.append(str(caught.value))
        return WatchedSession(session)

    made = record(tmp_path, WatchedSource(drafts.PromptLookup(3), open_second))
    (message,) = refused
    assert re.match(rf"{tmp_path} is held by another process \(\d+\).*give another folder with folder", message)
    assert made.complete
    assert record(tmp_path).tokens == made.tokens
    assert not (tmp_path / "lock").exists()
    assert len(read_columns(tmp_path / PART)) > 3
