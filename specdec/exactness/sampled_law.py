"""The output law by samples, beyond enumeration: outputs of the real engine, sorted into cells of known mass."""

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from specdec.engine import SpeculativeDecoder
from specdec.exactness.goodness import p_value, samples_for
from specdec.exactness.oracle_law import PlainRequest
from specdec.requests import Prompt, Stop
from specdec.sampling import SamplingParams

Ids = tuple[int, ...]
# More cells see more kinds of bias, and need more requests for the same effect.
MOST_CELLS = 16
# A beginning that at least this many outputs are expected to share has a cell of its own.
LEAST_EXPECTED = 5
POWER = 0.99
# Rows in flight, if nobody says otherwise.
ROWS = 64


@dataclass(frozen=True)
class Cells:
    """A partition of all outputs of a request into sets whose probability the oracle tells.

    Each prefix in ``laws`` was followed by one pass of the oracle. An output belongs to the first prefix along it that
    is in ``cells``, or to the other ids that may follow the last prefix in ``laws``.

    Attributes:
        laws: prefix -> the law of the id after it.
        cells: prefix -> number of its cell.
        others: prefix in ``laws`` -> number of the cell of all outputs that leave it by an id without a cell.
        probs: of each cell.
    """

    laws: dict[Ids, Sequence[float]]
    cells: dict[Ids, int]
    others: dict[Ids, int]
    probs: list[float]

    @staticmethod
    def of(
        request: PlainRequest,
        max_new_tokens: int,
        least: float,
        most: int,
    ) -> "Cells":
        """Return cells, grown from the likeliest prefix on.

        Args:
            request: whose outputs are sorted.
            max_new_tokens: of an output.
            least: probability of a cell that has a prefix of its own.
            most: cells, about.

        Cost: one pass of the whole text for each prefix that is followed, fewer than ``most``.
        """
        laws: dict[Ids, Sequence[float]] = {}
        masses: dict[Ids, float] = {}
        left: dict[Ids, float] = {}
        heap: list[tuple[float, Ids]] = [(-1.0, ())]
        while heap and len(heap) + len(masses) + len(left) < most:
            mass, prefix = -heap[0][0], heapq.heappop(heap)[1]
            if len(prefix) == max_new_tokens or (prefix and request.has_ended(prefix)):
                masses[prefix] = mass
                continue
            (law,) = request.laws([prefix])
            laws[prefix] = law
            likely = [(-mass * p, (*prefix, token)) for token, p in enumerate(law) if mass * p >= least]
            room = max(most - len(heap) - len(masses) - len(left) - 1, 1)
            for item in heapq.nsmallest(room, likely):
                heapq.heappush(heap, item)
                mass += item[0]
            left[prefix] = max(mass, 0.0)
        masses |= {prefix: -mass for mass, prefix in heap}
        numbers = {prefix: number for number, prefix in enumerate(masses)}
        others = {prefix: len(masses) + number for number, prefix in enumerate(left)}
        return Cells(laws, numbers, others, [*masses.values(), *left.values()])

    def number(self, output: Sequence[int]) -> int | None:
        """Return the cell of an output; None if it holds an id of probability 0 as far as the laws are known."""
        prefix: Ids = ()
        for token in output:
            if prefix in self.cells:
                break
            if self.laws[prefix][token] == 0:
                return None
            longer = (*prefix, token)
            if longer not in self.cells and longer not in self.laws:
                return self.others[prefix]
            prefix = longer
        return self.cells[prefix]


def check_by_samples(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    max_new_tokens: int,
    sampling: SamplingParams,
    stop: Stop | Sequence[Stop] | None,
    mates: Sequence[Prompt],
    batch_size: int | None,
    effect: float,
    level: float,
    seed: int,
) -> None:
    """Check a decoder's output law by a test of sampled requests; see ``check_lossless``.

    Raises:
        AssertionError: with the cells that are furthest off, or the first output that cannot be or ends where nothing
            ends it.
        ValueError: ``effect`` or ``level`` out of range.
    """
    for name, value in (("effect", effect), ("level", level)):
        if not 0 < value < 1:
            raise ValueError(f"{name} is {value}; give a number between 0 and 1")
    count = samples_for(effect, MOST_CELLS, level, POWER)
    request = PlainRequest.of(decoder.oracle, prompt, sampling, stop)
    longest = request.longest(max_new_tokens)
    cells = Cells.of(request, longest, LEAST_EXPECTED / count, MOST_CELLS)
    prompts, is_asked = _with_mates(prompt, mates, count)
    rows = ROWS if batch_size is None else batch_size
    made = decoder.generate(prompts, max_new_tokens, sampling, seed, stop, rows).tokens
    ends_at = cache(request.has_ended)  # most outputs begin like others
    counts = np.zeros(len(cells.probs), dtype=np.int64)
    who = f"rule {decoder.rule.name!r}, source {decoder.draft.name!r}"
    for output in itertools.compress(made, is_asked):
        if not _ends_in_place(tuple(output), longest, ends_at):
            raise AssertionError(f"the output {output} ends where neither EOS, stop nor length ends it; {who}")
        number = cells.number(output)
        if number is None:
            raise AssertionError(f"the output {output} cannot come from the oracle: an id of probability 0; {who}")
        counts[number] += 1
    found = p_value(counts, np.array(cells.probs))
    if found < level:
        raise AssertionError(
            f"{count:,} outputs do not follow the oracle's law: p-value {found:.3g} (alarm below {level:.3g}); {who}\n"
            f"{_cell_table(cells, counts)}"
        )


def _ends_in_place(output: Ids, longest: int, ends_at: Callable[[Ids], bool]) -> bool:
    """Tell whether an output goes on to its first EOS or stop, or to its greatest length."""
    ended = [ends_at(output[:length]) for length in range(1, len(output) + 1)]
    return not any(ended[:-1]) and (len(output) == longest or (len(output) < longest and any(ended[-1:])))


def _with_mates(prompt: Prompt, mates: Sequence[Prompt], count: int) -> tuple[list[Prompt], list[bool]]:
    """Return ``count`` equal prompts, with about one mate among them for every eight, and which are not mates."""
    prompts, is_asked = [], []
    for number in range(count):
        prompts.append(prompt)
        is_asked.append(True)
        if mates and number % 8 == 0:
            prompts.append(mates[number // 8 % len(mates)])
            is_asked.append(False)
    return prompts, is_asked


def _cell_table(cells: Cells, counts: Any) -> str:
    """Return the cells that are furthest off, by their share of the statistic."""
    names = {number: f"{list(prefix)}" for prefix, number in cells.cells.items()}
    names |= {number: f"{list(prefix)} and another id" for prefix, number in cells.others.items()}
    expected = np.array(cells.probs) * counts.sum()
    worst = np.argsort(-((counts - expected) ** 2) / np.maximum(expected, 1))[:8]
    lines = [f"{'came':>10} {'expected':>12}  outputs that begin with"]
    return "\n".join([*lines, *(f"{counts[i]:10,} {expected[i]:12,.1f}  {names[int(i)]}" for i in worst)])
