"""Recorded sequences as a tree: where a path of ids leads, and which id was recorded there."""

from array import array
from collections.abc import Sequence

import numpy as np

from specdec.contracts import IntArray

ROOT, OFF = 0, -1  # the place before any id, and the place of ids that no record has
_NONE = -1  # no id


class RecordTree:
    """Hold prompts with what was recorded after them; common prefixes are held once.

    A *place* is a prefix of records. From most places one id leads on, to the next place: such runs lie side by side,
    and only places where records diverge have an entry in a table.

    Cost: 24 bytes for each id; a step costs one comparison, and a look-up where records diverge or are left.
    """

    def __init__(self) -> None:
        # For each place: the id that leads to it, the id recorded after it, and the row that recorded this id.
        self._ids, self._following, self._rows = (array("q", [_NONE, _NONE]) for _ in range(3))
        self._branches: dict[tuple[int, int], int] = {}
        self._selected: dict[int, int] = {}  # place -> row

    @property
    def bytes(self) -> int:
        """Memory of the ids."""
        return sum(len(part) * part.itemsize for part in (self._ids, self._following, self._rows))

    def add(self, row: int, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Take in a record.

        Args:
            row: its number, for messages.
            prompt, output: ids, 0 or more; neither is empty.

        Raises:
            ValueError: an earlier row has this prompt, or says that another id follows the same ids.
        """
        places = self._make_path([*prompt, *output])
        if places[len(prompt) - 1] in self._selected:
            other = self._selected[places[len(prompt) - 1]]
            raise ValueError(f"rows {other} and {row} have the same prompt; keep one of them")
        self._selected[places[len(prompt) - 1]] = row
        for place, token in zip(places[len(prompt) - 1 :], output, strict=False):
            if self._following[place] not in (_NONE, token):
                raise ValueError(
                    f"rows {self._rows[place]} and {row} part after the same ids, prompt and output together: the "
                    "prompt of one is a prompt of the other with what follows it; keep one of them"
                )
            self._following[place], self._rows[place] = token, row

    def row_of(self, prompt: Sequence[int]) -> int | None:
        """Return the row that a prompt selects; None: there is none."""
        place = ROOT
        for token in prompt:
            place = self.step(place, token)
        return self._selected.get(place)

    def step(self, place: int, token: int) -> int:
        """Return the place after one more id; ``OFF`` if no record continues with it."""
        if place == OFF:
            return OFF
        # The entry after a run is no id.
        return place + 1 if self._ids[place + 1] == token else self._branches.get((place, token), OFF)

    def walk(self, places: list[int], before: int, tokens: Sequence[int], parents: Sequence[int] | None) -> list[int]:
        """Return the places of all nodes of a row.

        Args:
            places: of the first nodes, as far as they are known.
            before: the place before the roots.
            tokens: of all nodes.
            parents: of all nodes, -1 for roots; None for a chain.
        """
        for node in range(len(places), len(tokens)):
            parent = node - 1 if parents is None else parents[node]
            places.append(self.step(before if parent < 0 else places[parent], tokens[node]))
        return places

    def next_ids(self, places: IntArray) -> IntArray:
        """Return the ids ``[...]`` recorded after places ``[...]``; id 0 if none was."""
        ids: IntArray = np.frombuffer(self._following, dtype=np.int64)[np.maximum(places, ROOT)]
        return np.where(places == OFF, 0, np.maximum(ids, 0))

    def _make_path(self, ids: Sequence[int]) -> list[int]:
        """Return the places along some ids; missing ones are made."""
        places: list[int] = []
        place = ROOT
        for i, token in enumerate(ids):
            place = self.step(place, token)
            if place == OFF:
                return [*places, *self._append(places[-1] if places else ROOT, ids[i:])]
            places.append(place)
        return places

    def _append(self, place: int, ids: Sequence[int]) -> range:
        """Append a run of new places to one, and return them."""
        first = len(self._ids)
        self._branches[place, ids[0]] = first
        self._ids.extend([*ids, _NONE])
        for part in (self._following, self._rows):
            part.extend([_NONE] * (len(ids) + 1))
        return range(first, first + len(ids))
