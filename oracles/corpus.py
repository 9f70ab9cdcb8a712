"""The training corpus: the Python standard library's own source, named file by file in a committed manifest.

``python -m oracles.corpus --check`` verifies the local standard library against the manifest;
``--write`` makes a new manifest (which also means a new tokenizer, new checkpoints and new prompts).
"""

import argparse
import ast
import hashlib
import json
import platform
import sysconfig
from dataclasses import asdict, dataclass
from pathlib import Path

MANIFEST = Path(__file__).parent / "embedded" / "corpus.json"

EXCLUDED_FOLDERS = frozenset(
    {"site-packages", "test", "tests", "idlelib", "lib2to3", "encodings", "pydoc_data", "__pycache__"}
)
SPLITS = ("train", "heldout")
# A module is held out when the hash of its name, read as a number in [0, 1), lies below this.
HELDOUT_THRESHOLD = 0.06
# A literal with this many constants is a table; a file that is table for more than half of its bytes is left out.
TABLE_CONSTANTS = 64
TABLE_SHARE = 0.5


@dataclass(frozen=True)
class Entry:
    """One file of the corpus: its path below the standard library, hash, size in bytes and split."""

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
    """The corpus: the Python version whose library it is, and its files in order of path."""

    python_version: str
    files: tuple[Entry, ...]

    def split(self, name: str) -> tuple[Entry, ...]:
        """Return the files of one split.

        Args:
            name: "train" or "heldout".

        Raises:
            ValueError: for another name.
        """
        if name not in SPLITS:
            raise ValueError(f"split must be one of {SPLITS}, got {name!r}")
        return tuple(entry for entry in self.files if entry.split == name)


@dataclass(frozen=True)
class SourceFile:
    """A verified file of the corpus with its text, line ends untouched."""

    entry: Entry
    text: str


def stdlib_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def module_of(path: str) -> str:
    """Return the top-level module of a path below the standard library: its first part, without ``.py``."""
    return path.split("/")[0].removesuffix(".py")


def split_of(module: str) -> str:
    """Return the split of a whole module, a pure function of its name.

    Leading underscores do not count, so that a module and its accelerator or pure twin share a split.
    """
    digest = hashlib.sha256(module.lstrip("_").encode()).digest()
    return "heldout" if int.from_bytes(digest[:8], "big") / 2**64 < HELDOUT_THRESHOLD else "train"


def _is_table(node: ast.AST) -> bool:
    is_literal = isinstance(node, ast.Dict | ast.List | ast.Tuple | ast.Set)
    return is_literal and sum(isinstance(part, ast.Constant) for part in ast.walk(node)) >= TABLE_CONSTANTS


def table_share(text: str) -> float:
    """Return the share of a source text's bytes that stand in literals with at least ``TABLE_CONSTANTS`` constants."""
    total = 0
    queue: list[ast.AST] = [ast.parse(text)]
    while queue:
        node = queue.pop()
        if _is_table(node):
            total += len((ast.get_source_segment(text, node) or "").encode())
        else:
            queue.extend(ast.iter_child_nodes(node))
    return total / max(1, len(text.encode()))


def _wanted(path: Path, root: Path) -> bool:
    parts = path.relative_to(root).parts
    if EXCLUDED_FOLDERS.intersection(parts) or parts[0].startswith(("config-", "_sysconfigdata")):
        return False
    text = path.read_bytes().decode("utf-8")
    return bool(text.strip()) and table_share(text) <= TABLE_SHARE


def build_manifest(root: Path) -> Manifest:
    """Return the manifest of the standard library under ``root``.

    Left out: ``EXCLUDED_FOLDERS`` at any depth, build configuration of one machine, empty files and generated
    tables (more than ``TABLE_SHARE`` of the bytes in large literals).

    Args:
        root: folder of a standard library, with sources.
    """
    entries = []
    for path in sorted(root.rglob("*.py")):
        if _wanted(path, root):
            name, data = path.relative_to(root).as_posix(), path.read_bytes()
            entries.append(Entry(name, hashlib.sha256(data).hexdigest(), len(data), split_of(module_of(name))))
    return Manifest(platform.python_version(), tuple(entries))


def save_manifest(manifest: Manifest, path: Path = MANIFEST) -> None:
    """Write a manifest as JSON, one file a line."""
    rows = ",\n".join("  " + json.dumps(asdict(entry)) for entry in manifest.files)
    path.write_text(f'{{"python_version": "{manifest.python_version}", "files": [\n{rows}\n]}}\n', encoding="utf-8")


def load_manifest(path: Path = MANIFEST) -> Manifest:
    """Return the committed manifest."""
    content = json.loads(path.read_text(encoding="utf-8"))
    return Manifest(content["python_version"], tuple(Entry(**row) for row in content["files"]))


def _read(entry: Entry, root: Path, version: str) -> SourceFile:
    path = root / entry.path
    advice = (
        f"the manifest describes the standard library of Python {version}, this one is {platform.python_version()}: "
        "run that version, or make a new manifest with `python -m oracles.corpus --write`"
    )
    if not path.is_file():
        raise ValueError(f"corpus file {path} does not exist; {advice}")
    data = path.read_bytes()
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise ValueError(f"corpus file {path} differs from its hash in the manifest; {advice}")
    return SourceFile(entry, data.decode("utf-8"))


def read_split(name: str, root: Path | None = None, manifest: Manifest | None = None) -> list[SourceFile]:
    """Return the verified texts of one split, in order of path.

    Args:
        name: "train" or "heldout".
        root: folder of the standard library; None: the running interpreter's.
        manifest: None: the committed one.

    Raises:
        ValueError: where a file is absent or differs from the manifest; names the file and the fix.
    """
    manifest = load_manifest() if manifest is None else manifest
    root = stdlib_folder() if root is None else root
    return [_read(entry, root, manifest.python_version) for entry in manifest.split(name)]


def main() -> None:
    """Check the local standard library against the manifest, or write a new manifest."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--check", action="store_true", help="verify every file by its hash")
    action.add_argument("--write", action="store_true", help="make a new manifest from the local standard library")
    if parser.parse_args().write:
        save_manifest(build_manifest(stdlib_folder()))
    for split in SPLITS:
        entries = [source.entry for source in read_split(split)]
        modules = len({entry.module for entry in entries})
        print(f"{split}: {len(entries)} files, {modules} modules, {sum(e.num_bytes for e in entries):,} bytes")


if __name__ == "__main__":
    main()
