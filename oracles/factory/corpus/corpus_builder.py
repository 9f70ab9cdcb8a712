"""Make a manifest from the available wheels and the standard library, by the rules of this package.

A wheel needs a licence from a short list, and no file may be a near duplicate of one that was taken.
"""

import hashlib
import math
import platform
import re
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from oracles.factory.corpus.corpus_filters import (
    clean,
    early_refusal,
    is_corpus_path,
    is_stdlib_corpus_path,
    late_refusal,
)
from oracles.factory.corpus.manifest import (
    SPLITS,
    STDLIB,
    Entry,
    Manifest,
    Package,
    file_hash,
    in_order,
    module_of,
    split_of,
)

# The most text that is taken from one wheel.
MAX_PACKAGE_BYTES = 3_000_000
# Packages that share authors or text share a split; the others are families of one.
FAMILIES = {
    "django": ("django", "djangorestframework", "wagtail"),
    "huggingface": ("datasets", "diffusers", "timm", "transformers"),
    "openstack": ("cinder", "keystone", "neutron", "nova", "swift"),
    "packaging": ("pip", "poetry", "setuptools"),
    "pallets": ("flask", "jinja2", "werkzeug"),
    "scikit": ("nilearn", "scikit-image", "scikit-learn", "statsmodels"),
    "textualize": ("rich", "textual"),
    "dask": ("dask", "distributed"),
    "ipython": ("ipython", "jedi"),
}
_FAMILY_OF = {package: family for family, packages in FAMILIES.items() for package in packages}
# The licences that a wheel may have, and what metadata calls them.
ALLOWED = frozenset({"Apache-2.0", "BSD", "BSD-2-Clause", "BSD-3-Clause", "MIT", "PSF-2.0"})
_CLASSIFIERS = {
    "Apache Software License": "Apache-2.0",
    "BSD License": "BSD",
    "MIT License": "MIT",
    "Python Software Foundation License": "PSF-2.0",
}
_PLAIN = {
    "apache 2.0": "Apache-2.0",
    "apache 2.0 license": "Apache-2.0",
    "apache license 2.0": "Apache-2.0",
    "apache license, version 2.0": "Apache-2.0",
    "bsd": "BSD",
    "mit license": "MIT",
    **{name.lower(): name for name in ALLOWED},
}
# A window is this many lines in a row, with white space normalised and without blank lines.
WINDOW_LINES = 5
# A text is a near duplicate if more than this share of its windows was seen before.
MAX_SEEN = 0.5

Raw = Iterable[tuple[str, bytes]]


class WindowIndex:
    """The windows of the texts kept so far.

    *Cost*: one 64-bit number for each line of kept text.
    """

    def __init__(self) -> None:
        """Start with no text."""
        self._windows: set[int] = set()

    def is_duplicate(self, text: str) -> bool:
        """Tell whether more than ``MAX_SEEN`` of a text's windows occur in kept texts, or earlier in itself."""
        windows = _windows(text)
        num_new = len(set(windows) - self._windows)
        return len(windows) - num_new > MAX_SEEN * len(windows)

    def add(self, text: str) -> None:
        """Keep a text."""
        self._windows.update(_windows(text))


def _windows(text: str) -> list[int]:
    """Return one number for every window of a text, in order; a short text is one window."""
    lines = [_number(" ".join(line.split())) for line in text.split("\n") if line.strip()]
    last = max(1, len(lines) - WINDOW_LINES + 1)
    return [hash(tuple(lines[start : start + WINDOW_LINES])) for start in range(last)]


def _number(line: str) -> int:
    return int.from_bytes(hashlib.blake2b(line.encode(), digest_size=8).digest(), "big")


class Builder:
    """Chooses files, one source after the other.

    Args:
        refused: the wheels of other licences.

    Attributes:
        files: those that were taken.
        dropped: the number of files that were left out, by reason.
    """

    def __init__(self, refused: tuple[str, ...]) -> None:
        self.refused, self.files = refused, list[Entry]()
        self.dropped: Counter[str] = Counter()
        self._seen = WindowIndex()

    def take(self, package: str, split: str, raw: Raw, max_bytes: float = math.inf) -> None:
        """Take the wanted files of a package in the given order, up to the first with which they exceed ``max_bytes``.

        Args:
            package: name of the files' package in the manifest.
            split: the split that they go to.
            raw: path and content of every file; read no further than needed.
            max_bytes: of cleaned text.
        """
        room = max_bytes
        for path, data in raw:
            text = self._text_to_keep(data)
            if text is None:
                continue
            num_bytes = len(text.encode())
            room -= num_bytes
            if room < 0:
                return
            self._seen.add(text)
            self.files.append(Entry(package, path, file_hash(data), num_bytes, split))

    def _text_to_keep(self, data: bytes) -> str | None:
        reason = early_refusal(data)
        if reason is None:
            text = clean(data)
            reason = "duplicate" if self._seen.is_duplicate(text) else late_refusal(text)
            if reason is None:
                return text
        self.dropped[reason] += 1
        return None


def build_manifest(
    wheels: Iterable[Path], stdlib: Path, max_bytes: int = MAX_PACKAGE_BYTES
) -> tuple[Manifest, Builder]:
    """Return the manifest of some wheels and a standard library, and the builder, which counts the dropped files.

    The files of test are chosen first, then those of dev, then those of train: of two near duplicates in different
    splits, the one in train is dropped. Within a split the standard library comes first, then the packages by name.

    Args:
        wheels: those whose licence is not allowed are left out.
        stdlib: folder of a standard library, with sources.
        max_bytes: the most text of one wheel.
    """
    packages, refused = _packages(wheels)
    builder = Builder(refused)
    for split in reversed(SPLITS):
        builder.take(STDLIB, split, _stdlib_files(stdlib, split))
        for path, package in packages:
            if split_of(package.family) == split:
                builder.take(package.name, split, _wheel_files(path), max_bytes)
    taken = {entry.package for entry in builder.files}
    kept = tuple(package for _, package in packages if package.name in taken)
    return Manifest(platform.python_version(), kept, in_order(builder.files)), builder


def package_of(wheel: Path) -> tuple[Package | None, str]:
    """Return the manifest's entry of a wheel, or None if its licence is not allowed; and the wheel's name."""
    with zipfile.ZipFile(wheel) as archive:
        name = next(name for name in archive.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
        metadata = message_from_bytes(archive.read(name))
    name = re.sub(r"[-_.]+", "-", metadata["Name"]).lower()
    licence = licence_of(metadata)
    if licence is None:
        return None, name
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return Package(name, metadata["Version"], licence, wheel.name, digest, _FAMILY_OF.get(name, name)), name


def _packages(wheels: Iterable[Path]) -> tuple[list[tuple[Path, Package]], tuple[str, ...]]:
    """Return the wheels that may be used with their entries in the manifest, by name; and the others' names."""
    found, refused = [], []
    for wheel in wheels:
        package, name = package_of(wheel)
        if package is None:
            refused.append(name)
        else:
            found.append((wheel, package))
    return sorted(found, key=lambda pair: pair[1].name), tuple(sorted(refused))


def _wheel_files(wheel: Path) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a wheel that may be wanted, in the order of their paths' hashes."""
    with zipfile.ZipFile(wheel) as archive:
        paths = [path for path in archive.namelist() if is_corpus_path(path)]
        for path in sorted(paths, key=lambda path: hashlib.sha256(path.encode()).digest()):
            yield path, archive.read(path)


def _stdlib_files(folder: Path, split: str) -> Iterator[tuple[str, bytes]]:
    """Yield the files of a standard library that may be wanted and belong to a split, in the order of their paths."""
    for path in sorted(folder.rglob("*.py")):
        name = path.relative_to(folder).as_posix()
        if is_stdlib_corpus_path(name) and split_of(module_of(name)) == split:
            yield name, path.read_bytes()


def licence_of(metadata: Message) -> str | None:
    """Return the licence that a wheel's metadata names, as an SPDX expression, or None if it is not allowed.

    It is read from ``License-Expression``, else the classifiers, else a ``License`` of one line. Every name in it must
    be in ``ALLOWED``, even if the user may choose one of them.
    """
    expression = metadata.get("License-Expression") or _of_classifiers(metadata) or _of_field(metadata)
    names = re.split(r"\s+(?:AND|OR)\s+", expression.strip("() "))
    return expression if ALLOWED.issuperset(names) else None


def _of_classifiers(metadata: Message) -> str:
    marks = [line.split(" :: ") for line in metadata.get_all("Classifier", [])]
    names = sorted({mark[-1] for mark in marks if mark[0] == "License" and mark[-1] != "OSI Approved"})
    return " AND ".join(_CLASSIFIERS.get(name, name) for name in names)


def _of_field(metadata: Message) -> str:
    field = (metadata.get("License") or "").strip()
    return _PLAIN.get(field.lower(), field)
