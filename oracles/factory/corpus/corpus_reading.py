"""Reading the corpus: every file from its wheel or from the standard library, checked by its hash."""

import platform
import sysconfig
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from oracles.factory.corpus.corpus_filters import clean
from oracles.factory.corpus.manifest import STDLIB, Entry, Manifest, file_hash, load_manifest

# The folder of the wheels: below the checkout, ignored by git.
GATHERED = Path(__file__).parents[3] / "runs" / "corpus"
GATHER = "gather it with `python -m oracles.factory.corpus --gather`"


@dataclass(frozen=True)
class SourceFile:
    """A verified file of the corpus with its cleaned text."""

    entry: Entry
    text: str


def stdlib_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def wheel_folder(root: Path | None = None) -> Path:
    """Return the folder of the gathered wheels below ``root``, by default below the checkout."""
    return (GATHERED if root is None else root) / "wheels"


def read_split(
    name: str, root: Path | None = None, manifest: Manifest | None = None, stdlib: Path | None = None
) -> list[SourceFile]:
    """Return the verified texts of one split, in the manifest's order.

    Args:
        name: one of ``SPLITS``.
        root: the gathered folder; None: ``runs/corpus`` of the checkout.
        manifest: None: the committed one.
        stdlib: folder of the standard library; None: the running interpreter's.

    Raises:
        ValueError: a file is absent or differs from the manifest; names the file and the fix.
    """
    manifest = load_manifest() if manifest is None else manifest
    stdlib = stdlib_folder() if stdlib is None else stdlib
    wheels = {package.name: wheel_folder(root) / package.wheel for package in manifest.packages}
    found: list[SourceFile] = []
    for package, entries in groupby(manifest.split(name), key=lambda entry: entry.package):
        if package == STDLIB:
            found.extend(_from_stdlib(entries, stdlib, manifest.python_version))
        else:
            found.extend(_from_wheel(entries, wheels[package]))
    return found


def modules_only() -> Manifest:
    """Return the committed manifest without its wheels: what needs no download."""
    manifest = load_manifest()
    files = tuple(entry for entry in manifest.files if entry.package == STDLIB)
    return Manifest(manifest.python_version, (), files)


def _from_stdlib(entries: Iterable[Entry], folder: Path, version: str) -> Iterator[SourceFile]:
    advice = (
        f"the manifest describes the standard library of Python {version}, this one is {platform.python_version()}: "
        "run that version, or make a new manifest with `python -m oracles.factory.corpus --write`"
    )
    return (_read_checking(entry, lambda path: (folder / path).read_bytes(), str(folder), advice) for entry in entries)


def _from_wheel(entries: Iterable[Entry], wheel: Path) -> Iterator[SourceFile]:
    if not wheel.is_file():
        raise ValueError(f"wheel {wheel} of the corpus does not exist; {GATHER}")
    try:
        with zipfile.ZipFile(wheel) as archive:
            for entry in entries:
                yield _read_checking(entry, archive.read, str(wheel), f"delete the wheel and {GATHER}")
    except (zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"wheel {wheel} of the corpus is damaged; delete it and {GATHER}") from error


def _read_checking(entry: Entry, read: Callable[[str], bytes], place: str, advice: str) -> SourceFile:
    try:
        data = read(entry.path)
    except (OSError, KeyError) as error:
        raise ValueError(f"corpus file {entry.path} does not exist in {place}; {advice}") from error
    if file_hash(data) != entry.sha256:
        raise ValueError(f"corpus file {entry.path} in {place} differs from its hash in the manifest; {advice}")
    source = SourceFile(entry, clean(data))
    if len(source.text.encode()) != entry.num_bytes:
        raise ValueError(
            f"corpus file {entry.path} has another size once cleaned: the rules of cleaning have changed; "
            "make a new manifest with `python -m oracles.factory.corpus --write`"
        )
    return source
