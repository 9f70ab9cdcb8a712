"""The exact law of a decoder's output: the real engine runs, only its source of randomness is replaced.

Every draw of a run has a name: committed length at the step's start, path of the stream, purpose, node and rank. It
reads one number, uniform on [0, 1), and returns the id in whose cell of the law the number falls. So an output is a
function of the named numbers. A branch confines some of them to intervals; if a draw is not decided by its interval,
the branch goes on with the first id that can come, and the other ids are queued as branches of their own for the next
wave. A compiled judge draws its verdict as in any run, by numbers that it is given: the middles of the branch's cells.
A wave runs many branches as rows of one ragged batch; the probability of a sequence is the sum over its branches.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from specdec.contracts import FloatArray, IntArray, OpenVerdict, Randomness, frozen
from specdec.engine import SpeculativeDecoder
from specdec.exactness.breakpoints import Breakpoints
from specdec.laws import Laws
from specdec.requests import Prompt, Stop
from specdec.sampling import Keyed, SamplingParams, seed_keys

Law = dict[tuple[int, ...], float]
Name = tuple[Any, ...]
_MAX_WAVE = 4096
_SLIVER = 1e-12


@dataclass
class _Branch:
    """A box of the named numbers: an interval for each that has been read; all others are free.

    Whoever draws under a name again reads the same number. Consumers that wrongly share a name are thereby given
    exactly the correlation that they have in a real run.
    """

    intervals: dict[Name, tuple[float, float]] = field(default_factory=dict)
    probability: float = 1.0
    siblings: list["_Branch"] = field(default_factory=list)

    def draw(self, name: Name, weights: list[float]) -> "_Cell":
        """Return the id that the number ``name`` draws, -1 if no id has weight, and the numbers that draw it."""
        options = _cells(weights, *self.intervals.get(name, (0.0, 1.0)))
        if len(options) < 2:
            return options[0] if options else _Cell(-1, 0.0, 1.0, 1.0)
        first, *others = [
            _Branch({**self.intervals, name: (cell.low, cell.high)}, self.probability * cell.share) for cell in options
        ]
        self.siblings += others
        self.intervals, self.probability = first.intervals, first.probability
        return options[0]


@dataclass(frozen=True)
class _Cell:
    """The numbers that draw ``token``: an interval, and its share of the interval that was asked about."""

    token: int
    low: float
    high: float
    share: float

    @property
    def middle(self) -> float:
        """A number in the interval; below 1, whatever the rounding."""
        return min((self.low + self.high) / 2, 1 - 2.0**-53)


def _cells(weights: list[float], low: float, high: float) -> list[_Cell]:
    """Return the ids that a uniform number on [low, high) can draw from a law, ascending."""
    total, running, cells = sum(weights), 0.0, []
    is_free = low == 0.0 and high == 1.0
    for token, weight in enumerate(weights):
        start = max(running / total, low) if total else low
        running += weight
        end = min(running / total, high) if total else low
        # A law whose last bits depend on the batch leaves slivers at the edges of an interval that it made before.
        if weight > 0 and end - start > (0.0 if is_free else _SLIVER * (high - low)):
            cells.append(_Cell(token, start, end, weight / total if is_free else (end - start) / (high - low)))
    return cells


@dataclass(frozen=True)
class _Scripted:
    """Draw as the rows' branches say; rows without a branch draw from their ordinary streams."""

    branches: tuple[_Branch | None, ...]
    num_committed: IntArray
    ordinary: Keyed
    breakpoints: Breakpoints
    path: tuple[str | int, ...] = ()

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone."""
        return self.ordinary.coupled

    @property
    def numbers(self) -> tuple[IntArray, ...]:
        """What draws on a device read of the host."""
        return self.ordinary.numbers

    def select(self, rows: IntArray) -> "_Scripted":
        """Return the streams of some rows (indices into this batch)."""
        chosen = np.arange(len(self.branches))[rows]
        branches = tuple(self.branches[row] for row in chosen)
        return replace(
            self, branches=branches, num_committed=self.num_committed[rows], ordinary=self.ordinary.select(rows)
        )

    def extend(self, part: str | int) -> "_Scripted":
        """Return streams of their own for a stage, a member or an inner step."""
        return replace(self, ordinary=self.ordinary.extend(part), path=(*self.path, part))

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, or ``k`` distinct ids in drawing order."""
        drawn = self.ordinary.choose(laws, node, depth, purpose, k)
        if laws.all_points:
            return drawn
        batch = len(self.branches)
        drawn = drawn.clone()
        columns = laws.shape[1:].numel()
        flat = drawn.view(batch, columns, k)
        weights = laws.dense().double().reshape(batch, columns, laws.table.shape[1]).tolist()
        nodes = np.broadcast_to(np.asarray(node), tuple(laws.shape)).reshape(batch, columns)
        for row, branch in enumerate(self.branches):
            if branch is None:
                continue
            for column, number in enumerate(nodes[row].tolist()):
                name = self._name(row, purpose, number)
                for rank, token in enumerate(_draw_distinct(branch, name, weights[row][column], k)):
                    # Nothing can be drawn from an undefined law: the engine, not the enumerator, says what is wrong.
                    flat[row, column, rank] = flat[row, column, rank] if token < 0 and k == 1 else token
        return drawn

    def chain_keys(self, purpose: str) -> None:
        """Return None: the branches say what is drawn."""

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> FloatArray | None:
        """Return the middles of the cells that the branches are in, given the compiled judge's own law.

        Raises:
            AssertionError: the judge draws otherwise than its law says; see ``Breakpoints``.
        """
        law = verdict.law()
        if law is None:
            return None
        stops, following = law[0], law[1].astype(np.float64)
        self.breakpoints.check(verdict, stops, following)
        numbers = np.stack([self.ordinary.uniforms(purpose) for purpose in purposes], axis=1)
        for row, branch in enumerate(self.branches):
            if branch is None:
                continue
            stop = branch.draw((*self._name(row, purposes[0], 0), 0), stops[row].tolist())
            token = branch.draw((*self._name(row, purposes[1], 0), 0), following[row, stop.token].tolist())
            numbers[row] = stop.middle, token.middle
        return numbers

    def _name(self, row: int, purpose: str, node: int) -> Name:
        return int(self.num_committed[row]), self.path, purpose, node


def _draw_distinct(branch: _Branch, name: Name, weights: list[float], k: int) -> list[int]:
    """Return ``k`` draws without replacement, in drawing order; -1 if nothing is left."""
    weights, drawn = list(weights), []
    for rank in range(k):
        drawn.append(branch.draw((*name, rank), weights).token)
        if drawn[-1] >= 0:
            weights[drawn[-1]] = 0.0
    return drawn


def _run_wave(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    branches: Sequence[_Branch],
    mates: Sequence[Prompt],
    breakpoints: Breakpoints,
    options: dict[str, Any],
) -> list[tuple[int, ...]]:
    """Run the branches as requests of one batch, mates before and after them; return each branch's tokens."""
    front = list(mates[::2])
    prompts = [*front, *([prompt] * len(branches)), *mates[1::2]]
    seeds = list(range(len(prompts)))
    places = {int(key): row - len(front) for row, key in enumerate(seed_keys(seeds))}

    def randomness(keys: IntArray, num_committed: IntArray) -> Randomness:
        at = [places[int(key)] for key in keys]
        chosen = tuple(branches[i] if 0 <= i < len(branches) else None for i in at)
        return _Scripted(chosen, num_committed, Keyed.at(keys, num_committed, decoder.kernels), breakpoints)

    scripted = copy.copy(decoder)
    scripted.draft, scripted.randomness = frozen(decoder.draft), randomness
    tokens = scripted.generate(prompts, seed=seeds, **options).tokens
    return [tuple(row) for row in tokens[len(front) : len(front) + len(branches)]]


def output_law(
    decoder: SpeculativeDecoder,
    prompt: Prompt,
    max_new_tokens: int,
    sampling: SamplingParams | None = None,
    *,
    stop: Stop | Sequence[Stop] | None = None,
    mates: Sequence[Prompt] = (),
    batch_size: int | None = None,
    max_leaves: int = 20_000,
) -> Law:
    """Return the exact law of the ids that a decoder emits: ``{ids: probability}``.

    Args:
        decoder: a ``SpeculativeDecoder``, any source and any rule but a coupled one; it is not changed.
        prompt: as for ``generate``.
        max_new_tokens: as for ``generate``; the number of branches grows exponentially with it.
        sampling: the ``SamplingParams`` of every request; None is greedy.
        stop: as for ``generate``.
        mates: prompts of requests that run in the same batch with ordinary random draws of their own.
        batch_size: rows in flight; None: all branches of a wave at once. Small numbers exercise slot reuse.
        max_leaves: the largest number of branches.

    Raises:
        ValueError: the decoder draws in coupled mode (compare tokens instead), or there are more than ``max_leaves``.
        AssertionError: the compiled judge draws otherwise than its own law says; see ``Breakpoints``.

    Guarantee: exact up to float64 rounding of the laws. Draws that share a name share their number, as in a real run.
        Verdicts are those of a real run. The compiled judge that the rule declares gives them, from its own law, with
        given numbers in place of hashed ones. If a rule declares no judge, its ``__call__`` gives them.
    Cost: every branch is decoded once, in about as many ``generate`` calls as one branch has undecided draws.
    """
    if decoder.rule.coupled:
        raise ValueError("decoder draws in coupled mode, which is proved by token equality: use check_lossless")
    options = {"max_new_tokens": max_new_tokens, "sampling": sampling, "stop": stop, "batch_size": batch_size}
    law: Law = {}
    queue, breakpoints = [_Branch()], Breakpoints()
    num_leaves = 0
    while queue:
        wave = queue[-_MAX_WAVE:]
        del queue[-_MAX_WAVE:]
        num_leaves += len(wave)
        if num_leaves + len(queue) > max_leaves:
            raise ValueError(f"more than max_leaves={max_leaves} branches: shorten the sequences or the draft")
        for branch, tokens in zip(wave, _run_wave(decoder, prompt, wave, mates, breakpoints, options), strict=True):
            law[tokens] = law.get(tokens, 0.0) + branch.probability
            queue += branch.siblings
    return law
