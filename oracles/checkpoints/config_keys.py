"""Read the keys of a JSON object so that none is ignored by accident, with errors that name the source."""

import json
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

REQUIRED: Any = object()
# How a model that is refused here may run.
ELSEWHERE = "as transformers computes it: oracles.load_huggingface(DIR), on a command line hf:DIR"
_LARGEST = {int: 2**63 - 1, float: sys.float_info.max}


@contextmanager
def errors_of(source: object) -> Iterator[None]:
    """Prefix the message of a ValueError with the name of a source.

    Raises:
        ValueError: the body raised one; its message is now "source: message".
    """
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds.

    Raises:
        ValueError: it holds none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds no JSON object")
    return content


class ConfigKeys:
    """The keys of one JSON object, each of which must be read, be inert or hold its one supported value.

    Args:
        values: the object.
        source: names it in errors.
    """

    def __init__(self, values: Mapping[str, Any], source: str) -> None:
        self.values = values
        self.source = source
        self._read: set[str] = set()

    def read(self, name: str, kind: type, default: Any = REQUIRED) -> Any:
        """Return the value of a key; an absent key and null give ``default``.

        Args:
            name: of the key.
            kind: int (of 64 bits), float (finite; takes ints too), bool, str, list (of strings) or dict.
            default: returned if there is no value; ``REQUIRED``: that is an error.

        Raises:
            ValueError: the value is of another type or out of bounds, or a required value is absent.
        """
        self._read.add(name)
        value = self.values.get(name)
        if value is None:
            if default is REQUIRED:
                raise ValueError(f"{self.source} lacks {name!r}; this architecture needs it")
            return default
        legal = isinstance(value, (int, float) if kind is float else kind)
        if not legal or (kind in (int, float) and isinstance(value, bool)):
            raise ValueError(f"{self.source}: {name!r} is {value!r:.40}; it must be of type {kind.__name__}")
        if kind in _LARGEST and not abs(value) <= _LARGEST[kind]:
            raise ValueError(f"{self.source}: {name!r} is {value!r:.40}; it must be finite and fit into 64 bits")
        if kind is list and not all(isinstance(entry, str) for entry in value):
            raise ValueError(f"{self.source}: {name!r} is {value!r}; it must be a list of strings")
        return value

    def read_numbers(self, name: str) -> tuple[int, ...] | None:
        """Return a list of whole numbers; None if the key is absent or null.

        Raises:
            ValueError: it is something else.
        """
        self._read.add(name)
        value = self.values.get(name)
        if value is not None and not (isinstance(value, list) and all(type(entry) is int for entry in value)):
            raise ValueError(f"{self.source}: {name!r} is {value!r}; it must be a list of whole numbers")
        return None if value is None else tuple(value)

    def close(self, inert: Collection[str] = (), fixed: Mapping[str, Any] | None = None) -> None:
        """Refuse every key that was not read, unless it is inert, null, or holds its one supported value.

        Args:
            inert: names of keys that do not affect the result.
            fixed: the one supported value of other keys, by name.

        Raises:
            ValueError: there is such a key; the message names it.
        """
        fixed = {} if fixed is None else fixed
        for name, value in self.values.items():
            if name in self._read or name in inert or value is None:
                continue
            if name not in fixed:
                raise ValueError(
                    f"{self.source}: {name!r} (= {value!r:.40}) is unknown and may change the forward pass; "
                    "remove the key if it does not"
                )
            if value != fixed[name]:
                raise ValueError(f"{self.source}: {name!r} is {value!r}; only {fixed[name]!r} is supported")


def read_any(places: Sequence[tuple[ConfigKeys, str]], kind: type, default: Any) -> Any:
    """Return a value that may stand in several places.

    Args:
        places: (object, name) pairs.
        kind: as in ``ConfigKeys.read``.
        default: returned if no place has a value; ``REQUIRED``: that is an error.

    Raises:
        ValueError: two places contradict each other, or a required value is absent.
    """
    given = {f"{keys.source}: {name}": keys.read(name, kind, None) for keys, name in places}
    given = {place: value for place, value in given.items() if value is not None}
    if len(set(given.values())) > 1:
        raise ValueError(f"contradictory values {given}; keep one")
    if given:
        return next(iter(given.values()))
    return places[0][0].read(places[0][1], kind, default)
