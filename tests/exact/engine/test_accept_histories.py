"""After forced random accept histories the cache holds what re-scoring the ids from nothing gives, bitwise."""

from dataclasses import dataclass

import numpy as np
import torch

from specdec import SpeculativeDecoder
from specdec.cache import prefill
from specdec.contracts import Draft, Verdict
from specdec.laws import Laws, as_laws
from tests.reference.tables import random_table
from tests.support.backends import PACKS, agree
from tests.support.drafting.sources import Chains, RandomTrees
from tests.support.models.tiny_models import tiny_transformer
from tests.support.pairwise import pairwise

VOCAB = 7
TABLE = random_table(VOCAB, 1, 61)
PROMPTS = [[(3 * i + j) % VOCAB for j in range(1 + 4 * (i % 4))] for i in range(11)]


@dataclass(frozen=True)
class Forced:
    """Stop at a node picked from the ids alone; the next token is the target's."""

    name: str = "forced"
    lossless: bool = False
    trees: bool = True
    coupled: bool = False
    native_judge: None = None

    def __call__(self, draft: Draft, target_laws: Laws | torch.Tensor) -> Verdict:
        target = as_laws(target_laws)
        stops = []
        for row, size in enumerate(draft.num_nodes.tolist()):
            scout = torch.zeros(size, dtype=torch.bool) if draft.is_scout is None else draft.is_scout[row, :size]
            nodes = [0, *(1 + i for i in range(size) if not scout[i])]
            stops.append(nodes[int(draft.tokens[row, :size].sum() * 7919 + size) % len(nodes)])
        return Verdict(Laws.points(torch.tensor(stops)), draft.width + 1, target.gather)


def _logits_after(model, cache, row, token):
    """Return the logits ``[V]`` after the pending ``token`` of a cache row."""
    scores = model.score(torch.tensor([[token]]), None, torch.tensor([1]), cache, np.array([row]), want="last")
    return scores.logits[0, 0]


@pairwise(
    {
        "source": {"chains": Chains(TABLE, 4), "trees": RandomTrees(TABLE, max_nodes=6)},
        "options": {"full": {}, "window": {"sliding_window": 5}},
        "any_pack": PACKS,
    }
)
def test_the_cache_rescores_bitwise_after_random_accept_histories(source, options, any_pack):
    model = tiny_transformer(VOCAB, torch.float32, pack=any_pack, hidden_size=32, **options)
    assert model.bitwise or model.backend == "graphed"
    decoder = SpeculativeDecoder(model, source, Forced())
    state = decoder.start(PROMPTS, 24, batch_size=4)
    accepted, checked = set(), 0
    while state.has_work:
        state, info = decoder.step(state)
        accepted |= {int(count) for count in info.num_accepted}
        for row in state.slots.rows:
            ids = state.slots.ids[row, : state.slots.num_committed[row]]
            fresh = model.new_cache(1, len(ids))
            prefill(model, fresh, np.array([0]), [ids])
            kept, wanted = (_logits_after(model, c, r, ids[-1]) for c, r in ((state.seating.cache, row), (fresh, 0)))
            assert agree(model, kept, wanted)
            checked += 1
    assert {0, 1, 2, 3} <= accepted
    assert checked > 50
