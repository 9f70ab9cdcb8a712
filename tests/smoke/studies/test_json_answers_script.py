"""The study of JSON answers from its command line, on a tiny chat model."""

import json
from pathlib import Path

import pytest

from experiments.harness.run_outcome import Outcome
from experiments.studies import json_answers
from tests.support.texts.chats import CHATML, write_checkpoint

pytestmark = pytest.mark.usefixtures("documents")


def test_a_table_of_schemas_and_arms(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = write_checkpoint(tmp_path / "oracle", chat_template=CHATML, eos_token="<|im_end|>")
    sizes = ["--num-prompts", "1", "--max-new-tokens", "24", "--repeats", "2"]
    argv = ["--oracle", str(oracle), *sizes, "--out", str(tmp_path / "out")]
    assert json_answers.main(argv) == 0
    printed = capsys.readouterr().out
    rows = json.loads((tmp_path / "out" / "json_answers.json").read_text())["rows"]
    assert "Forced positions of JSON answers" in printed
    assert {row["schema"] for row in rows} == set(json_answers.schemas())
    assert [row["arm"] for row in rows[:4]] == list(json_answers.arms(4))
    assert all(row["differ"] == 0 for row in rows)
    taus = {(row["schema"], row["arm"]): float(row["tau"]) for row in rows}
    assert all(taus[name, "plain"] == 1.0 < taus[name, "forced"] for name in ("long, compact", "short, compact"))
    monkeypatch.setattr(Outcome, "problems", lambda _: ["another text"])
    assert json_answers.main(argv[:-2]) == 1
    assert "FAILED:\nshort, compact: another text" in capsys.readouterr().err


def test_a_model_that_is_not_there_or_a_folder_that_cannot_be_is_named(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"^json_answers: "):
        json_answers.main(["--oracle", "no such model"])
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"^json_answers: --out: .*file cannot be written"):
        json_answers.main(["--oracle", "no such model", "--out", str(tmp_path / "file")])
