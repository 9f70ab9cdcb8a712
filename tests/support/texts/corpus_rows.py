"""Tiny wheels, standard libraries and texts for the tests of the corpus."""

import hashlib
import platform
import zipfile
from collections.abc import Mapping
from pathlib import Path

import pytest

from oracles.factory import corpus
from oracles.factory.corpus.corpus_reading import wheel_folder


def wheel(folder: Path, name: str, files: Mapping[str, str], metadata: str = "License-Expression: MIT\n") -> Path:
    """Write a wheel of version 1.0 with some files and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    head = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
    with zipfile.ZipFile(path, "w") as archive:
        for place, text in files.items():
            archive.writestr(place, text)
        archive.writestr(f"{name}-1.0.dist-info/METADATA", head + metadata)
    return path


def write_files(folder: Path, files: Mapping[str, str]) -> Path:
    """Write some files below a folder, line ends untouched, and return the folder."""
    for place, text in files.items():
        path = folder / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text.encode())
    return folder


def code(seed: str, num_lines: int = 30) -> str:
    """Return a module of its own: every line differs from those of another seed."""
    names = [hashlib.sha256(f"{seed} {i}".encode()).hexdigest()[:12] for i in range(num_lines)]
    return "".join(f"name_{name} = call_{name}({i})\n" for i, name in enumerate(names))


MANIFEST = corpus.load_manifest()
gathered = pytest.mark.skipif(
    platform.python_version() != MANIFEST.python_version
    or not all((wheel_folder() / package.wheel).is_file() for package in MANIFEST.packages),
    reason=f"needs what `python -m oracles.factory.corpus --gather` gathers, and Python {MANIFEST.python_version}",
)
