"""Draft sources for tests: chains from a table, and random ragged trees."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from specdec.contracts import Budget, Context, Draft, DraftSession, IntArray, Needs, Offers, Oracle, Randomness
from specdec.drafting.shapes import TreeShape
from specdec.laws import Laws
from tests.reference.tables import Floats, law_after


@dataclass
class Session(DraftSession):
    """A session without memory: ``source.draft`` sees the context alone."""

    source: "FromTable"

    def propose(self, rows: IntArray, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        return self.source.draft(context, budget, randomness)


@dataclass(frozen=True)
class FromTable(ABC):
    """A source that reads a table of laws, whatever the request's sampling says, and remembers nothing."""

    table: Floats
    needs: Needs = field(default_factory=Needs, kw_only=True)
    vocab_size: int | None = field(default=None, kw_only=True)

    def open(self, oracle: Oracle, num_rows: int, capacity: int) -> Session:
        return Session(self)

    @abstractmethod
    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        """Return drafts of the rows of a context."""


@dataclass(frozen=True)
class Chains(FromTable):
    """Draw chains, and declare the laws that they are drawn from."""

    num_draft_tokens: int
    name: str = "chains"

    @property
    def offers(self) -> Offers:
        return Offers(laws=True, max_depth=self.num_draft_tokens, max_nodes=self.num_draft_tokens)

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        lengths = np.minimum(budget.max_depth, self.num_draft_tokens)
        width = int(lengths.max(initial=0))
        if width == 0:
            return Draft.empty(len(lengths), torch.device("cpu"))
        paths = [tuple(row[:n]) for row, n in zip(context.ids.tolist(), context.num_committed, strict=True)]
        tokens, probs = [], []
        for depth in range(width):
            laws = torch.from_numpy(np.stack([law_after(self.table, path) for path in paths]))
            # Rows at their limit draw nothing.
            live = np.flatnonzero(lengths > depth)
            drawn = torch.zeros(len(lengths), dtype=torch.int64)
            drawn[torch.from_numpy(live)] = self.drawn(laws[torch.from_numpy(live)], depth, randomness.select(live))
            tokens.append(drawn)
            probs.append(self.declared(laws))
            paths = [(*path, int(token)) for path, token in zip(paths, tokens[-1], strict=True)]
        laws = Laws.from_probs(torch.stack(probs, dim=1))
        return Draft(torch.stack(tokens, dim=1), torch.from_numpy(lengths), laws=laws)

    def drawn(self, laws: torch.Tensor, depth: int, randomness: Randomness) -> torch.Tensor:
        return randomness.choose(Laws.from_probs(laws), depth, depth, "draft")

    def declared(self, laws: torch.Tensor) -> torch.Tensor:
        return laws


@dataclass
class _Plan:
    """The tree of one row before its tokens are known."""

    parents: list[int]
    depths: list[int]
    scout: list[bool]
    fixed: list[int | None]


@dataclass(frozen=True)
class RandomTrees(FromTable):
    """Draft random ragged trees: equal siblings, scouts, drawn and fixed nodes, empty rows.

    The tree of a step follows from the row's ids alone, so that a request is the same in every batch.
    """

    max_nodes: int = 4
    max_depth: int = 3
    scouts: bool = True
    name: str = "random_trees"

    @property
    def offers(self) -> Offers:
        return Offers(trees=True, laws=True, max_depth=self.max_depth, max_nodes=self.max_nodes)

    def _plan(self, ids: Sequence[int], depth: int, nodes: int) -> _Plan:
        generator = np.random.default_rng(list(ids))
        plan, size = _Plan([], [], [], []), self.table.shape[-1]
        depth = min(depth, self.max_depth)
        for node in range(int(generator.integers(0, min(nodes, self.max_nodes) + 1)) if depth > 0 else 0):
            parent = int(generator.integers(-1, node))
            while parent >= 0 and plan.depths[parent] >= depth:
                parent = plan.parents[parent]
            above = parent >= 0 and plan.scout[parent]
            is_scout = above or (self.scouts and generator.random() < 0.2)
            plan.parents.append(parent)
            plan.depths.append(1 if parent < 0 else plan.depths[parent] + 1)
            plan.scout.append(bool(is_scout))
            plan.fixed.append(int(generator.integers(size)) if is_scout or generator.random() < 0.4 else None)
        return plan

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        prefixes = [row[:n] for row, n in zip(context.ids.tolist(), context.num_committed, strict=True)]
        limits = zip(prefixes, budget.max_depth.tolist(), budget.max_nodes.tolist(), strict=True)
        plans = [self._plan(*limit) for limit in limits]
        batch, width = len(plans), max((len(plan.parents) for plan in plans), default=0)
        size = self.table.shape[-1]
        tokens = torch.zeros(batch, width, dtype=torch.int64)
        # Padding holds valid ids and parents, and scout flags that mean nothing.
        parents = torch.arange(-1, width - 1).repeat(batch, 1)
        is_scout = torch.ones(batch, width, dtype=torch.bool)
        probs = torch.full((batch, width, size), 1.0 / size, dtype=torch.float64)
        paths: list[list[list[int]]] = [[] for _ in plans]
        for node in range(width):
            for row, plan in enumerate(plans):
                if node < len(plan.parents):
                    parents[row, node], is_scout[row, node] = plan.parents[node], plan.scout[node]
                    above = paths[row][plan.parents[node]] if plan.parents[node] >= 0 else prefixes[row]
                    fixed = plan.fixed[node]
                    law = law_after(self.table, tuple(above)) if fixed is None else np.eye(size)[fixed]
                    probs[row, node] = torch.from_numpy(law)
            depths = [plan.depths[node] - 1 if node < len(plan.depths) else 0 for plan in plans]
            live = np.flatnonzero([node < len(plan.parents) for plan in plans])
            laws = Laws.from_probs(probs[live, node])
            drawn = randomness.select(live).choose(laws, node, np.array(depths)[live], "draft")
            tokens[torch.from_numpy(live), node] = drawn
            for row in live:
                parent = plans[row].parents[node]
                above = paths[row][parent] if parent >= 0 else prefixes[row]
                paths[row].append([*above, int(tokens[row, node])])
        num_nodes = torch.tensor([len(plan.parents) for plan in plans], dtype=torch.int64)
        return Draft(tokens, num_nodes, parents, Laws.from_probs(probs), is_scout=is_scout)


@dataclass
class _Grown:
    """The tree of one row as it grows: per node its token, parent, law, and whether it is a scout or was fixed."""

    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    laws: list[Floats] = field(default_factory=list)
    scout: list[bool] = field(default_factory=list)
    fixed: list[bool] = field(default_factory=list)

    def add(self, token: int, parent: int, law: Floats, scout: bool, fixed: bool = False) -> None:
        self.tokens.append(token)
        self.parents.append(parent)
        self.laws.append(law)
        self.scout.append(scout or (parent >= 0 and self.scout[parent]))
        self.fixed.append(fixed)


@dataclass(frozen=True)
class SiblingTrees(FromTable):
    """Draft random ragged trees whose siblings are drawn without replacement; scouts and fixed ids are among them.

    The tree of a step follows from the row's ids and draws alone, so that a request is the same in every batch.
    """

    max_nodes: int = 4
    max_depth: int = 2
    name: str = "sibling_trees"

    @property
    def offers(self) -> Offers:
        return Offers(trees=True, laws=True, max_depth=self.max_depth, max_nodes=self.max_nodes)

    def _grow(self, ids: Sequence[int], depth: int, nodes: int, randomness: Randomness) -> _Grown:
        generator, size = np.random.default_rng(list(ids)), self.table.shape[-1]
        tree, paths, nodes = _Grown(), [tuple(ids)], min(nodes, self.max_nodes)
        for at, path in enumerate(paths):
            depth_here = len(path) - len(ids)
            k = min(int(generator.integers(0, 4)), nodes - len(tree.tokens))
            if depth_here < min(depth, self.max_depth) and k > 0:
                law = law_after(self.table, path)
                drawn = randomness.choose(Laws.from_probs(torch.from_numpy(law)[None]), at, depth_here, "draft", k)
                is_scout = [bool(scout) for scout in generator.random(k) < 0.2]
                for token, scout in zip(drawn.view(-1).tolist(), is_scout, strict=True):
                    if token >= 0:
                        tree.add(token, at - 1, law, scout)
                if len(tree.tokens) < nodes and generator.random() < 0.3:
                    token = int(generator.integers(size))
                    tree.add(token, at - 1, np.eye(size)[token], scout=False, fixed=True)
                paths += [(*path, token) for token in tree.tokens[len(paths) - 1 :]]
        return tree

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        limits = zip(budget.max_depth.tolist(), budget.max_nodes.tolist(), strict=True)
        prefixes = [row[:n] for row, n in zip(context.ids.tolist(), context.num_committed, strict=True)]
        trees = [
            self._grow(ids, *limit, randomness.select(np.array([row])))
            for row, (ids, limit) in enumerate(zip(prefixes, limits, strict=True))
        ]
        batch, width = len(trees), max((len(tree.tokens) for tree in trees), default=0)
        # Padding holds valid ids and parents, and flags that mean nothing.
        tokens = torch.zeros(batch, width, dtype=torch.int64)
        parents = torch.full((batch, width), -1)
        is_scout, without = torch.ones(2, batch, width, dtype=torch.bool)
        probs = torch.full((batch, width, self.table.shape[-1]), 1.0 / self.table.shape[-1], dtype=torch.float64)
        for row, tree in enumerate(trees):
            if tree.tokens:
                n = len(tree.tokens)
                tokens[row, :n], parents[row, :n] = torch.tensor(tree.tokens), torch.tensor(tree.parents)
                is_scout[row, :n], without[row, :n] = torch.tensor(tree.scout), ~torch.tensor(tree.fixed)
                probs[row, :n] = torch.from_numpy(np.stack(tree.laws))
        num_nodes = torch.tensor([len(tree.tokens) for tree in trees], dtype=torch.int64)
        laws = Laws.from_probs(probs)
        return Draft(tokens, num_nodes, parents, laws, without_replacement=without, is_scout=is_scout)


@dataclass(frozen=True)
class PlannedTrees(FromTable):
    """Draw trees of a shape, siblings with replacement."""

    shape: TreeShape
    name: str = "planned_trees"

    @property
    def offers(self) -> Offers:
        return Offers(trees=True, laws=True, max_depth=self.shape.max_depth, max_nodes=self.shape.max_nodes)

    def draft(self, context: Context, budget: Budget, randomness: Randomness) -> Draft:
        planned = self.shape.plan(budget.max_depth, budget.max_nodes)
        assert planned is not None
        parents, counts = planned[0].parents, planned[1]
        prefixes = [tuple(row[:n]) for row, n in zip(context.ids.tolist(), context.num_committed, strict=True)]
        paths, tokens, laws = [prefixes], [], []
        for node, parent in enumerate(parents):
            probs = torch.from_numpy(np.stack([law_after(self.table, path) for path in paths[parent + 1]]))
            live = np.flatnonzero(counts > node)
            drawn = torch.zeros(len(counts), dtype=torch.int64)
            own = Laws.from_probs(probs[torch.from_numpy(live)])
            drawn[torch.from_numpy(live)] = randomness.select(live).choose(own, node, node, "draft")
            paths.append([(*path, int(token)) for path, token in zip(paths[parent + 1], drawn, strict=True)])
            tokens.append(drawn)
            laws.append(probs)
        if not tokens:
            return Draft.empty(len(counts), torch.device("cpu"))
        above = torch.from_numpy(parents).repeat(len(counts), 1)
        made = Laws.from_probs(torch.stack(laws, dim=1))
        return Draft(torch.stack(tokens, dim=1), torch.from_numpy(counts), above, made)
