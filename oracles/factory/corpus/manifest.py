"""The manifest of the corpus: which wheels and which of their files, with every hash and every file's split."""

import hashlib
import json
import lzma
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path, PurePosixPath
from typing import Any

MANIFEST = Path(__file__).parents[2] / "embedded" / "corpus.json.xz"
# The package name of the files of the standard library.
STDLIB = "stdlib"
SPLITS = ("train", "dev", "test")
# A unit's hash, read as a number in [0, 1), decides its split: below the first bound test, the second dev, else train.
TEST_BOUND = 0.09
DEV_BOUND = 0.125


@dataclass(frozen=True)
class Package:
    """One wheel of the corpus: name, version, licence, file name, SHA-256, and the family it shares its split with."""

    name: str
    version: str
    licence: str
    wheel: str
    sha256: str
    family: str

    @property
    def requirement(self) -> str:
        """Return the line of a requirements file that pins exactly this wheel."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True)
class Entry:
    """One file of the corpus.

    Attributes:
        package: name of its wheel, or ``STDLIB``.
        path: place in the wheel, or below the standard library.
        sha256: ``file_hash`` of the raw file.
        num_bytes: size of the cleaned text in UTF-8.
        split: one of ``SPLITS``.
    """

    package: str
    path: str
    sha256: str
    num_bytes: int
    split: str

    @property
    def module(self) -> str:
        """Return the top-level module that the file belongs to."""
        return module_of(self.path)


@dataclass(frozen=True)
class Manifest:
    """The corpus: the Python version of its standard library, its wheels, and its files by package and path."""

    python_version: str
    packages: tuple[Package, ...]
    files: tuple[Entry, ...]

    def split(self, name: str) -> tuple[Entry, ...]:
        """Return the files of one split.

        Args:
            name: one of ``SPLITS``.

        Raises:
            ValueError: for another name.
        """
        if name not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {name!r}")
        return tuple(entry for entry in self.files if entry.split == name)


def file_hash(data: bytes) -> str:
    """Return the first 16 hexadecimal digits of a file's SHA-256; for wheels the manifest has the whole hash."""
    return hashlib.sha256(data).hexdigest()[:16]


def module_of(path: str) -> str:
    """Return the top-level module of a path: its first part, without ``.py``."""
    return path.split("/")[0].removesuffix(".py")


def split_of(unit: str) -> str:
    """Return the split of a whole unit, a pure function of its name.

    A unit is a family of packages, or a top-level module of the standard library. Leading underscores are ignored, so
    a module and its accelerated or pure-Python twin share a split.
    """
    digest = hashlib.sha256(unit.lstrip("_").encode()).digest()
    place = int.from_bytes(digest[:8], "big") / 2**64
    return "test" if place < TEST_BOUND else "dev" if place < DEV_BOUND else "train"


def in_order(files: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return files in the manifest's order: by package, then by the parts of their paths."""
    return tuple(sorted(files, key=lambda entry: (entry.package, PurePosixPath(entry.path).parts)))


def save_manifest(manifest: Manifest, path: Path = MANIFEST) -> None:
    """Write a manifest as compressed JSON: the names of its columns, then one package or file on each line."""
    parts = [
        f'{{"python_version": {json.dumps(manifest.python_version)}',
        f'"package_columns": {json.dumps(_columns(Package))}',
        f'"packages": [\n{_rows(manifest.packages)}\n]',
        f'"file_columns": {json.dumps(_columns(Entry))}',
        f'"files": [\n{_rows(manifest.files)}\n]}}\n',
    ]
    path.write_bytes(lzma.compress(",\n".join(parts).encode(), preset=9 | lzma.PRESET_EXTREME))


def load_manifest(path: Path = MANIFEST) -> Manifest:
    """Return a saved manifest; without an argument the committed one."""
    content = json.loads(lzma.decompress(path.read_bytes()))
    packages = (Package(**row) for row in _dicts_of(content["package_columns"], content["packages"]))
    files = (Entry(**row) for row in _dicts_of(content["file_columns"], content["files"]))
    return Manifest(content["python_version"], tuple(packages), tuple(files))


def _columns(row_type: type[Package] | type[Entry]) -> list[str]:
    return [field.name for field in fields(row_type)]


def _rows(rows: Sequence[Package] | Sequence[Entry]) -> str:
    return ",\n".join(json.dumps(astuple(row), separators=(",", ":")) for row in rows)


def _dicts_of(columns: list[str], rows: list[list[Any]]) -> Iterable[dict[str, Any]]:
    return (dict(zip(columns, row, strict=True)) for row in rows)
