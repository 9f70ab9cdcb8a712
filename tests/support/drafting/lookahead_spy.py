"""A Lookahead that keeps what it drafted, as paths from the pending token."""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch

from drafts import Lookahead
from specdec import SpeculativeDecoder
from specdec.contracts import Oracle, Scores


@dataclass(frozen=True)
class Drafted:
    """One draft of one request.

    Attributes:
        num_committed: ids that stood.
        max_nodes: of the budget.
        paths: of every node, and whether it is a scout.
        ids: the request's.
    """

    num_committed: int
    max_nodes: int
    paths: list[tuple[list[int], bool]]
    ids: list[int]


class SpiedLookahead(Lookahead):
    """Keep every draft by the prompt of its request; ``look``, if it is given, sees each step's drafts and scores."""

    look: Callable[[list[Drafted], Scores], None] | None = None

    def open(self, oracle, num_rows, capacity):
        session = super().open(oracle, num_rows, capacity)
        begin, propose, sync = session.begin, session.propose, session.sync
        self.seen: dict[tuple[int, ...], list[Drafted]] = defaultdict(list)
        prompts: dict[int, tuple[int, ...]] = {}
        latest: list[Drafted] = []

        def beginning(rows, texts, scores):
            assert scores is None
            prompts.update({int(row): tuple(text.tolist()) for row, text in zip(rows, texts, strict=True)})
            begin(rows, texts, scores)

        def proposing(rows, context, budget, randomness):
            draft = propose(rows, context, budget, randomness)
            latest.clear()
            for b, row in enumerate(rows.tolist()):
                size, tokens, parents = int(draft.num_nodes[b]), draft.tokens[b].tolist(), draft.parents[b].tolist()
                paths: list[list[int]] = []
                for node in range(size):
                    paths.append([*(paths[parents[node]] if parents[node] >= 0 else []), tokens[node]])
                scouts = draft.is_scout[b, :size].tolist()
                length = int(context.num_committed[b])
                ids = context.ids[b, :length].tolist()
                nodes = max(int(budget.max_nodes[b]), 0)
                latest.append(Drafted(length, nodes, list(zip(paths, scouts, strict=True)), ids))
                self.seen[prompts[row]].append(latest[-1])
            return draft

        def syncing(rows, keep, new_ids, scores):
            if self.look is not None:
                self.look(latest, scores)
            sync(rows, keep, new_ids, scores)

        session.begin, session.propose, session.sync = beginning, proposing, syncing
        return session


def _compare(model: Oracle, wrong: list[bool], drafts: list[Drafted], scores: Scores) -> None:
    """Append for each node of a pass whether it scores in another way than the chain of its path alone."""
    for drafted, logits in zip(drafts, scores.logits, strict=True):
        cache, row = model.new_cache(1, 64), np.array([0])
        prefix = torch.tensor([drafted.ids[:-1]], dtype=torch.int64)
        if prefix.shape[1]:
            model.score(prefix, None, torch.tensor([prefix.shape[1]]), cache, row, "none")
            cache.commit(row, None, np.array([prefix.shape[1]]))
        for node, (path, _) in enumerate(drafted.paths, start=1):
            chain = torch.tensor([[drafted.ids[-1], *path]])
            own = model.score(chain, None, torch.tensor([chain.shape[1]]), cache, row, "last").logits[0, 0]
            wrong.append(not torch.equal(own, logits[node]))


def nodes_unlike_their_chains(model: Oracle, source: SpiedLookahead, prompts: list[list[int]]) -> list[bool]:
    """Decode greedily and return for every node of every pass whether its logits differ from its own chain's."""
    wrong: list[bool] = []
    source.look = partial(_compare, model, wrong)
    SpeculativeDecoder(model, source, "multi_draft").generate(prompts, 16)
    return wrong
