"""The exact law of a decoder's output: the real engine runs, only its source of randomness is replaced.

Every draw of a run has a name: committed length at the step's start, path of the stream, purpose, node and rank. It
reads one number, uniform on [0, 1), and returns the id in whose cell of the law the number falls. So an output is a
function of the named numbers. A branch confines some of them to intervals; if a draw is not decided by its interval,
the branch goes on with the first id that can come, and the other ids are queued as branches of their own for the next
wave. A compiled judge draws its verdict as in any run, by numbers that it is given: the middles of the branch's cells.
A wave runs many branches as rows of one ragged batch; the probability of a sequence is the sum over its branches.
If a branch holds the draws of several rows, or if rows may depend on each other, every branch has a batch of its own.
"""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from specdec.contracts import FloatArray, IntArray, OpenVerdict, Randomness, frozen
from specdec.engine import SpeculativeDecoder
from specdec.exactness.breakpoints import Breakpoints
from specdec.exactness.sequence_laws import JointLaw
from specdec.laws import Laws
from specdec.requests import Prompt, Stop
from specdec.sampling import Keyed, SamplingParams, seed_keys
from specdec.theory import check_count

Name = tuple[Any, ...]
Outputs = tuple[tuple[int, ...], ...]
_MAX_WAVE = 4096
_SLIVER = 1e-12
# So many branches, at least, are decoded twice before an enumeration believes that runs repeat.
_LEAST_REPEATED = 16
_SAME = 1e-6


class TooManyBranches(ValueError):
    """An enumeration has more branches than it may."""


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
class _BranchDraws(Randomness):
    """Draw as the rows' branches say; rows without a branch draw from their ordinary streams.

    Args:
        branches: one a row; rows that are enumerated together share theirs.
        places: ``[B]`` which of the rows of its branch each row is: a part of the names of its draws.
        num_committed, ordinary, breakpoints: of the rows.
        path: what extended the streams.
    """

    branches: tuple[_Branch | None, ...]
    places: IntArray
    num_committed: IntArray
    ordinary: Keyed
    breakpoints: Breakpoints
    path: tuple[str | int, ...] = ()

    @property
    def coupled(self) -> bool:
        """Whether draws are keyed by absolute position alone."""
        return self.ordinary.coupled

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays of the host that draws on a device read."""
        return self.ordinary.numbers()

    def select(self, rows: IntArray) -> "_BranchDraws":
        """Return the streams of some rows (indices into this batch)."""
        chosen = np.arange(len(self.branches))[rows]
        branches = tuple(self.branches[row] for row in chosen)
        ordinary, num_committed = self.ordinary.select(rows), self.num_committed[rows]
        return _BranchDraws(branches, self.places[rows], num_committed, ordinary, self.breakpoints, self.path)

    def extend(self, part: str | int) -> "_BranchDraws":
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

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> FloatArray:
        """Return the middles of the cells that the branches are in, given the compiled judge's own law.

        Raises:
            AssertionError: the judge draws otherwise than its law says; see ``Breakpoints``.
        """
        stops, following = verdict.law()
        following = following.astype(np.float64)
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
        return int(self.places[row]), int(self.num_committed[row]), self.path, purpose, node


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
    prompts: Sequence[Prompt],
    branches: Sequence[_Branch],
    mates: Sequence[Prompt],
    breakpoints: Breakpoints,
    options: dict[str, Any],
) -> list[Outputs]:
    """Run the branches, a request for each of the prompts, in one batch with mates before and after them.

    Return the tokens of each branch's requests. ``options`` are of ``generate``, and ``mates_sampling``.
    """
    front, rows = list(mates[::2]), len(prompts)
    given = [*front, *list(prompts) * len(branches), *mates[1::2]]
    sampling, others = options["sampling"] or SamplingParams(), options["mates_sampling"]
    others = [sampling] * len(mates) if others is None else others
    asked = {**options, "sampling": [*others[::2], *[sampling] * rows * len(branches), *others[1::2]]}
    del asked["mates_sampling"]
    seeds = list(range(len(given)))
    requests = {int(key): request - len(front) for request, key in enumerate(seed_keys(seeds))}

    def randomness(keys: IntArray, num_committed: IntArray) -> Randomness:
        at = np.array([requests[int(key)] for key in keys])
        chosen = tuple(branches[i // rows] if 0 <= i < len(branches) * rows else None for i in at.tolist())
        return _BranchDraws(
            chosen, at % rows, num_committed, Keyed.at(keys, num_committed, decoder.kernels), breakpoints
        )

    scripted = copy.copy(decoder)
    scripted.draft, scripted.randomness = frozen(decoder.draft), randomness
    tokens = [tuple(output) for output in scripted.generate(given, seed=seeds, **asked).tokens[len(front) :]]
    return [tuple(tokens[i * rows : (i + 1) * rows]) for i in range(len(branches))]


def _boxes(branch: _Branch) -> list[tuple[Name, float]]:
    """Return what a run asked of its branch: names, and the ends of the intervals that it was told."""
    boxes = [branch.intervals, *(sibling.intervals for sibling in branch.siblings)]
    return [(name, end) for box in boxes for name, ends in box.items() for end in ends]


def _check_repeats(
    decoder: SpeculativeDecoder, first: list[tuple[_Branch, Outputs]], second: list[tuple[_Branch, Outputs]]
) -> None:
    """Raise AssertionError if the same branches, decoded twice, gave other ids or asked for other draws."""
    for (one, tokens), (other, again) in zip(first, second, strict=True):
        asked, then = _boxes(one), _boxes(other)
        is_same = len(asked) == len(then) and all(
            name == its and abs(end - its_end) < _SAME for (name, end), (its, its_end) in zip(asked, then, strict=True)
        )
        if tokens != again or not is_same:
            differs = f"the ids {again}, not {tokens}" if tokens != again else f"the ids {tokens} by other draws"
            raise AssertionError(
                f"not reproducible: the same numbers gave {differs} in a second run, so there is no law to enumerate; "
                f"rule {decoder.rule.name!r}, source {decoder.draft.name!r} or the oracle draws otherwise than by "
                "`randomness`, or goes by what earlier runs left"
            )


def _joint_law(
    decoder: SpeculativeDecoder,
    prompts: Sequence[Prompt],
    mates: Sequence[Prompt],
    max_leaves: int,
    options: dict[str, Any],
) -> JointLaw:
    """Return the joint law of the ids of requests, one for each of the prompts; see ``output_law``."""
    if decoder.rule.coupled:
        raise ValueError("decoder draws in coupled mode, which is proved by token equality: use check_lossless")
    # Branches share no batch if that could make a difference.
    size = _MAX_WAVE if len(prompts) == 1 and decoder.offers.reproducible else 1
    law: JointLaw = {}
    queue, breakpoints = [_Branch()], Breakpoints()
    num_leaves = 0
    while queue:
        wave = queue[-size:]
        del queue[-size:]
        again = [replace(branch, siblings=[]) for branch in wave] if num_leaves < _LEAST_REPEATED else []
        num_leaves += len(wave)
        if num_leaves + len(queue) > max_leaves:
            raise TooManyBranches(
                f"more than max_leaves={max_leaves} branches: shorten the sequences (depth= of check_lossless says how "
                "much of a draft is enough) or the draft, or test samples by effect= of check_lossless, such as 0.1"
            )
        outputs = _run_wave(decoder, prompts, wave, mates, breakpoints, options)
        done = list(zip(wave, outputs, strict=True))
        if again:
            outputs = _run_wave(decoder, prompts, again, mates, breakpoints, options)
            _check_repeats(decoder, done, list(zip(again, outputs, strict=True)))
        for branch, tokens in done:
            law[tokens] = law.get(tokens, 0.0) + branch.probability
            queue += branch.siblings
    return law


def _prompts_of(prompt: Any, rows: int) -> list[Prompt]:
    """Return a prompt for each of the rows: those of a tuple, or one and the same."""
    if isinstance(prompt, tuple) and not all(isinstance(part, (int, np.integer)) for part in prompt):
        if len(prompt) != rows:
            raise ValueError(f"prompt is a tuple of {len(prompt)} prompts for rows={rows}: give one for each row")
        return list(prompt)
    return [prompt] * rows


def output_law(
    decoder: SpeculativeDecoder,
    prompt: Any,
    max_new_tokens: int,
    sampling: SamplingParams | None = None,
    *,
    stop: Stop | Sequence[Stop] | None = None,
    mates: Sequence[Prompt] = (),
    mates_sampling: Sequence[SamplingParams] | None = None,
    batch_size: int | None = None,
    max_leaves: int = 20_000,
    rows: int | None = None,
) -> dict[Any, float]:
    """Return the exact law of the ids that a decoder emits: ``{ids: probability}``, or that of several rows jointly.

    Args:
        decoder: a ``SpeculativeDecoder``, any source and any rule but a coupled one; it is not changed.
        prompt: as for ``generate``; with ``rows``, that of every row, or a tuple of one prompt for each.
        max_new_tokens: as for ``generate``; the number of branches grows exponentially with it.
        sampling: the ``SamplingParams`` of the request, or of every row; None is greedy.
        stop: as for ``generate``.
        mates: prompts of requests that run in the same batch with ordinary random draws of their own.
        mates_sampling: one for each mate; None: that of the request.
        batch_size: rows in flight; None: all branches of a wave at once. Small numbers exercise slot reuse.
        max_leaves: the largest number of branches.
        rows: requests of one batch whose draws are all enumerated; their law is joint, ``{(ids of row 0, ids of row 1,
            ...): probability}``. For a lossless decoder it is ``product_law`` of the oracle's laws. It shows what
            marginals do not: rows that decide about each other. None: one request, and its own law.

    Raises:
        ValueError: the decoder draws in coupled mode (compare tokens instead), there are more branches than
            ``max_leaves``, ``rows`` is not a positive integer, a tuple does not have one prompt for each row, or there
            are not as many samplings as mates.
        AssertionError: the compiled judge draws otherwise than its own law says, see ``Breakpoints``; or a branch does
            not repeat, "not reproducible": the output is no function of the named draws.

    Guarantee: exact up to float64 rounding of the laws. Draws that share a name share their number, as in a real run.
        Verdicts are those of a real run. The compiled judge that the rule declares gives them, from its own law, with
        given numbers in place of hashed ones. If a rule declares no judge, its ``__call__`` gives them.
    Cost: every branch is decoded once (the first few twice), in about as many ``generate`` calls as one branch has
        undecided draws. With several rows, or if the source is not ``reproducible``, each branch takes a call of its
        own. The branches of rows multiply: keep to two or three ids, one or two drafted, two or three tokens.
    """
    if rows is not None:
        check_count("rows", rows)
    if mates_sampling is not None and len(mates_sampling) != len(mates):
        raise ValueError(f"mates_sampling has {len(mates_sampling)} entries for {len(mates)} mates: give one for each")
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "stop": stop, "batch_size": batch_size}
    options |= {"sampling": sampling, "mates_sampling": mates_sampling}
    if rows is None:
        return {ids: p for (ids,), p in _joint_law(decoder, [prompt], mates, max_leaves, options).items()}
    return _joint_law(decoder, _prompts_of(prompt, rows), mates, max_leaves, options)
