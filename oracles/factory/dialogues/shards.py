"""Shards: files that the repository holds, with the ids of many parts, compressed."""

import json
import lzma
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from oracles.checkpoints.config_keys import read_json
from oracles.factory.dialogues.dialogue_parts import SPLITS, Conversation, columns_of, conversations_in
from specdec.system import write_whole

# Ids of a shard, about; compressed, an id takes somewhat less than one byte, and more in smaller shards.
SHARD_IDS = 8_000_000
FACTS = "facts.json"
# Two bytes an id: the literal's and the match's place in a pair count.
_FILTERS = [{"id": lzma.FILTER_LZMA2, "preset": 9 | lzma.PRESET_EXTREME, "lc": 3, "lp": 1, "pb": 1}]


class Shards:
    """The shards of a folder: parts 0, 1, ... of one writing, in order.

    Args:
        folder: may be absent; then there are no shards.

    Raises:
        ValueError: there are shards, but nothing says how they were written, or one of them is missing.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for index, path in enumerate(self._paths()):
            if path != self._path(index):
                raise ValueError(f"{self._path(index)} is missing, and {path.name} is there: bring it back")
        if self._paths() and not (folder / FACTS).is_file():
            raise ValueError(f"{folder / FACTS} is missing, which says how the shards beside it were written")

    @property
    def facts(self) -> dict[str, str]:
        """How all parts were written; empty if there is none."""
        return read_json(self.folder / FACTS) if self._paths() else {}

    @property
    def num_parts(self) -> int:
        """Number of parts that they hold, up to the last one with a conversation."""
        paths = self._paths()
        return 1 + int(_columns(paths[-1])["parts"][-1]) if paths else 0

    def __iter__(self) -> Iterator[Conversation]:
        """Yield all conversations, in the order in which they were written."""
        for path in self._paths():
            yield from conversations_in(_columns(path))

    def split(self, name: str) -> Iterator[Conversation]:
        """Yield the conversations of one split.

        Raises:
            ValueError: an unknown split, or there is no shard.
        """
        if name not in SPLITS:
            raise ValueError(f"split is {name!r}; choose one of {', '.join(SPLITS)}")
        if not self._paths():
            raise ValueError(
                f"{self.folder} holds no shards; write them with python -m oracles.factory.dialogues shards"
            )
        return (one for one in self if one.split == name)

    def append(self, parts: Iterable[tuple[int, Sequence[Conversation]]], facts: Mapping[str, str]) -> list[Path]:
        """Write further parts; existing shards stay as they are.

        *Guarantee*: the same parts give the same bytes.

        Args:
            parts: numbers and conversations, from ``num_parts`` on, without a gap.
            facts: how they were written, the same as for earlier parts.

        Returns:
            The files that were written.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        write_whole(self.folder / FACTS, json.dumps(dict(facts), indent=1) + "\n")
        written: list[Path] = []
        waiting: list[tuple[int, Conversation]] = []
        size = 0
        for index, conversations in parts:
            waiting += [(index, one) for one in conversations]
            size += sum(len(one.ids) for one in conversations)
            if size > SHARD_IDS:
                written.append(self._write(waiting))
                waiting, size = [], 0
        if waiting:
            written.append(self._write(waiting))
        return written

    def _write(self, numbered: Sequence[tuple[int, Conversation]]) -> Path:
        path = self._path(len(self._paths()))
        columns = columns_of([one for _, one in numbered])
        columns["parts"] = np.array([index for index, _ in numbered], dtype=np.uint16)
        write_whole(path, lzma.compress(save(columns), format=lzma.FORMAT_XZ, filters=_FILTERS))
        return path

    def _path(self, index: int) -> Path:
        return self.folder / f"shard-{index:03}.safetensors.xz"

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("shard-???.safetensors.xz"))


def _columns(path: Path) -> dict[str, NDArray[Any]]:
    """Return the arrays of a shard.

    Raises:
        ValueError: the file is broken.
    """
    try:
        return dict(load(lzma.decompress(path.read_bytes())))
    except Exception as error:  # the libraries raise errors of their own
        raise ValueError(f"{path} is broken: {error}; check the file out again") from error
