"""Parts: files of conversations."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from oracles.factory.dialogues.dialogue_tasks import KINDS, Kind
from specdec.system import write_whole

SPLITS = ("train", "dev", "test")
# Of 256 conversations, this many go to dev, and as many to test.
HELD_OUT = 8


@dataclass(frozen=True)
class Conversation:
    """What was said.

    Attributes:
        ids: ``[T]`` of all turns after the system's.
        answers: begin and end of each answer in them, including the id that ends the turn, if there is one.
        kind, temperature: of the task.
        split: one of ``SPLITS``.
    """

    ids: NDArray[np.uint16]
    answers: tuple[tuple[int, int], ...]
    kind: Kind
    temperature: float
    split: str

    @property
    def num_answered(self) -> int:
        """Tokens of the answers."""
        return sum(stop - start for start, stop in self.answers)


def split_of(source: str) -> str:
    """Return the split of all conversations that begin from a text, a pure function of the text."""
    place = hashlib.sha256(source.encode()).digest()[0]
    return "test" if place < HELD_OUT else "dev" if place < 2 * HELD_OUT else "train"


def write_part(path: Path, conversations: Sequence[Conversation], facts: dict[str, str]) -> None:
    """Write conversations, all or none; ``facts`` say how they were made."""
    write_whole(path, save(columns_of(conversations), metadata=facts))


def read_part(path: Path) -> list[Conversation]:
    """Return the conversations of a part; ValueError: the file is broken."""
    with _open_part(path) as file:
        columns = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (it is no mapping)
    return list(conversations_in(columns))


def facts_of(path: Path) -> dict[str, str]:
    """Return how a part was made; ValueError: the file is broken."""
    with _open_part(path) as file:
        return dict(file.metadata() or {})


@contextmanager
def _open_part(path: Path) -> Iterator[Any]:
    try:
        with safe_open(path, framework="numpy") as file:
            yield file
    except SafetensorError as error:
        fix = "remove it and the parts after it, which are then written again"
        raise ValueError(f"{path} is broken: {error}; {fix}") from error


def columns_of(conversations: Sequence[Conversation]) -> dict[str, NDArray[Any]]:
    """Return what was said in C conversations as arrays by name.

    Returns:
        "ids" ``[S]`` uint16, those of all conversations, one after the other; "ends" ``[C]`` int32, where each one
        ends in them; "answers" ``[A, 3]`` int32, the conversation of each answer, and its begin and end in that one's
        ids; "kinds" and "splits" ``[C]`` uint8, places in ``KINDS`` and ``SPLITS``; "temperatures" ``[C]`` float32.
    """
    empty = np.zeros(0, np.uint16)
    spans = [(i, *span) for i, conversation in enumerate(conversations) for span in conversation.answers]
    return {
        "ids": np.concatenate([empty, *(conversation.ids for conversation in conversations)]),
        "ends": np.cumsum([len(conversation.ids) for conversation in conversations], dtype=np.int32),
        "answers": np.array(spans, dtype=np.int32).reshape(-1, 3),
        "kinds": np.array([KINDS.index(conversation.kind) for conversation in conversations], dtype=np.uint8),
        "temperatures": np.array([conversation.temperature for conversation in conversations], dtype=np.float32),
        "splits": np.array([SPLITS.index(conversation.split) for conversation in conversations], dtype=np.uint8),
    }


def conversations_in(columns: Mapping[str, NDArray[Any]]) -> Iterator[Conversation]:
    """Yield the conversations that columns hold, see ``columns_of``."""
    ends = columns["ends"].tolist()
    spans: list[list[tuple[int, int]]] = [[] for _ in ends]
    for index, start, stop in columns["answers"].tolist():
        spans[index].append((start, stop))
    for i, (start, stop) in enumerate(zip([0, *ends], ends, strict=False)):
        yield Conversation(
            ids=columns["ids"][start:stop],
            answers=tuple(spans[i]),
            kind=KINDS[columns["kinds"][i]],
            temperature=round(float(columns["temperatures"][i]), 6),
            split=SPLITS[columns["splits"][i]],
        )
