"""The experiment on second turns from its command line, on a tiny chat model that drafts for itself."""

from pathlib import Path

import pytest

from experiments.studies import second_turns
from specdec.cache import PAGE
from tests.support.runs.experiments import read_json, the_folder, write_rows
from tests.support.texts.chats import CHATML, write_checkpoint

pytestmark = pytest.mark.usefixtures("documents")
QUESTIONS = [
    {"question_id": 1, "category": "writing", "turns": ["the history of the ships of the north", "and of the south?"]},
    {"question_id": 2, "category": "math", "turns": ["what is one and one?"]},
    {"question_id": 3, "category": "math", "turns": ["what is one and two?", "and two and two?"]},
]


def test_second_turns_read_what_is_new(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    oracle = str(write_checkpoint(tmp_path / "oracle", chat_template=CHATML, eos_token="<|im_end|>"))
    file = write_rows(tmp_path / "question.jsonl", QUESTIONS)
    asked = ["--oracle", oracle, "--draft", oracle, "--prompts", str(file), "--max-new-tokens", "12"]
    asked += ["--backend", "eager", "--dtype", "float64"]
    assert second_turns.main([*asked, "--out", str(tmp_path / "out")]) == 0
    assert "batch 1, 2 questions, 12 new tokens a turn" in capsys.readouterr().out
    kept = read_json(the_folder(tmp_path / "out") / "second_turns.json")
    rows, asked_for = kept["rows"], kept["provenance"]["arguments"]
    assert (kept["provenance"]["backend"], asked_for["dtype"]) == ("eager", "float64")
    assert [row["arm"] for row in rows[::2]] == ["plain", "prompt_lookup", "small_transformer"]
    for alone, shared in zip(rows[::2], rows[1::2], strict=True):
        assert [alone["sharing"], shared["sharing"]] == ["no", "yes"]
        assert int(shared["read"]) < int(shared["prompt"]) == int(alone["read"]) == int(alone["prompt"])
    assert rows[4]["by the draft"] == rows[4]["prompt"]
    # It has not read what was drafted last: that may be one page less.
    assert int(rows[5]["read"]) <= int(rows[5]["by the draft"]) <= int(rows[5]["read"]) + PAGE


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    oracle = str(write_checkpoint(tmp_path / "oracle", chat_template=CHATML, eos_token="<|im_end|>"))
    write_rows(tmp_path / "one.jsonl", QUESTIONS[1:2])
    with pytest.raises(SystemExit, match=r"^second_turns: --prompts: none of them has a second turn"):
        second_turns.main(["--oracle", oracle, "--prompts", str(tmp_path / "one.jsonl"), "--out", str(tmp_path)])


def test_a_conversation_without_room_is_named_and_the_others_are_asked(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    oracle = str(write_checkpoint(tmp_path / "oracle", chat_template=CHATML, eos_token="<|im_end|>"))
    long = {"question_id": 9, "category": "math", "turns": ["what is one and one?", "and two? " * 200]}
    file = write_rows(tmp_path / "question.jsonl", [*QUESTIONS, long])
    asked = ["--oracle", oracle, "--prompts", str(file), "--max-new-tokens", "4", "--out", str(tmp_path / "out")]
    assert second_turns.main(asked) == 0
    told = capsys.readouterr()
    assert "batch 1, 2 questions, 4 new tokens a turn" in told.out
    assert told.err.count("left out: 9: ") == 1


def test_second_turns_need_a_template(tmp_path: Path) -> None:
    asked = ["--oracle", "code-draft-tiny", "--prompts", str(write_rows(tmp_path / "question.jsonl", QUESTIONS))]
    with pytest.raises(SystemExit, match=r"^second_turns: second turns need a chat template"):
        second_turns.main([*asked, "--out", str(tmp_path / "out")])
