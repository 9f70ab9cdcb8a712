"""The experiment on forced positions from its command line, on a tiny chat model."""

import json
from pathlib import Path

import pytest

from experiments.harness.run_outcome import Outcome
from experiments.studies import forced
from tests.support.chats import CHATML, write_checkpoint

pytestmark = pytest.mark.usefixtures("documents")


def test_a_table_of_schemas_and_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = write_checkpoint(tmp_path / "oracle", chat_template=CHATML, eos_token="<|im_end|>")
    sizes = ["--num-prompts", "1", "--max-new-tokens", "24", "--repeats", "2"]
    argv = ["--oracle", str(oracle), *sizes, "--out", str(tmp_path / "out")]
    assert forced.main(argv) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "forced.json").read_text())["rows"]
    assert "Forced positions of JSON answers" in printed
    assert {row["schema"] for row in rows} == set(forced.schemas())
    assert [row["arm"] for row in rows[:4]] == list(forced.arms(4))
    assert all(row["differ"] == 0 for row in rows)
    taus = {(row["schema"], row["arm"]): float(row["tau"]) for row in rows}
    assert all(taus[name, "plain"] == 1.0 < taus[name, "forced"] for name in ("long, compact", "short, compact"))
    monkeypatch.setattr(Outcome, "problems", lambda _: ["another text"])
    assert forced.main(argv[:-2]) == 1
    assert "FAILED:\nshort, compact: another text" in capsys.readouterr().err


def test_a_model_that_is_not_there_or_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^forced: "):
        forced.main(["--oracle", "no such model"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^forced: --out: .*file cannot be written"):
        forced.main(["--oracle", "no such model", "--out", str(tmp_path / "file")])
