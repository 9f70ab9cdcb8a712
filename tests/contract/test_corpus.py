"""The corpus: a manifest that holds what it promises, and files that are read only as it names them."""

import hashlib
import platform
from pathlib import Path

import pytest

from oracles import corpus

MANIFEST = corpus.load_manifest()
same_python = pytest.mark.skipif(
    platform.python_version() != MANIFEST.python_version,
    reason=f"the corpus is the standard library of Python {MANIFEST.python_version}",
)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A standard library of four wanted files and five unwanted ones."""
    table = "TABLE = {" + ", ".join(f"{i}: {i * i}" for i in range(200)) + "}\n"
    files = {
        "cmd.py": "x = 1\n",
        "json/decoder.py": "y = 2\r\n",
        "json/__init__.py": "z = '\u00e9'\n",
        "shutil.py": "def f():\n    return 3\n",
        "entities.py": table,
        "empty.py": "\n",
        "test/test_cmd.py": "a = 1\n",
        "json/tests/test_json.py": "b = 1\n",
        "_sysconfigdata_x.py": "c = 1\n",
    }
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True, parents=True)
        path.write_bytes(text.encode())
    return tmp_path


def test_manifest_names_every_file_once_in_order() -> None:
    paths = [entry.path for entry in MANIFEST.files]
    assert paths == sorted(set(paths), key=lambda path: Path(path).parts)
    assert len(paths) > 400


def test_splits_are_whole_modules_and_cover_the_corpus() -> None:
    train, heldout = ({entry.module for entry in MANIFEST.split(name)} for name in corpus.SPLITS)
    assert heldout
    assert train
    assert not train & heldout
    assert all(entry.split == corpus.split_of(entry.module) for entry in MANIFEST.files)
    assert sum(len(MANIFEST.split(name)) for name in corpus.SPLITS) == len(MANIFEST.files)


def test_heldout_share_is_a_few_percent() -> None:
    sizes = [sum(entry.num_bytes for entry in MANIFEST.split(name)) for name in corpus.SPLITS]
    assert 0.03 < sizes[1] / sum(sizes) < 0.10


def test_manifest_excludes_what_the_rule_excludes() -> None:
    parts = {part for entry in MANIFEST.files for part in Path(entry.path).parts}
    assert not parts & corpus.EXCLUDED_FOLDERS


@same_python
def test_local_library_matches_the_manifest() -> None:
    for name in corpus.SPLITS:
        for source in corpus.read_split(name):
            data = source.text.encode()
            assert hashlib.sha256(data).hexdigest() == source.entry.sha256
            assert len(data) == source.entry.num_bytes


@same_python
def test_manifest_is_what_the_rule_gives() -> None:
    assert corpus.build_manifest(corpus.stdlib_folder()) == MANIFEST


def test_build_leaves_out_tests_tables_and_configuration(library: Path) -> None:
    paths = [entry.path for entry in corpus.build_manifest(library).files]
    assert paths == ["cmd.py", "json/__init__.py", "json/decoder.py", "shutil.py"]


def test_saved_manifest_reads_back(library: Path, tmp_path: Path) -> None:
    manifest = corpus.build_manifest(library)
    corpus.save_manifest(manifest, tmp_path / "corpus.json")
    assert corpus.load_manifest(tmp_path / "corpus.json") == manifest


def test_texts_are_read_untouched(library: Path) -> None:
    manifest = corpus.build_manifest(library)
    texts = {s.entry.path: s.text for name in corpus.SPLITS for s in corpus.read_split(name, library, manifest)}
    assert texts["json/decoder.py"] == "y = 2\r\n"
    assert texts["json/__init__.py"] == "z = '\u00e9'\n"


@pytest.mark.parametrize("damage", [lambda path: path.unlink(), lambda path: path.write_text("x = 2\n")])
def test_a_file_that_differs_is_refused_by_name(library: Path, damage) -> None:
    manifest = corpus.build_manifest(library)
    damage(library / "cmd.py")
    with pytest.raises(ValueError, match=r"cmd\.py.*oracles\.corpus --write"):
        corpus.read_split(corpus.split_of("cmd"), library, manifest)


def test_unknown_split_is_refused() -> None:
    with pytest.raises(ValueError, match="validation"):
        corpus.read_split("validation")


def test_underscores_do_not_move_a_module() -> None:
    assert all(corpus.split_of(f"_{entry.module}") == entry.split for entry in MANIFEST.files)
