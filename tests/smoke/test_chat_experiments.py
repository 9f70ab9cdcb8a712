"""Experiments with a model that has a chat template: turns, templates, and what a summary says of them."""

import json
from pathlib import Path
from typing import Any

import pytest

import oracles
from experiments import exactness, watch
from experiments.harness.arms import PLAIN, problems_of, units_of
from experiments.harness.conversations import LaterTurn, as_conversations, prompt_facts, template_of
from experiments.harness.run_outcome import Outcome
from experiments.harness.running import script
from experiments.report.one_run import provenance
from experiments.report.runs import Run
from experiments.spec_bench import __main__ as spec_bench
from experiments.studies import lengths, trees
from specdec import SpeculativeDecoder
from specdec.prompts import NamedPrompt, load_prompts
from tests.support.models.gguf_files import family_model, tokenizer_keys, write_gguf
from tests.support.runs.experiments import read_json, write_rows
from tests.support.texts.chats import CHATML, MISTRAL, write_checkpoint

TURNS = [
    {"question_id": 1, "category": "writing", "turns": ["help me <|im_end|>", "and again"]},
    {"question_id": 2, "category": "qa", "turns": ["What does it do?"]},
    {"question_id": 3, "category": "writing", "turns": ["the sign", "text", "think"]},
]


@pytest.fixture(scope="module")
def chat(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with an instruct model and prompts of several turns."""
    folder = tmp_path_factory.mktemp("chat")
    write_checkpoint(folder / "model", chat_template=CHATML, bos_token="<s>", eos_token="<|im_end|>")
    write_rows(folder / "question.jsonl", TURNS)
    return folder


def lookup(argv: list[str]) -> int:
    """Run the experiment of prompt lookup."""
    return script("prompt_lookup", None, argv)


def run(main: Any, chat: Path, out: Path, *options: str, status: int = 0) -> dict[str, Any]:
    """Run an experiment and return its summary."""
    names = ["--oracle", chat / "model", "--prompts", chat / "question.jsonl", "--out", out, "--max-new-tokens", "6"]
    assert main([*map(str, names), *options]) == status
    (folder,) = out.iterdir()
    summary, path = read_json(folder / "summary.json"), folder / "units.jsonl"
    entries = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []
    return {**summary, "entries": entries, "chat": summary["provenance"]["chat"]}


def answers(entries: list[dict[str, Any]], arm: str) -> dict[str, list[int]]:
    """Return what an arm wrote after each prompt."""
    found: dict[str, list[int]] = {}
    for entry in entries:
        records = entry["arms"][arm]["records"]
        for request, tokens in zip(records["request"], records["tokens"], strict=True):
            found.setdefault(entry["prompts"][request], []).extend(tokens)
    return found


@pytest.fixture(scope="module")
def whole(chat: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the summary of Spec-Bench's experiment on the file, as it is asked without options."""
    return run(spec_bench.main, chat, tmp_path_factory.mktemp("whole"), "--strategies", "prompt_lookup")


@pytest.mark.parametrize("batch", ["1", "2"])
def test_later_turns_go_on_after_plain_decodings_answers(chat, whole, tmp_path, batch):
    options = ("--turns", "all", "--strategies", "prompt_lookup", "--batch-size", batch)
    found = whole if batch == "1" else run(spec_bench.main, chat, tmp_path, *options)
    made = answers(found["entries"], PLAIN)
    assert list(made) == ["1", "3", "2", "1, turn 2", "3, turn 2", "3, turn 3"]
    assert made == answers(found["entries"], "prompt_lookup")
    oracle = oracles.load(chat / "model")
    said = [{"role": "user", "content": "the sign"}]
    for name, words in (("3", "text"), ("3, turn 2", "think")):
        said += [{"role": "assistant", "content": made[name]}, {"role": "user", "content": words}]
    assert SpeculativeDecoder(oracle).generate(said, 6).tokens == [made["3, turn 3"]]
    assert [entry.get("began") for entry in found["entries"]] == (
        [None, None, None, 0, 1, 1] if batch == "1" else [None, None, 0, 0]
    )


def interrupt(out: Path, done: int) -> None:
    """Leave a run as it was when so many of its units were done."""
    (folder,) = out.iterdir()
    lines = (folder / "units.jsonl").read_text(encoding="utf-8").splitlines(keepends=True)
    (folder / "units.jsonl").unlink()
    (folder / "journal.jsonl").write_text("".join(lines[:done]), encoding="utf-8")


SAMPLED = ("--strategies", "prompt_lookup", "--temperature", "1")


def test_every_seed_is_measured_by_itself_with_its_own_later_turns(chat, tmp_path):
    both = run(spec_bench.main, chat, tmp_path / "a", *SAMPLED, "--seeds", "3", "4")
    names = ["1", "3", "2", "1, turn 2", "3, turn 2", "3, turn 3"]
    alone = {seed: run(spec_bench.main, chat, tmp_path / seed, *SAMPLED, "--seed", seed) for seed in ("3", "4")}
    for arm in (PLAIN, "prompt_lookup"):
        made = answers(both["entries"], arm)
        assert list(made) == [*names, *(f"{name}, seed 4" for name in names)]
        assert {name: made[name] for name in names} == answers(alone["3"]["entries"], arm)
        assert {name: made[f"{name}, seed 4"] for name in names} == answers(alone["4"]["entries"], arm)
        assert made["3, turn 2"] != made["3, turn 2, seed 4"]
    assert [entry["seed"] for entry in both["entries"]] == [3] * 6 + [4] * 6
    assert [entry.get("began") for entry in both["entries"]] == [None, None, None, 0, 1, 1, 0, 1, 2, 0, 1, 1]
    row = both["Spec-Bench, end to end"][-1]
    assert (row["questions"], row["answers"]) == (3, 12)
    assert row["end to end"].endswith("(n = 3)")
    assert both["chat"]["prompts"] == 12
    files = {str(path.relative_to(path.parents[1])) for path in (tmp_path / "a").rglob("answers/*/*.jsonl")}
    assert files == {f"seed-{seed}/{arm}.jsonl" for seed in (3, 4) for arm in ("plain", "prompt-lookup")}


def test_a_run_of_several_seeds_goes_on_where_it_was_interrupted(chat, tmp_path):
    options = (*SAMPLED, "--seeds", "3", "4", "--trace", "4", "--show", "9")
    whole = run(spec_bench.main, chat, tmp_path, *options)
    interrupt(tmp_path, 8)
    again = run(spec_bench.main, chat, tmp_path, *options)
    for arm in (PLAIN, "prompt_lookup"):
        assert answers(again["entries"], arm) == answers(whole["entries"], arm)
    assert again["entries"][:8] == whole["entries"][:8]
    assert again["problems"] == []


@pytest.mark.parametrize(
    ("name", "options"), [("1, turn 2", ()), ("3, turn 2, seed 4", (*SAMPLED, "--seeds", "3", "4"))]
)
def test_a_name_that_a_turn_or_a_seed_would_have_too_is_refused_before_a_measurement(chat, tmp_path, name, options):
    file = write_rows(tmp_path / "question.jsonl", [*TURNS, {"question_id": name, "turns": ["a"]}])
    refused = f"^spec_bench: --prompts: two prompts would be called '{name}', as later turns and seeds are"
    with pytest.raises(SystemExit, match=refused):
        run(spec_bench.main, chat, tmp_path / "runs", *options, "--prompts", str(file))
    assert not list((tmp_path / "runs").rglob("*.jsonl"))


def test_all_turns_are_asked_under_a_template_and_first_ones_on_request(chat, whole, tmp_path):
    firsts = run(spec_bench.main, chat, tmp_path, "--strategies", "prompt_lookup", "--turns", "first")
    assert [found["Spec-Bench, end to end"][-1]["answers"] for found in (whole, firsts)] == [6, 3]


def test_a_later_batch_goes_on_with_conversations_of_one_batch():
    firsts = [NamedPrompt(str(i), "k", "x") for i in range(6)]
    seconds = [LaterTurn(f"{i}, 2", "k", "x", after=str(i), turn=2) for i in (1, 2, 3, 5)]
    thirds = [LaterTurn(f"{i}, 3", "k", "x", after=f"{i}, 2", turn=3) for i in (2, 3)]
    prompts = [*firsts, *seconds, *thirds]
    units = [[prompt.name for prompt in unit.prompts] for unit in units_of(prompts, 2)]
    assert units == [["0", "1"], ["2", "3"], ["4", "5"], ["1, 2"], ["2, 2", "3, 2"], ["5, 2"], ["2, 3", "3, 3"]]
    failed = [[prompt.name for prompt in unit.prompts] for unit in units_of(prompts, 2, {2: "too long"})]
    assert failed == [["0", "1"], ["3", "4"], ["5"], ["1, 2"], ["2, 2"], ["3, 2"], ["5, 2"], ["2, 3"], ["3, 3"], ["2"]]


def test_a_conversation_is_in_one_cluster_with_batches_too(chat, tmp_path):
    rows = [{"id": str(i), "turns": ["help me", "and again"][: 1 + (i in (1, 2))]} for i in range(4)]
    (tmp_path / "model").symlink_to(chat / "model")
    write_rows(tmp_path / "question.jsonl", rows)
    options = ("--turns", "all", "--batch-size", "2", "--num-prompts", "4")
    entries = run(lookup, tmp_path, tmp_path / "runs", *options)["entries"]
    clusters = Outcome([], entries).clusters()
    told = [{name.partition(",")[0] for entry in cluster for name in entry["prompts"]} for cluster in clusters]
    assert told == [{"0", "1"}, {"2", "3"}]
    assert [len(cluster) for cluster in clusters] == [2, 2]


def test_a_summary_says_template_stops_and_the_hash_of_the_ids(chat, tmp_path):
    oracle = oracles.load(chat / "model")
    assert oracle.chat_template is not None
    first = run(lookup, chat, tmp_path / "a")["chat"]
    assert first["template"] == {
        "name": "tokenizer_config.json", "sha256": oracle.chat_template.sha256, "arguments": {},
    }  # fmt: skip
    assert (first["stop_ids"], first["stop_strings"], first["prompts"]) == (list(oracle.eos_ids), [], 3)
    prompts = load_prompts(chat / "question.jsonl")

    def facts(prompts: list[NamedPrompt], **changes: Any) -> dict[str, Any]:
        oracle = oracles.load(chat / "model")
        return prompt_facts(oracle, as_conversations(prompts, oracle, arguments(chat, **changes)))

    assert facts(prompts) == first
    changes = [{"system": "Be brief."}, {"template": "none"}, {"template": "vicuna"}, {"turns": "all"}]
    found = [*(facts(prompts, **one) for one in changes), facts(prompts[:2])]
    assert len({one["prompts_sha256"] for one in (first, *found)}) == len(found) + 1
    assert found[1]["template"] is None
    assert found[2]["template"]["name"] == "vicuna"
    assert found[2]["stop_strings"] == ["USER:"]


def test_a_template_of_a_file_with_arguments(chat, tmp_path):
    file = tmp_path / "mine.jinja"
    file.write_text("{{ word }}{{ messages[-1].content }}{{ eos_token }}{{ flag is false }}", encoding="utf-8")
    options = ("--template", str(file), "--template-arg", "word=x=y", "flag=false")
    found = run(lookup, chat, tmp_path / "runs", *options)["chat"]
    assert found["template"]["name"] == "mine.jinja"
    assert found["template"]["arguments"] == {"word": "x=y", "flag": False}


@pytest.mark.parametrize("own", [True, False], ids=["with its own template", "without"])
def test_another_template_writes_the_bos_and_eos_of_a_gguf_file(tmp_path, own):
    general = {"tokenizer.chat_template": "{{ messages[0].content }}<|turn|>"} if own else {}
    model, keys = family_model("llama", tie_embeddings=True), tokenizer_keys()
    path = str(write_gguf(tmp_path / "model.gguf", model, tokenizer=keys, general=general))
    (tmp_path / "mine.jinja").write_text("{{ bos_token }}{{ messages[-1].content }}{{ eos_token }}", encoding="utf-8")
    oracle = oracles.load(path)
    for name in ("vicuna", str(tmp_path / "mine.jinja")):
        template = template_of({"template": name, "template_arg": [], "oracle": path}, oracle)
        assert template is not None
        ids = template.encode([{"role": "user", "content": "a"}, {"role": "assistant", "content": "the"}])
        assert (ids[0], 0 in ids) == (2, True)  # <|begin|> and <|end|>
        assert template.end_ids == (0,)


@pytest.mark.parametrize("value", ["false", "False"])
def test_a_templates_argument_may_be_spelt_as_python_does(chat, value):
    arguments = {"template": "auto", "template_arg": [f"thinks={value}", "word=Falsehood"]}
    template = template_of(arguments, oracles.load(chat / "model"))
    assert template is not None
    assert template.arguments == {"thinks": False, "word": "Falsehood"}


@pytest.mark.parametrize(("content", "told"), [(b"caf\xe9", "'utf-8' codec"), (b"{% if %}", "no Jinja: line 1")])
def test_a_file_that_is_no_template_is_named(chat, tmp_path, content, told):
    path = tmp_path / "mine.jinja"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^--template {path}: .*{told}"):
        asked(chat, [NamedPrompt("p", "k", "a")], template=str(path))


@pytest.mark.parametrize("name", ["messages", "add_generation_prompt", "bos_token", "eos_token"])
def test_what_the_conversation_gives_is_no_argument_of_a_template(chat, tmp_path, capsys, name):
    with pytest.raises(SystemExit):
        run(lookup, chat, tmp_path, "--template-arg", f"{name}=3")
    assert f"'{name}' is not to be set" in capsys.readouterr().err


def arguments(chat: Path, **changes: Any) -> dict[str, Any]:
    return {"template": "auto", "template_arg": [], "system": None, "oracle": str(chat / "model"), **changes}


def asked(chat: Path, prompts: list[NamedPrompt], **changes: Any) -> list[NamedPrompt]:
    """Return prompts as they are put to the model."""
    return as_conversations(prompts, oracles.load(chat / "model"), arguments(chat, **changes))


def test_prompts_become_turns_of_a_user(chat):
    own = ({"role": "system", "content": "own"}, {"role": "user", "content": "b"})
    prompts = [NamedPrompt("p", "k", "a", later_turns=("c",)), NamedPrompt("q", "k", "b", own)]
    first, second, later = asked(chat, prompts, system="Be brief.", turns="all")
    assert first.start == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"}]
    assert second.start == list(own)
    assert isinstance(later, LaterTurn)
    assert (later.name, later.after, later.turn) == ("p, turn 2", "p", 2)
    assert asked(chat, prompts[:1], template="none")[0].start == "a"
    assert len(asked(chat, prompts, turns="first")) == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"template": "none", "system": "x"}, "--system: prompts are raw text here"),
        ({"template": "none", "turns": "all"}, "--turns all: prompts are raw text here"),
        ({"template": "none", "template_arg": ["a=1"]}, "--template-arg: prompts are raw text here"),
        ({"template": "nowhere.jinja"}, "'nowhere.jinja' is no file, and none of auto, none, vicuna"),
    ],
)
def test_what_cannot_be_asked_is_refused(chat, changes, words):
    with pytest.raises(ValueError, match=words):
        asked(chat, [NamedPrompt("p", "k", "a")], **changes)


def test_conversations_need_a_template(chat):
    prompt = NamedPrompt("p", "k", "a", ({"role": "user", "content": "a"},))
    with pytest.raises(ValueError, match="--prompts: p is a conversation, and prompts are raw text here"):
        asked(chat, [prompt], template="none")


def test_a_prompt_that_is_no_unicode_is_a_problem_by_its_name(chat):
    oracle = oracles.load(chat / "model")
    prompts = [NamedPrompt(name, "k", text, ({"role": "user", "content": text},)) for name, text in ("pa", "q\ud800")]
    assert problems_of(oracle, prompts, 4).keys() == {1}
    assert "message 0: 'content' holds half of a surrogate pair" in problems_of(oracle, prompts, 4)[1]


def test_a_failed_answer_fails_the_next_turn_by_name(chat, tmp_path, capsys):
    (tmp_path / "model").symlink_to(chat / "model")
    row = {"id": "long", "turns": ["help " * 300, "again"]}
    (tmp_path / "question.jsonl").write_text(f"{json.dumps(row)}\n{json.dumps(TURNS[1])}\n", encoding="utf-8")
    run(lookup, tmp_path, tmp_path / "runs", "--turns", "all", status=1)
    assert "long has no answer that its next turn could go on from" in capsys.readouterr().err


def test_the_suite_of_exactness_decodes_conversations(chat, tmp_path, monkeypatch):
    monkeypatch.setattr(exactness, "law_rows", lambda: [{"mode": "law", "problem": ""}])
    found = run(exactness.main, chat, tmp_path, "--strategies", "prompt_lookup", "--num-prompts", "1")
    assert found["chat"]["template"]["name"] == "tokenizer_config.json"


def test_trees_whose_first_turns_do_not_fit_name_them(chat, tmp_path):
    file = write_rows(tmp_path / "question.jsonl", [{"question_id": 9, "turns": ["help me " * 400, "and again"]}])
    names = ["--oracle", str(chat / "model"), "--model", str(chat / "model"), "--prompts", str(file), "--turns", "all"]
    with pytest.raises(SystemExit, match=r"^trees: none of the prompts can be decoded; the first, '9', has \d+ tokens"):
        trees.main([*names, "--out", str(tmp_path / "out")])


def test_lengths_are_of_raw_text(chat, tmp_path):
    (tmp_path / "text.jsonl").write_text(json.dumps({"text": "help me with the text " * 40}), encoding="utf-8")
    options = ["--prompts", str(tmp_path / "text.jsonl"), "--lengths", "16", "--strategies", "prompt_lookup"]
    assert run(lengths.main, chat, tmp_path / "runs", *options)["chat"]["template"] is None


def test_watch_answers_a_question(chat, tmp_path, capsys):
    common = ["--oracle", str(chat / "model"), "--max-new-tokens", "8", "--temperature", "1", "--rule", "coupled"]
    assert watch.main(["help <|im_end|>", *common, "--system", "Be brief."]) == 0
    (tmp_path / "told.json").write_text(json.dumps([{"role": "user", "content": "hello sign"}]), encoding="utf-8")
    assert watch.main([*common, "--prompts", str(tmp_path / "told.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.count("The same tokens as plain decoding.") == 2
    assert "hello sign" in shown


def test_a_template_that_refuses_fails_its_prompt_by_name(chat, tmp_path, capsys):
    (tmp_path / "mistral.jinja").write_text(MISTRAL, encoding="utf-8")
    options = ("--template", str(tmp_path / "mistral.jinja"), "--system", "x", "--num-prompts", "1")
    with pytest.raises(AssertionError):
        run(lookup, chat, tmp_path / "runs", *options)
    assert "Roles must alternate" in capsys.readouterr().err


@pytest.mark.parametrize("values", [[], ["flag=false", "word=x"]])
def test_a_page_has_the_template_and_a_command_that_asks_for_it(values):
    chat = {
        "template": {"name": "mine.jinja", "sha256": "c0ffee", "arguments": {"flag": False}},
        "stop_ids": [2], "stop_strings": [], "prompts": 3, "prompts_sha256": "beef",
    }  # fmt: skip
    arguments = {"template": "mine.jinja", "template_arg": values, "turns": "all"}
    facts = {"experiment": "prompt_lookup", "arguments": arguments, "chat": chat}
    page = provenance(Run(Path(), "", "", {"provenance": facts}, Outcome([], [])))
    assert all(word in page for word in ("mine.jinja", "c0ffee", "beef", "[2]", "--turns all"))
    assert ("--template-arg flag=false word=x" in page) == bool(values)
    assert ("--template-arg" in page) == bool(values)
