"""What an arm did in loops and outside: a text that goes round in circles is easily drafted, above all by lookups."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from oracles.factory.evaluation.loops import loop_mask

_PHASES = ("seconds_propose", "seconds_score", "seconds_verify", "seconds_commit")


@dataclass(frozen=True)
class OutsideLoops:
    """The steps of a unit none of whose tokens stands in a loop, summed up over its rounds and requests.

    Attributes:
        steps: of rows.
        tokens: that they emitted.
        seconds: the rows' shares of the phases; neither prefill nor what lies between steps.
        emitted: tokens of all steps.
        looped: those of them that stand in loops.
    """

    steps: int
    tokens: int
    seconds: float
    emitted: int = 0
    looped: int = 0

    @staticmethod
    def of(records: Mapping[str, Sequence[Any]]) -> "OutsideLoops":
        """Return them from an arm's records (columns, with ``round``) of one unit. Cost: O(tokens)."""
        if not records:
            return OutsideLoops(0, 0, 0.0)
        counts = np.asarray([len(tokens) for tokens in records["tokens"]])
        texts: dict[tuple[int, int], list[int]] = {}
        for row, text in enumerate(zip(records["round"], records["request"], strict=True)):
            texts.setdefault(text, []).append(row)
        outside, num_looped = np.zeros(len(counts), dtype=np.bool_), 0
        for rows in texts.values():
            mask = loop_mask([token for row in rows for token in records["tokens"][row]])
            num_looped += int(mask.sum())
            outside[rows] = [not part.any() for part in np.split(mask, np.cumsum(counts[rows])[:-1])]
        seconds = sum(float(np.asarray(records[phase])[outside].sum()) for phase in _PHASES)
        return OutsideLoops(int(outside.sum()), int(counts[outside].sum()), seconds, int(counts.sum()), num_looped)

    @staticmethod
    def total(parts: "Sequence[OutsideLoops]") -> "OutsideLoops":
        """Return the steps of several units together."""
        names = ("steps", "tokens", "seconds", "emitted", "looped")
        return OutsideLoops(*(sum(getattr(part, name) for part in parts) for name in names))
