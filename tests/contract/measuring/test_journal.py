"""The journal of an experiment: what is appended is on the disk, and nothing that stands in it is lost."""

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.harness.arms import PLAIN
from experiments.harness.disturbance import disturbance_note
from experiments.harness.journal import COMMAND, JOURNAL, Journal, find_open_results, hold_journal
from experiments.harness.run_outcome import Outcome
from specdec.stats import Stats
from specdec.system import LOCK
from tests.support.processes import started, status_of


def unit(number: int, error: str | None = None, note: str = "") -> dict[str, Any]:
    return {"unit": number, "error": error, "note": note}


def lines(*entries: dict[str, Any]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal.jsonl"


def test_a_journal_holds_the_last_word_on_every_unit(path):
    path.write_text(lines(unit(1, "out of memory"), unit(0), unit(1)), encoding="utf-8")
    journal = Journal(path)
    assert journal.entries == {1: unit(1), 0: unit(0)}
    assert path.read_text(encoding="utf-8") == lines(unit(1), unit(0))
    assert [journal.is_done(i) for i in range(3)] == [True, True, False]
    assert Journal(path, fresh=True).entries == {}
    assert not path.exists()


@pytest.mark.parametrize("tail", ['{"unit": 1, "cut of', '{"unit": 1}\n', "\0\0\0", '{"unit": 1, "error": n\xff'])
def test_a_broken_last_line_is_dropped(path, tail):
    path.write_bytes(lines(unit(0)).encode() + tail.encode("latin-1"))
    assert Journal(path).entries == {0: unit(0)}
    assert path.read_text(encoding="utf-8") == lines(unit(0))


def test_a_journal_whose_first_line_was_cut_off_says_what_goes_on_with_it(path):
    path.write_text('{"unit": 0, "err', encoding="utf-8")
    Journal(path).append(unit(0))
    assert path.with_name(COMMAND).exists()


@pytest.mark.parametrize(
    "broken", ['{"unit": 1, "cut of', "3", '{"error": null}', '{"unit": "1", "error": null}', "\xff"]
)
def test_a_broken_line_inside_is_an_error_and_the_file_stays(path, broken):
    whole = lines(unit(0)).encode() + broken.encode("latin-1") + b"\n" + lines(unit(2)).encode()
    path.write_bytes(whole)
    with pytest.raises(ValueError, match=rf"{path}, line 2: .*--fresh"):
        Journal(path)
    assert path.read_bytes() == whole


def test_an_appended_unit_is_seen_to_the_disk(path, monkeypatch):
    journal, synced = Journal(path), []
    original = os.fsync

    def fsync(file: int) -> None:
        original(file)
        if os.path.samestat(os.fstat(file), path.stat()):
            synced.append(path.read_text(encoding="utf-8"))

    monkeypatch.setattr(os, "fsync", fsync)
    journal.append(unit(0))
    journal.append(unit(1))
    assert synced == [lines(unit(0)), lines(unit(0), unit(1))]


FULL = 7


def resume_on_a_full_disk(path: Path) -> int:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200, 200))
    try:
        Journal(path)
    except OSError:
        return FULL
    return 0


def test_a_full_disk_when_a_run_is_resumed_loses_no_unit(path):
    whole = lines(*(unit(i, note="x" * 50) for i in range(20)))
    path.write_text(whole, encoding="utf-8")
    assert status_of(started(resume_on_a_full_disk, path)) == FULL
    assert path.read_text(encoding="utf-8") == whole
    assert len(Journal(path).entries) == 20


def test_a_kill_when_a_run_is_resumed_loses_no_unit(path, monkeypatch):
    before = lines(unit(0, "out of memory"), unit(1), unit(0)) + '{"unit": 2'
    path.write_text(before, encoding="utf-8")
    moments: list[tuple[str, str]] = []
    for name in ("fsync", "replace"):
        original = getattr(os, name)

        def spied(*arguments: Any, name: str = name, call: Any = original) -> None:
            moments.append((name, path.read_text(encoding="utf-8")))
            call(*arguments)

        monkeypatch.setattr(os, name, spied)
    with path.open(encoding="utf-8") as old:
        Journal(path)
        assert old.read() == before, "the file itself was not written to"
    assert moments[:2] == [("fsync", before), ("replace", before)]
    assert path.read_text(encoding="utf-8") == lines(unit(0), unit(1))
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def interrupted(folder: Path) -> Path:
    """Return a folder as an interruption leaves it, in another folder."""
    folder.mkdir(parents=True)
    Journal(folder / JOURNAL).append(unit(0))
    return folder


def test_unfinished_experiments_are_named_as_another_begins(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["compare", "--oracle", "my model", "--fresh"])
    monkeypatch.setattr(sys.modules["__main__"], "STARTED_AS", "exactspec compare", raising=False)
    first, second = interrupted(tmp_path / "compare-1"), interrupted(tmp_path / "watch-2")
    (second / COMMAND).unlink()  # a kill came between the unit and its command
    (interrupted(tmp_path / "compare-3") / LOCK).write_text(str(os.getpid()), encoding="utf-8")  # it still runs
    Journal(interrupted(tmp_path / "compare-4") / JOURNAL).close()
    assert find_open_results(tmp_path) == [first, second]
    with hold_journal(tmp_path / "compare-5", fresh=False) as journal:
        assert journal.path == tmp_path / "compare-5" / JOURNAL
    assert capsys.readouterr().err.splitlines() == [
        f"unfinished: {first}; to go on: exactspec compare --oracle 'my model'; to forget it, delete the folder",
        f"unfinished: {second}; to go on: the command that began it; to forget it, delete the folder",
    ]


def test_an_experiment_that_goes_on_is_not_named_and_one_that_begins_over_a_finished_one_is(tmp_path, capsys):
    folder = interrupted(tmp_path / "compare-1")
    with hold_journal(folder, fresh=False) as journal:
        assert journal.is_done(0)
        journal.close()
    assert capsys.readouterr().err == ""
    assert [path.name for path in folder.iterdir()] == ["units.jsonl"], "the command goes with the end"
    with hold_journal(folder, fresh=False):
        assert "compare-1 holds a finished run of these arguments; this one replaces it" in capsys.readouterr().err


def test_a_lock_that_a_killed_process_left_holds_nothing(tmp_path):
    folder = interrupted(tmp_path / "compare-1")
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        gone.wait()
    (folder / LOCK).write_text(str(gone.pid), encoding="utf-8")
    assert find_open_results(tmp_path) == [folder]


def plain_unit(number: int, milliseconds: float, passes: int) -> dict[str, Any]:
    """Return a unit of which plain decoding's passes took so long each, its prefill a second."""
    stats = Stats(target_calls=passes, seconds={"prefill": 1.0, "score": passes * milliseconds / 1e3})
    arms = {PLAIN: {"stats": stats.as_dict()}}
    return {**unit(number), "kind": "code", "prompts": [f"p{number}"], "arms": arms}


def test_units_that_were_disturbed_are_named_with_what_leaves_them_to_the_next_run(tmp_path):
    folder = tmp_path / "of a run"
    folder.mkdir()
    taken = {0: 1.0, 1: 3.4, 2: 1.1, 3: 0.9, 10: 9.0, 11: 2.9, 12: 1.0}
    entries = [plain_unit(number, each, 1 + number) for number, each in taken.items()]
    journal = Journal(folder / JOURNAL)
    for entry in entries:
        journal.append(entry)
    units = journal.close()
    told = disturbance_note(Outcome([PLAIN], entries), units, journal.path)
    assert told is not None
    assert "disturbed 2 of 7 units" in told
    assert "3 times its median: 1 (p1), 10 (p10). To measure these again: grep" in told
    way, _, rest = told.partition("again: ")[2].partition("; then ")
    assert rest == "give the same command, without --fresh"
    subprocess.run(way, shell=True, check=True)
    assert [*Journal(folder / JOURNAL).entries] == [0, 2, 3, 11, 12]
    fitted = disturbance_note(Outcome([PLAIN], entries), units, journal.path, "compare --num-prompts 9")
    assert fitted is not None
    assert fitted.endswith("; then give compare --num-prompts 9")
    assert disturbance_note(Outcome([PLAIN], entries[2:4]), units, journal.path) is None
