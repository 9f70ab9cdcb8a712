"""A tree scored level by level, over the keys of its upper levels, is the tree scored at once, bit for bit."""

import numpy as np
import pytest
import torch

from oracles import TabularLM
from specdec.contracts.token_tree import ancestors_of
from tests.reference.tables import random_table
from tests.support.backends import PACKS, agree
from tests.support.models.scoring import append, random_tree
from tests.support.models.tiny_models import FAMILIES, small_model
from tests.support.pairwise import pairwise

MODELS = {name: lambda pack, changes=changes: pack(small_model(**changes)) for name, changes in FAMILIES.items()}
MODELS["table"] = lambda pack: TabularLM(random_table(23, 2, 91))
LENGTHS = {"within a block": (7, 30), "across blocks": (61, 130)}


def by_level(parents: torch.Tensor) -> torch.Tensor:
    """Return the parents of trees whose nodes stand level by level, equal numbers of nodes a level in every row."""
    depth = (ancestors_of(parents).sum(-1) - 1)[0]
    order = depth.argsort(stable=True)
    place = torch.empty_like(order).scatter_(0, order, torch.arange(len(order)))
    above = parents[0, order]
    return torch.where(above < 0, above, place[above.clamp(min=0)]).expand(len(parents), -1)


def cuts_of(parents: torch.Tensor) -> list[int]:
    """Return where each level of such trees ends."""
    depth = ancestors_of(parents).sum(-1)[0]
    return [int((depth <= level).sum()) for level in range(1, int(depth.max()) + 1)]


@pairwise({"make": MODELS, "lengths": LENGTHS, "any_pack": PACKS})
def test_level_by_level_is_at_once_bit_for_bit(make, lengths, any_pack):
    model, generator = make(any_pack), torch.Generator().manual_seed(5)
    rows, size = np.array([2, 0]), 21
    cache = model.new_cache(3, max(lengths) + size)
    for row, length in zip(rows.tolist(), lengths, strict=True):
        append(model, cache, row, torch.randint(23, (length,), generator=generator))
    parents = by_level(random_tree(1, size, generator)).expand(2, -1).clone()
    # Several roots: the pending token is cached. The second row has one node less on the second level.
    parents[:, 1], parents[1, 2] = -1, -1
    tokens, nodes = torch.randint(23, (2, size), generator=generator), torch.tensor([size, size])
    whole = model.score(tokens, parents, nodes, cache, rows).logits
    first, parts = 0, []
    for end in [*cuts_of(parents), size]:
        if end > first:
            part = tokens[:, :end].clone()
            # Ids of nodes that are cached are not read again.
            part[:, :first] = 0
            parts.append(
                model.score(part, parents[:, :end], nodes.clamp(max=end), cache, rows, "all", (), first).logits
            )
            first = end
    assert len(parts) > 3
    assert agree(model, torch.cat(parts, dim=1), whole)
    last = model.score(tokens, parents, nodes, cache, rows, "last", (), size - 3).logits
    assert agree(model, last[:, 0], whole[:, -1])
    assert cache.lengths[rows].tolist() == list(lengths)


def test_a_chain_may_grow_too_and_hidden_layers_are_those_of_the_new_nodes(any_pack):
    model, generator = any_pack(small_model()), torch.Generator().manual_seed(6)
    cache, rows = model.new_cache(2, 40), np.arange(2)
    append(model, cache, 0, torch.randint(23, (5,), generator=generator))
    tokens, nodes = torch.randint(23, (2, 6), generator=generator), torch.tensor([6, 6])
    whole = model.score(tokens, None, nodes, cache, rows, "all", (1,))
    model.score(tokens[:, :4], None, nodes - 2, cache, rows, "none")
    rest = model.score(tokens, None, nodes, cache, rows, "all", (1,), 4)
    assert agree(model, rest.logits, whole.logits[:, 4:])
    assert agree(model, rest.hidden[0], whole.hidden[0][:, 4:])


@pytest.mark.parametrize("make", [MODELS["table"], MODELS["llama"]], ids=["table", "transformer"])
def test_nodes_that_were_never_scored_cannot_be_cached(make, any_pack):
    model = make(any_pack)
    cache, row = model.new_cache(1, 16), np.array([0])
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    for first in (2, 4):
        with pytest.raises(ValueError, match=f"first={first} says"):
            model.score(tokens, None, torch.tensor([4]), cache, row, "all", (), first)
