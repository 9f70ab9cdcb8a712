"""The corpus: Python sources under permissive licences, named file by file in a committed manifest.

It holds the standard library and the sources of packages from the package index.
``python -m oracles.factory.corpus --gather`` downloads the wheels by their pinned versions and hashes, ``--check``
verifies every file, and ``--write`` makes a new manifest (which also means a new tokenizer, checkpoints and prompts).
"""

from oracles.factory.corpus.corpus_reading import SourceFile, modules_only, read_split, stdlib_folder
from oracles.factory.corpus.manifest import SPLITS, STDLIB, Entry, Manifest, load_manifest

__all__ = [
    "SPLITS",
    "STDLIB",
    "Entry",
    "Manifest",
    "SourceFile",
    "load_manifest",
    "modules_only",
    "read_split",
    "stdlib_folder",
]
