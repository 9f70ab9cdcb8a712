"""The commands of ``oracles.factory.evaluate`` on checkpoints of a few thousand parameters: what they print."""

from dataclasses import replace
from pathlib import Path

import pytest
from tokenizers import Tokenizer

import oracles.factory.evaluate as evaluate
from oracles.factory.arithmetic.problems import ANSWER_LENGTH
from oracles.factory.arithmetic.tokens import ALPHABET, build_tokenizer
from oracles.factory.corpus import STDLIB, Entry, SourceFile
from oracles.factory.train import TOKENIZER
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.recipes import RECIPES
from oracles.heads import HeadShape, save_head
from oracles.transformer.blocks import Adapter
from oracles.transformer.eager import Transformer
from tests.support.runs.experiments import write_rows

pytestmark = pytest.mark.usefixtures("documents")

CODE = Tokenizer.from_file(str(TOKENIZER))
CONFIG = replace(RECIPES["tiny"].recipe.config, max_context=512)
TEXTS = ["".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(first, first + 60)) for first in (0, 60)]


def exported(folder: Path, seed: int, vocab_size: int = CODE.get_vocab_size(), tokenizer: Tokenizer = CODE) -> str:
    config = replace(CONFIG, vocab_size=vocab_size)
    export_checkpoint(Transformer(config, seed=seed).state_dict(), config, tokenizer, folder)
    return str(folder)


def read_split(name: str) -> list[SourceFile]:
    """Return two files, whatever the split."""
    entries = [Entry(STDLIB, f"{i}.py", str(i), len(text.encode()), name) for i, text in enumerate(TEXTS)]
    return [SourceFile(entry, text) for entry, text in zip(entries, TEXTS, strict=True)]


@pytest.fixture
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return two small checkpoints, an exit head of the first and a file of prompts."""
    monkeypatch.setattr("oracles.factory.evaluation.commands.read_split", read_split)
    monkeypatch.setattr("oracles.factory.evaluate.keep_freed_memory", lambda: None)
    save_head(Adapter(CONFIG, 16), HeadShape.of(CONFIG, 1, 16), tmp_path / "head")
    rows = [{"id": f"p{i}", "kind": "all", "prompt": f"def f{i}(x):\n", "reference": "x = x\n" * 9} for i in range(3)]
    prompts = write_rows(tmp_path / "prompts.jsonl", rows)
    checkpoints = {name: exported(tmp_path / name, seed) for seed, name in enumerate(("oracle", "draft"))}
    return {**checkpoints, "head": str(tmp_path / "head"), "prompts": str(prompts)}


def rows_of(printed: str) -> list[list[str]]:
    """Return the cells of all table rows that are printed, rulers left out."""
    lines = [line for line in printed.splitlines() if line.startswith("|") and "--" not in line]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


def test_bits(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    evaluate.main(["bits", "--oracle", folders["oracle"], "--drafts", folders["draft"], "--ngram-bytes", "1000"])
    header, *rows = rows_of(capsys.readouterr().out)
    assert header == ["model", "parameters", "MB on disk", "bits per byte"]
    models = [f"`{folders[name]}`" for name in ("oracle", "draft")]
    assert [row[0] for row in rows] == [*models, "5-gram of 0.001 MB of *train*", "`xz -9e`"]
    numbers = [float(row[3]) for row in rows]
    assert numbers[2] < 1 < numbers[0] < 8  # counts of this very text, and a model that has learnt nothing


@pytest.mark.parametrize("split", ["dev", "test"])
def test_text(split: str, folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    of = ["--split", split, "--tokens", "24", "--num-prompts", "2", "--show", "1"]
    prompts = ["--prompts", folders["prompts"]] if split == "test" else []
    evaluate.main(["text", "--oracle", folders["oracle"], *of, *prompts])
    printed = capsys.readouterr().out
    header, *rows = rows_of(printed)
    assert header == ["text", "texts", "tokens", "tokens in loops", "texts with a loop"]
    names = ["greedy", "temperature 0.8, top-p 0.95", "how the prompts really go on", f"windows of *{split}*"]
    assert [row[0] for row in rows] == names
    assert [row[1] for row in rows[:3]] == ["2", "2", "2"]
    if split == "test":
        assert rows[2][3:] == ["100.00%", "100.0%"]  # the references say one line again and again
    assert printed.count("### ") == 1


def test_drafts(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    oracle, draft, head = (folders[name] for name in ("oracle", "draft", "head"))
    models = ["--oracle", oracle, "--drafts", draft, oracle, "--heads", head, "--ngram-bytes", "1000"]
    evaluate.main(["drafts", *models, "--prompts", folders["prompts"], "--tokens", "8"])
    header, *rows = rows_of(capsys.readouterr().out)
    plain = ["overlap", "same likeliest id"]
    assert header == ["draft", *plain, *(f"{name}, loops left out" for name in plain)]
    counted = ["4-gram of the standard library in *train*", "5-gram of 0.001 MB of *train*"]
    assert [row[0] for row in rows] == [f"`{draft}`", f"`{oracle}`", f"`{head}`, after 1 of 2 layers", *counted]
    assert rows[1][1:3] == ["1", "1"]
    assert all(0 < float(row[1]) < 1 for row in rows if row[0] != f"`{oracle}`")


def test_a_checkpoint_without_a_tokenizer_is_refused(folders: dict[str, str]) -> None:
    (Path(folders["oracle"]) / "tokenizer.json").unlink()
    with pytest.raises(SystemExit, match=r"evaluate: .* has no tokenizer"):
        evaluate.main(["bits", "--oracle", folders["oracle"]])


def test_a_draft_of_another_vocabulary_is_refused(folders: dict[str, str], tmp_path: Path) -> None:
    other = exported(tmp_path / "other", 0, len(ALPHABET), build_tokenizer())
    with pytest.raises(SystemExit, match=r"evaluate: .* has 17 ids, and the oracle 3072"):
        evaluate.main(["drafts", "--oracle", folders["oracle"], "--drafts", other, "--prompts", folders["prompts"]])


def test_arithmetic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = [exported(tmp_path / str(i), i, len(ALPHABET), build_tokenizer()) for i in range(2)]
    evaluate.main(["arithmetic", "--oracle", names[0], "--drafts", names[1], "--num-problems", "5"])
    printed = capsys.readouterr().out
    exact, agreement = rows_of(printed)[1:3], rows_of(printed)[4:]
    assert [row[0] for row in exact] == [f"`{name}`" for name in names]
    assert [row[3:] for row in exact] == [["0", "0.00%"]] * 2
    assert [row[0] for row in agreement] == [f"`{names[1]}`"]
    assert f"{5 * ANSWER_LENGTH} tokens" in printed


@pytest.mark.parametrize("argv", [[], ["nonsense"], ["bits", "--split", "train"], ["text", "--heads", "x"]])
def test_unknown_commands_and_options_are_errors(argv: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        evaluate.main(argv)
    assert stop.value.code == 2
    assert capsys.readouterr().err
