"""Spec-Bench's table from a file in its form."""

import json
from pathlib import Path

import pytest

from experiments import spec_bench
from tests.smoke.test_experiments import checkpoints  # noqa: F401  (a fixture)

CATEGORIES = ("writing", "coding", "qa", "rag", "of my own")


def test_the_table_has_a_column_for_every_category(
    checkpoints: Path,  # noqa: F811
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [
        {"question_id": number, "category": category, "turns": [f"def f{number}(x):\n    return f(", "Go on."]}
        for number, category in enumerate(CATEGORIES * 2)
    ]
    file = tmp_path / "question.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    argv = ["--file", str(file), "--oracle", str(checkpoints / "target"), "--out", str(tmp_path / "runs")]
    assert spec_bench.main([*argv, "--max-new-tokens", "6", "--strategies", "prompt_lookup", "lookahead"]) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    (first, second) = json.loads((folder / "summary.json").read_text(encoding="utf-8"))["Spec-Bench"]
    assert [first["arm"], second["arm"]] == ["prompt_lookup", "lookahead"]
    assert list(first) == [
        "arm",
        "Multi-turn Conversation",
        "Question Answering",
        "Retrieval-aug. Generation",
        "of my own",
        "Mean Accepted Tokens",
        "Overall",
    ]
    assert first["Multi-turn Conversation"].endswith("(n = 4)")
    assert "[" in first["Overall"] or "wide" in first["Overall"]  # on a busy machine
    assert float(first["Mean Accepted Tokens"].split()[0]) >= 1
    assert "Spec-Bench:" in capsys.readouterr().out


def test_a_file_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        spec_bench.main([])
    assert "--file" in capsys.readouterr().err
