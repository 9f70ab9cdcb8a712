"""Random histories of a head's rows, compared node by node with the slow reference."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles import load_head
from oracles.heads.eagle3_loading import LoadedEagle3
from specdec.contracts import Context, IntArray, Scores
from specdec.drafting import Frontier, HeadModel
from tests.reference.eagle3 import CommittedState, Eagle3
from tests.support.drafting.hidden_watch import whole_features
from tests.support.models.eagle3_heads import reference_of, write_head
from tests.support.models.scoring import path_to

CAPACITY = 40


@dataclass
class History:
    """Rows of ids led through drafting, acceptance and rollback.

    Attributes:
        worst: the largest difference of a logit, and of what is fed back, from the reference's so far.
        compared: how many nodes were.
    """

    head: LoadedEagle3
    oracle: Any
    reference: Eagle3
    seed: int
    trained_on: tuple[int, ...]  # the layers that the reference is told of
    slack: int = 8
    num_rows: int = 3

    def __post_init__(self) -> None:
        self.generator = np.random.default_rng(self.seed)
        self.model = HeadModel(self.head, self.num_rows, CAPACITY, torch.device("cpu"), slack=self.slack)
        self.ids = [self._random(length) for length in self.generator.integers(1, 9, self.num_rows)]
        self.worst, self.compared = 0.0, 0
        self.begun: dict[tuple[int, ...], CommittedState] = {}
        rows = np.arange(self.num_rows)
        longest = max(map(len, self.ids)) - 1
        hidden = self._stacked([self._states(ids[:-1]) for ids in self.ids], longest)
        self.model.begin(rows, [np.array(ids, dtype=np.int64) for ids in self.ids], Scores(None, hidden))

    def _random(self, count: int) -> list[int]:
        return self.generator.integers(0, self.oracle.vocab_size, count).tolist()

    def _states(self, ids: list[int], layers: tuple[int, ...] | None = None) -> Tensor:
        """Return ``[T, n, D]`` of layers, those that the head reads by default."""
        layers = self.head.layers if layers is None else layers
        return whole_features(self.oracle, ids, layers).view(len(ids), len(layers), self.oracle.hidden_size)

    def _stacked(self, states: list[Tensor], width: int) -> tuple[Tensor, ...]:
        """Return ``[B, width, D]`` for each layer; NaN for what nobody may read."""
        layers, size = len(self.head.layers), self.oracle.hidden_size
        whole = torch.full((len(states), width, layers, size), torch.nan, dtype=self.oracle.dtype)
        for row, found in zip(whole, states, strict=True):
            row[: len(found)] = found
        return whole.unbind(2)

    def _context(self, rows: IntArray) -> Context:
        lengths = np.array([len(self.ids[row]) for row in rows], dtype=np.int64)
        ids = np.full((len(rows), int(lengths.max())), -7, dtype=np.int64)
        for line, row in zip(ids, rows.tolist(), strict=True):
            line[: len(self.ids[row])] = self.ids[row]
        return Context(ids, lengths, None)  # type: ignore[arg-type]

    def step(self) -> None:
        """Draft in some rows, a chain or a tree, and let some of it stand."""
        rows = np.sort(
            self.generator.choice(self.num_rows, self.generator.integers(1, self.num_rows + 1), replace=False)
        )
        context = self._context(rows)
        room = self.model.room(rows, context.num_committed)
        live = np.flatnonzero(room > 0)
        drafted: dict[int, list[list[int]]] = {}
        if live.size:
            logits = self.model.catch_up(rows, self.model.own_context(rows, context), live)
            drafted = (
                self._chain(rows, context, live, logits)
                if self.generator.random() < 0.5
                else self._tree(rows, context, live, logits)
            )
        self._settle(rows, [drafted.get(b, [[]]) for b in range(len(rows))])

    def _compare(self, row: int, path: list[int], logits: Tensor, slot: int) -> None:
        """Compare the logits after a drafted path of a row, and what its last node, in a slot, feeds back."""
        ids = self.ids[row]
        wanted, fed = self.reference.run(self._begun(ids), path)
        found, written = logits.double().numpy(), np.isfinite(wanted)
        self.compared += 1
        if (np.isfinite(found) != written).any():  # other ids are written
            self.worst = np.inf
            return
        feature = self.head_cache.features[row, slot + 1].double().numpy()
        differences = (np.abs(found[written] - wanted[written]).max(), np.abs(feature - fed).max())
        self.worst = max(self.worst, *map(float, differences))

    def _begun(self, ids: list[int]) -> CommittedState:
        """Return where the reference's drafts after some ids begin, computed once."""
        if tuple(ids) not in self.begun:
            states = [state.double().numpy() for state in self._states(ids[:-1], self.trained_on)]
            self.begun[tuple(ids)] = self.reference.begin(ids, states)
        return self.begun[tuple(ids)]

    @property
    def head_cache(self) -> Any:
        return self.model.cache

    def _chain(self, rows: IntArray, context: Context, live: IntArray, logits: Tensor) -> dict[int, list[list[int]]]:
        depth, paths = int(self.generator.integers(0, 5)), {int(b): [] for b in live}
        for at in range(depth + 1):
            for b in live.tolist():
                self._compare(int(rows[b]), paths[b], logits[b, 0], len(self.ids[rows[b]]) - 2 + at)
            if at == depth:
                break
            drawn = torch.from_numpy(self.generator.integers(0, self.oracle.vocab_size, (len(rows), 1)))
            for b in live.tolist():
                paths[b] = [*paths[b], int(drawn[b, 0])]
            logits = self.model.advance(rows, drawn, live)
        return {b: [path[:n] for n in range(len(path) + 1)] for b, path in paths.items()}

    def _tree(self, rows: IntArray, context: Context, live: IntArray, logits: Tensor) -> dict[int, list[list[int]]]:
        sizes = self.generator.integers(1, 4, int(self.generator.integers(1, 4)))
        ends = np.cumsum(sizes)
        size, firsts = int(ends[-1]), ends - sizes
        tokens = torch.from_numpy(self.generator.integers(0, self.oracle.vocab_size, (len(rows), size)))
        parents, parts = torch.full((len(rows), size), -1), []
        for level, (first, end) in enumerate(zip(firsts.tolist(), ends.tolist(), strict=True)):
            if level:
                above = self.generator.integers(firsts[level - 1], first, (len(rows), end - first))
                parents[:, first:end] = torch.from_numpy(above)
            parts.append(self.model.grow(rows, Frontier(tokens[:, :end], parents[:, :end].numpy(), first, live)))
        logits, paths = torch.cat(parts, dim=1), {}
        for b in live.tolist():
            paths[b] = [[]]
            for node in range(size):
                path = tokens[b, path_to(parents[b], node)].tolist()
                self._compare(int(rows[b]), path, logits[b, node], len(self.ids[rows[b]]) - 1 + node)
                paths[b].append(path)
        return paths

    def _settle(self, rows: IntArray, paths: list[list[list[int]]]) -> None:
        """Let one of a row's paths stand and something after it; now and then ids are taken back instead."""
        keep, news = [], []
        for row, own in zip(rows.tolist(), paths, strict=True):
            accepted = own[self.generator.integers(len(own))]
            kept = len(self.ids[row])
            if self.generator.random() < 0.2 or kept > CAPACITY - 12:
                kept, accepted = int(self.generator.integers(1, kept + 1)), []
            new = [*accepted, *self._random(1)]
            keep.append(kept)
            news.append(new)
            self.ids[row] = [*self.ids[row][:kept], *new]
        width = max(map(len, news))
        block = np.full((len(rows), width), -1, dtype=np.int64)
        for line, new in zip(block, news, strict=True):
            line[: len(new)] = new
        states = [self._states(self.ids[row][:-1])[kept - 1 :] for row, kept in zip(rows.tolist(), keep, strict=True)]
        path = np.tile(np.arange(width), (len(rows), 1))
        scores = Scores(None, self._stacked(states, width), path=path)
        self.model.sync(rows, np.array(keep, dtype=np.int64), block, scores)


def led(
    head: LoadedEagle3,
    oracle: Any,
    reference: Eagle3,
    seed: int = 0,
    steps: int = 14,
    trained_on: tuple[int, ...] | None = None,
    slack: int = 8,
) -> History:
    """Return a history after some steps."""
    history = History(head, oracle, reference, seed, trained_on or head.layers, slack)
    for _ in range(steps):
        history.step()
    return history


def history_of(folder, layout, oracle, plain, seed=0, dtype=torch.float64, aux_layers=None, **options) -> History:
    """Return a history of a head of this layout, beside the reference of its tensors and of the unpacked oracle.

    ``aux_layers`` tells the head how to read the numbers of layers; the reference reads them as they are meant.
    """
    tensors = write_head(folder, oracle, layout, seed, dtype)
    head, meant = (load_head(folder, oracle, aux_layers=told) for told in (aux_layers, None))
    return led(head, oracle, reference_of(layout, tensors, plain), seed, trained_on=meant.layers, **options)
