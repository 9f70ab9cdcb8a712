"""Prompts from files of every kind, and errors that name the fix."""

import json
from pathlib import Path

import datasets
import pytest

from specdec.prompts import NamedPrompt, load_prompts

SPEC_BENCH: list[dict[str, object]] = [
    {"question_id": 81, "category": "writing", "turns": ["Write a letter.", "Shorten it."]},
    {"question_id": 91, "category": "math", "turns": ["What is 2 + 2?"], "reference": ["4"]},
    {"question_id": 240, "category": "qa", "turns": ["Who was first?"]},
]


def write_lines(path: Path, rows: list[dict[str, object]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def test_spec_bench_loads_as_it_is(tmp_path: Path) -> None:
    prompts = load_prompts(write_lines(tmp_path / "question.jsonl", SPEC_BENCH))
    assert prompts == [
        NamedPrompt("81", "writing", "Write a letter.", later_turns=("Shorten it.",)),
        NamedPrompt("91", "math", "What is 2 + 2?"),
        NamedPrompt("240", "qa", "Who was first?"),
    ]


def test_text_has_one_prompt_a_line(tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("first\nsecond é\n", encoding="utf-8")
    assert load_prompts(path) == [NamedPrompt("row 0", "all", "first"), NamedPrompt("row 1", "all", "second é")]


def test_parquet_and_column(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path, columns = tmp_path / "a [b]" / "p[1].parquet", {"text": ["a", "b"], "body": ["x", "y"], "kind": ["k", "l"]}
    path.parent.mkdir()
    pyarrow.parquet.write_table(pa.table(columns), path)
    pyarrow.parquet.write_table(pa.table({"text": ["of another file"]}), path.with_name("p1.parquet"))
    assert [prompt.text for prompt in load_prompts(path)] == ["a", "b"]
    assert load_prompts(path, column="body") == [NamedPrompt("row 0", "k", "x"), NamedPrompt("row 1", "l", "y")]


HUMAN_EVAL = {"prompt": "def f():", "entry_point": "f", "canonical_solution": "    pass", "test": "assert f"}
GSM8K = {"question": "How many?", "answer": "#### 4"}
MBPP = {"text": "Write f.", "code": "def f(): ...", "test_list": ["assert f()"], "test_setup_code": ""}
SANITISED = {
    "source_file": "a.ipynb",
    "prompt": "Write f.",
    "code": "def f(): ...",
    "test_imports": [],
    "test_list": [],
}


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"turns": ["Write.", "Shorten it."]}, "Write."),
        (HUMAN_EVAL, "def f():"),
        (GSM8K, "How many?"),
        (MBPP, "Write f."),
        (SANITISED, "Write f."),
    ],
    ids=["turns", "HumanEval", "GSM8K", "MBPP", "MBPP, sanitised"],
)
def test_files_of_the_field_are_read_without_a_column(tmp_path: Path, row: dict[str, object], text: str) -> None:
    by_task = [{**row, "task_id": f"t/{number}"} for number in range(3)]
    prompts = load_prompts(write_lines(tmp_path / "named.jsonl", by_task))
    assert [(prompt.name, prompt.text) for prompt in prompts] == [(f"t/{number}", text) for number in range(3)]
    unnamed = load_prompts(write_lines(tmp_path / "p.jsonl", [row] * 3))
    assert [prompt.name for prompt in unnamed] == ["row 0", "row 1", "row 2"]
    assert prompts[0].later_turns == (("Shorten it.",) if "turns" in row else ())


def test_a_second_column_stands_below_the_first_and_a_data_set_has_subsets_and_splits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alpaca's rows, Dolly's, SQuAD's."""
    for first, second in (("instruction", "input"), ("instruction", "context"), ("question", "context")):
        rows: list[dict[str, object]] = [{first: "Sum it up.", second: text} for text in ("A text.", "")]
        path = write_lines(tmp_path / "p.jsonl", rows)
        assert [prompt.text for prompt in load_prompts(path)] == ["Sum it up.\n\nA text.", "Sum it up."]
        write_lines(path, [{**row, "text": "Both, once more."} for row in rows])
        assert load_prompts(path)[0].text == "Sum it up.\n\nA text."
        assert load_prompts(path, column=first)[0].text == "Sum it up."
    with pytest.raises(ValueError, match=r"row 0 has '\\ud800' beside 'question'; give it Unicode text"):
        load_prompts(write_lines(tmp_path / "p.jsonl", [{"question": "a", "context": "\ud800"}]))
    asked: list[tuple[object, ...]] = []

    def load(name: str, subset: str | None, split: str) -> object:
        asked.append((name, subset, split))
        return datasets.Dataset.from_dict({"question": ["How many?"]})

    monkeypatch.setattr(datasets, "load_dataset", load)
    for source, split in (("a/b", "train"), ("a/b:test", "train"), ("a/b.c/main:test", "train"), ("a/b", "valid")):
        assert load_prompts(source, split=split)[0].text == "How many?"
    assert asked == [("a/b", None, "train"), ("a/b", None, "test"), ("a/b.c", "main", "test"), ("a/b", None, "valid")]


def test_of_several_columns_that_may_hold_prompts_none_is_guessed(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"question": "a", "body": "b", "prompt": "c"}] * 3)
    message = r"columns \['question', 'body', 'prompt'\], and \['prompt', 'question'\] may hold prompts; name one as"
    with pytest.raises(ValueError, match=message):
        load_prompts(path)
    assert [load_prompts(path, column=name)[0].text for name in ("question", "body", "prompt")] == ["a", "b", "c"]


def test_num_prompts_are_spread_over_the_kinds(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": f"p{i}", "kind": "abc"[i % 3], "prompt": f"text {i}"} for i in range(12)]
    path = write_lines(tmp_path / "p.jsonl", rows)
    prompts = load_prompts(path, num_prompts=4)
    assert [(prompt.name, prompt.kind) for prompt in prompts] == [("p0", "a"), ("p5", "c"), ("p7", "b"), ("p9", "a")]
    assert len(load_prompts(path, num_prompts=99)) == 12


def test_a_changed_file_is_read_again(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "p.jsonl", [{"prompt": "before"}])
    assert load_prompts(path)[0].text == "before"
    write_lines(path, [{"prompt": "after, and longer"}])
    assert load_prompts(path)[0].text == "after, and longer"


@pytest.mark.parametrize(
    ("rows", "column", "message"),
    [
        ([{"body": "x"}], None, r"columns \['body'\], not one of .*; name one as column \(--column\)"),
        ([{"prompt": "x"}], "body", r"columns \['prompt'\], not 'body'; name one as column"),
        ([{"prompt": "x"}, {"prompt": ""}], None, "row 1 has no text in column 'prompt'"),
        ([{"turns": ["x"]}, {"turns": []}], None, "row 1 has no text in column 'turns'"),
        ([{"prompt": 3}], None, "row 0 has no text in column 'prompt' but 3; fix it, or name another one as column"),
    ],
)
def test_bad_rows_name_the_fix(tmp_path: Path, rows: list[dict[str, object]], column: str | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_prompts(write_lines(tmp_path / "p.jsonl", rows), column=column)


def test_bad_sources_name_the_fix(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist; check the path"):
        load_prompts(tmp_path / "absent.jsonl")
    for name in ("nofile", "no/such/file/there", "x" * 300):
        with pytest.raises(ValueError, match=f"there is no file '{name}'; data sets of the hub are named OWNER/NAME"):
            load_prompts(name)
    (tmp_path / "p.csv").write_text("a,b\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"ends in '.csv'; give a file"):
        load_prompts(tmp_path / "p.csv")
    (tmp_path / "broken.jsonl").write_text('{"prompt": \n', encoding="utf-8")
    with pytest.raises(ValueError, match=r"broken.jsonl could not be read as json"):
        load_prompts(tmp_path / "broken.jsonl")
    for number in (0, -1, True, 2.5, "3"):
        with pytest.raises(ValueError, match=f"num_prompts must be an integer, 1 or more, not {number!r}"):
            load_prompts(tmp_path / "absent.jsonl", num_prompts=number)  # type: ignore[arg-type]


BOM = b"\xef\xbb\xbf"
DATES = [{"id": "2024-01-01", "kind": "2024-05-05", "prompt": "2024-01-02"}, {"id": "2024-01-03", "prompt": "12:30:00"}]


@pytest.mark.parametrize("suffix", [".jsonl", ".json"])
def test_strings_that_look_like_dates_stay_strings(tmp_path: Path, suffix: str) -> None:
    rows = [DATES[0], DATES[1] | {"kind": "2024-05-05T10:00:00Z"}]
    path = tmp_path / f"p{suffix}"
    path.write_text(json.dumps(rows) if suffix == ".json" else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    assert load_prompts(path) == [
        NamedPrompt("2024-01-01", "2024-05-05", "2024-01-02"),
        NamedPrompt("2024-01-03", "2024-05-05T10:00:00Z", "12:30:00"),
    ]


@pytest.mark.parametrize(
    ("name", "data", "place"),
    [
        ("p.jsonl", b'{"prompt": "fine"}\n\n{"prompt": "caf\xe9"}\n', r"row 1 \(line 3\)"),
        ("p.txt", b"fine\r\n\r\ncaf\xe9\n", r"row 1 \(line 3\)"),
        ("p.txt", BOM + b"fine\n\ncaf\xe9", r"row 1 \(line 3\)"),
        ("p.json", b'[{"prompt": "fine"},\n\n{"prompt": "caf\xe9"}]', "line 3"),
        ("p.txt", "fine\n".encode("utf-16"), r"row 0 \(line 1\)"),
    ],
)
def test_a_file_that_is_not_utf8_is_named_with_the_row(tmp_path: Path, name: str, data: bytes, place: str) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ValueError, match=rf"prompts: {path} is not UTF-8 in {place}.*0x(e9|ff).*; save it as UTF-8"):
        load_prompts(path)


def test_a_parquet_file_that_is_not_utf8_is_named_with_the_row(tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet

    path = tmp_path / "p.parquet"
    texts = pa.array([b"fine", b"caf\xe9"]).view(pa.string())
    pyarrow.parquet.write_table(pa.table({"prompt": texts}), path)
    with pytest.raises(ValueError, match=rf"prompts: {path} is not UTF-8 in row 1"):
        load_prompts(path)
    pyarrow.parquet.write_table(pa.table({"prompt": ["a", "b"], "id": texts}), path)
    with pytest.raises(ValueError, match=rf"prompts: {path} is not UTF-8 in column 'id'"):
        load_prompts(path)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("p.jsonl", b'{"prompt": "a"}\n{"prompt": "b"}\n'),
        ("p.json", b'[{"prompt": "a"}, {"prompt": "b"}]'),
        ("p.txt", b"a\nb\n"),
    ],
)
def test_a_byte_order_mark_is_no_part_of_a_prompt(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(BOM + data)
    assert [prompt.text for prompt in load_prompts(tmp_path / name)] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("p.jsonl", '\n{"prompt": "a"}\n\n \t\n{"prompt": "b"}\n\n'),
        ("p.txt", "\na\n\n \t\nb\n\n"),
        ("p.txt", "a\r\n\r\nb\r\n"),
        ("p.txt", "a\rb\r"),
    ],
)
def test_blank_lines_are_no_prompts(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_bytes(text.encode())
    assert load_prompts(tmp_path / name) == [NamedPrompt("row 0", "all", "a"), NamedPrompt("row 1", "all", "b")]


@pytest.mark.parametrize("name", ["p.jsonl", "p.json", "p.txt"])
@pytest.mark.parametrize("text", ["", "\n \n"])
def test_a_file_without_prompts_is_an_error_with_the_fix(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"{name} has no rows; give a file with prompts"):
        load_prompts(tmp_path / name)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": b}\n', "could not be read as json: .* line 2 .*; check the file"),
        ("p.jsonl", '{"prompt": "a"}\n{"prompt": "b\n', "as json: the value that begins on line 2 is broken: "),
        ("p.jsonl", '"a"\n', "row 0 is 'a'; give an object with a key for each column"),
        ("p.json", '[{"prompt": "a"}, 3]', "row 1 is 3; give an object"),
        ("p.jsonl", "[" * 100_000, "could not be read as json: "),
        ("p.jsonl", '{"prompt": "\\ud800"}\n', r"row 0 has no text in column 'prompt' but '\\ud800'"),
        (
            "p.json",
            '[{"role": "system", "content": "\\ud800"}, {"role": "user", "content": "a"}]',
            r"row 0: message 0: 'content' holds half of a surrogate pair",
        ),
        ("p.json", '[{"role": null}, {"role": "user", "content": "a"}]', "row 0: message 0 has the role None; give a"),
        ("p.jsonl", '{"id": "\\ud800", "prompt": "a"}\n', r"row 0 has .*in column 'id'"),
        ("p.jsonl", '{"kind": "\\ud800", "prompt": "a"}\n', r"row 0 has .*in column 'kind'"),
    ],
)
def test_broken_rows_are_named_with_the_file(tmp_path: Path, name: str, text: str, message: str) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=rf"prompts: .*{name}.*{message}"):
        load_prompts(tmp_path / name)


@pytest.mark.parametrize(
    "text",
    [
        '{"prompt": "a", "id": 1}\n{"prompt": "b", "id": "x"}\n',
        '[{"prompt": "a", "id": 1},\n {"id": "x", "prompt": "b"}]',
        '{"prompt": "a", "id": 1} {"prompt": "b", "id": "x"}',
        '{\n"prompt": "a",\n"id": 1\n}\n{"prompt": ["b"], "id": "x"}',
    ],
)
def test_json_is_read_in_every_layout(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text, encoding="utf-8")
    assert load_prompts(tmp_path / "p.json") == [NamedPrompt("1", "all", "a"), NamedPrompt("x", "all", "b")]


def test_a_list_of_strings_is_a_list_of_texts(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('["a", "b"]', encoding="utf-8")
    assert [prompt.text for prompt in load_prompts(tmp_path / "p.json")] == ["a", "b"]


def test_equal_names_stay_apart_whatever_is_taken(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": name, "prompt": "x"} for name in ("a", "b", "a", "a (row 2)")]
    path = write_lines(tmp_path / "p.jsonl", rows)
    names = [prompt.name for prompt in load_prompts(path)]
    assert names == ["a (row 0)", "b", "a (row 2) (row 2)", "a (row 2) (row 3)"]
    assert [prompt.name for prompt in load_prompts(path, num_prompts=2)] == [names[0], names[2]]
    columns = write_lines(tmp_path / "q.jsonl", [{"prompt": "x"}, {"prompt": "x"}])
    assert [prompt.name for prompt in load_prompts(columns)] == ["row 0", "row 1"]


def test_a_row_without_an_id_is_called_as_in_a_file_without_them_and_has_no_kind(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = [{"id": "a", "kind": "b", "prompt": "x"}, {"prompt": "x"}]
    found = load_prompts(write_lines(tmp_path / "p.jsonl", rows))
    assert [(prompt.name, prompt.kind) for prompt in found] == [("a", "b"), ("row 1", "no kind")]
    with pytest.raises(ValueError, match="row 2 is of kind 'all', which stands for every kind: rename it"):
        load_prompts(write_lines(tmp_path / "p.jsonl", [*rows, {"kind": "all", "prompt": "x"}]))
    empty = write_lines(tmp_path / "empty.jsonl", [{"kind": None, "prompt": "x"}, {"prompt": "y"}])
    assert {prompt.kind for prompt in load_prompts(empty)} == {"all"}


SAID = [{"role": "system", "content": "s"}, {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
AGAIN = [*SAID, {"role": "user", "content": "c"}]


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([SAID, AGAIN]),
        f"{json.dumps(SAID)}\n{json.dumps(AGAIN)}\n",
        json.dumps([{"messages": SAID}, {"messages": AGAIN}]),
        f"{json.dumps({'messages': SAID})} {json.dumps({'messages': AGAIN})}",
    ],
    ids=["list of lists", "lists one after the other", "list of objects", "objects one after the other"],
)
def test_conversations_end_with_a_users_last_words(tmp_path: Path, text: str) -> None:
    (tmp_path / "p.json").write_text(text, encoding="utf-8")
    first, second = load_prompts(tmp_path / "p.json")
    assert (first.text, first.messages, first.later_turns) == ("a", tuple(SAID[:2]), ())
    assert (second.text, second.start) == ("c", AGAIN)


def test_a_bare_list_of_messages_is_one_conversation(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps(AGAIN), encoding="utf-8")
    (prompt,) = load_prompts(tmp_path / "p.json")
    assert prompt.start == AGAIN


def test_contents_are_those_that_decoding_takes(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "hel"}, {"type": "image"}, {"type": "text", "text": "lo"}]
    thought = {"role": "assistant", "reasoning": "b"}
    for content, text in ((parts, "hello"), ("", "")):
        said = [SAID[1], thought, {"role": "user", "content": content}]
        (tmp_path / "p.json").write_text(json.dumps(said), encoding="utf-8")
        (prompt,) = load_prompts(tmp_path / "p.json")
        assert (prompt.text, prompt.start) == (text, said)


def test_a_call_of_a_tool_is_a_message_without_content(tmp_path: Path) -> None:
    said = [SAID[1], {"role": "assistant", "tool_calls": [{"name": "f"}]}, AGAIN[-1]]
    (tmp_path / "p.json").write_text(json.dumps(said), encoding="utf-8")
    (prompt,) = load_prompts(tmp_path / "p.json")
    assert prompt.start == said
    (tmp_path / "p.json").write_text(json.dumps([*said[:2], {"role": "user", "content": None}]), encoding="utf-8")
    with pytest.raises(ValueError, match="row 0: message 2 has the content None; give a string"):
        load_prompts(tmp_path / "p.json")


def test_a_conversation_without_a_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(json.dumps([SAID[::2]]), encoding="utf-8")
    with pytest.raises(ValueError, match="row 0 has no text in column 'messages'"):
        load_prompts(tmp_path / "p.json")
