"""Read a GGUF file's header, checking every size before anything so large is allocated; then map the file."""

import mmap
import struct
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oracles.checkpoints.config_keys import errors_of
from oracles.checkpoints.gguf.storages import OTHER_STORAGES, STORAGES, Storage

MAGIC = b"GGUF"
VERSIONS = (2, 3)
# The number of a value's type -> numpy's name of it.
_NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
_BOOL, _STRING, _ARRAY = 7, 8, 9
# The fewest bytes that a key with its value (an empty name, a type, one byte) and a tensor with one side take.
_LEAST_KEY, _LEAST_TENSOR = 13, 32
_MOST_SIDES, _DEFAULT_ALIGNMENT, _LONGEST_NAME = 4, 32, 256

Bytes = NDArray[np.uint8]


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor lies.

    Args:
        shape: numbers along the last side are neighbours.
        storage: how its numbers are stored.
        start: offset of its first byte in the file.
    """

    shape: tuple[int, ...]
    storage: Storage
    start: int

    @property
    def bytes(self) -> int:
        """Number of bytes that it takes."""
        return prod(self.shape) // self.storage.block * self.storage.block_bytes


class GGUFFile:
    """A GGUF file of version 2 or 3, little-endian: its keys, and its tensors on demand.

    Args:
        path: of the file.

    Attributes:
        keys: numbers, strings, lists of strings and arrays of numbers, by name.
        tensors: by name.

    Raises:
        ValueError: it is no such file, it is cut off, or its counts, sizes or offsets are impossible; the message names
            the file and what is wrong.

    Guarantee: memory is bounded by a small multiple of the file's size, whatever the file claims; tensors do not
        overlap.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._bytes = _map_file(path)
        with errors_of(path):
            cursor = _Cursor(self._bytes)
            num_tensors, num_keys = _counts(cursor)
            self.keys = _keys(cursor, num_keys)
            self.tensors = _tensors(cursor, num_tensors, _alignment(self.keys))

    def blocks(self, name: str) -> Bytes:
        """Return the bytes of a tensor, ``[rows, bytes]``: a view of the mapped file."""
        tensor = self.tensors[name]
        return self._bytes[tensor.start : tensor.start + tensor.bytes].reshape(prod(tensor.shape[:-1]), -1)


def is_gguf(path: Path) -> bool:
    """Tell whether a file is a GGUF file, by its name or its first bytes."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix == ".gguf" or file.read(len(MAGIC)) == MAGIC


def _map_file(path: Path) -> Bytes:
    """Return the bytes of a file, mapped copy-on-write; nobody writes to them."""
    try:
        with path.open("rb") as file:
            return np.frombuffer(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY), np.uint8)
    except (OSError, ValueError) as error:
        raise ValueError(f"{path}: no GGUF file can be read there: {error}") from error


class _Cursor:
    """Reads a header from its beginning, and never beyond the file's end."""

    def __init__(self, content: Bytes) -> None:
        self.content, self.at = content, 0

    @property
    def num_left(self) -> int:
        """Number of bytes that follow."""
        return len(self.content) - self.at

    def take(self, count: int, what: str) -> Bytes:
        """Return the next bytes; ``what`` names them in errors."""
        if count > self.num_left:
            raise ValueError(f"{what} at byte {self.at} takes {count} bytes, and the file ends after {self.num_left}")
        self.at += count
        return self.content[self.at - count : self.at]

    def number(self, kind: str, what: str) -> Any:
        """Return the next number of a type of ``struct``."""
        return struct.unpack(f"<{kind}", self.take(struct.calcsize(f"<{kind}"), what).tobytes())[0]

    def name(self, what: str) -> str:
        """Return the next string, which is a name."""
        found = self.string(what)
        if len(found) > _LONGEST_NAME:
            raise ValueError(f"{what} has {len(found)} characters; known names have {_LONGEST_NAME} at most")
        return found

    def string(self, what: str) -> str:
        """Return the next string: its length, then UTF-8."""
        size = self.number("Q", f"the length of {what}")
        start = self.at
        try:
            return self.take(size, what).tobytes().decode()
        except UnicodeDecodeError as error:
            raise ValueError(f"{what} at byte {start} is no UTF-8: {error}") from error

    def count(self, what: str, least: int) -> int:
        """Return the next number, a count of items that take at least ``least`` bytes each of what follows."""
        found = int(self.number("Q", f"the number of {what}"))
        if found * least > self.num_left:
            raise ValueError(f"it claims {found} {what}, more than the {self.num_left} bytes that follow can hold")
        return found


def _counts(cursor: _Cursor) -> tuple[int, int]:
    """Return the numbers of tensors and keys, after magic and version."""
    if (magic := cursor.take(len(MAGIC), "the magic").tobytes()) != MAGIC:
        raise ValueError(f"it begins with {magic!r}, and a GGUF file with {MAGIC!r}")
    version = cursor.number("I", "the version")
    if version & 0xFFFF == 0:
        raise ValueError("it is big-endian, and only little-endian files are read; convert it")
    if version not in VERSIONS:
        raise ValueError(f"it is of version {version}; known: {', '.join(map(str, VERSIONS))}; convert it")
    num_tensors = cursor.count("tensors", _LEAST_TENSOR)
    return num_tensors, cursor.count("keys", _LEAST_KEY)


def _keys(cursor: _Cursor, count: int) -> dict[str, Any]:
    keys: dict[str, Any] = {}
    for index in range(count):
        name = cursor.name(f"the name of key {index}")
        if name in keys:
            raise ValueError(f"key {name!r} stands there twice")
        keys[name] = _value(cursor, cursor.number("I", f"the type of {name!r}"), repr(name))
    return keys


def _value(cursor: _Cursor, kind: int, what: str) -> Any:
    if kind == _STRING:
        return cursor.string(what)
    if kind == _ARRAY:
        return _array(cursor, cursor.number("I", f"the type of {what}"), what)
    number = _numbers(cursor, kind, 1, what)[0]
    # A float32 becomes its shortest decimal, the number that its writer had.
    return float(str(number)) if number.dtype == np.float32 else number.item()


def _array(cursor: _Cursor, kind: int, what: str) -> list[str] | NDArray[Any]:
    if kind == _ARRAY:
        raise ValueError(f"{what} is an array of arrays, which no key of a model is")
    if kind == _STRING:
        return [cursor.string(what) for _ in range(cursor.count(f"strings in {what}", 8))]
    return _numbers(cursor, kind, cursor.count(f"numbers in {what}", 1), what)


def _numbers(cursor: _Cursor, kind: int, count: int, what: str) -> NDArray[Any]:
    """Return the next ``count`` numbers as a copy, because the file may store them unaligned."""
    if kind == _BOOL:
        found = cursor.take(count, what)
        if found.max(initial=0) > 1:
            raise ValueError(f"{what} is a truth value, and holds the byte {found.max()}")
        return found.astype(bool)
    if kind not in _NUMBERS:
        raise ValueError(f"{what} is of type {kind}, which is unknown")
    dtype = np.dtype(_NUMBERS[kind])
    return cursor.take(count * dtype.itemsize, what).copy().view(dtype)


def _alignment(keys: dict[str, Any]) -> int:
    """Return the alignment: all offsets of tensors are multiples of it."""
    found = keys.get("general.alignment", _DEFAULT_ALIGNMENT)
    if type(found) is not int or found < 8 or found & (found - 1):
        raise ValueError(f"general.alignment is {found!r:.40}; it must be a power of two, at least 8")
    return found


def _tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, StoredTensor]:
    """Return the tensors by name, after checking that they lie within the file and do not overlap."""
    found: dict[str, StoredTensor] = {}
    for index in range(count):
        name = cursor.name(f"the name of tensor {index}")
        if name in found:
            raise ValueError(f"tensor {name!r} stands there twice")
        found[name] = _tensor(cursor, name, alignment)
    begin = -(-cursor.at // alignment) * alignment
    placed = {name: StoredTensor(t.shape, t.storage, begin + t.start) for name, t in found.items()}
    end, before = begin, ""
    for name, tensor in sorted(placed.items(), key=lambda item: item[1].start):
        if tensor.start < end:
            raise ValueError(f"tensor {name!r} begins at byte {tensor.start}, inside of {before!r}")
        end, before = tensor.start + tensor.bytes, name
        if end > len(cursor.content):
            raise ValueError(f"tensor {name!r} ends at byte {end}, and the file has {len(cursor.content)}")
    return placed


def _tensor(cursor: _Cursor, name: str, alignment: int) -> StoredTensor:
    """Return the next tensor; it starts at its offset after the header."""
    what = f"tensor {name!r}"
    num_sides = cursor.number("I", f"the number of sides of {what}")
    if not 1 <= num_sides <= _MOST_SIDES:
        raise ValueError(f"{what} has {num_sides} sides; known are 1 to {_MOST_SIDES}")
    shape = tuple(cursor.number("Q", f"the shape of {what}") for _ in range(num_sides))[::-1]
    storage = _storage(cursor.number("I", f"the type of {what}"), what)
    if 0 in shape or shape[-1] % storage.block:
        raise ValueError(f"{what} has the shape {shape}; {storage.name} takes rows of a multiple of {storage.block}")
    start = cursor.number("Q", f"the offset of {what}")
    if start % alignment:
        raise ValueError(f"{what} has the offset {start}, which is no multiple of the alignment {alignment}")
    return StoredTensor(shape, storage, start)


def _storage(number: int, what: str) -> Storage:
    if number not in STORAGES:
        name = OTHER_STORAGES.get(number, "unknown")
        known = ", ".join(storage.name for storage in STORAGES.values())
        raise ValueError(f"{what} is of type {number} ({name}), which is not read; convert the file to one of {known}")
    return STORAGES[number]
