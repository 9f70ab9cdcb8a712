"""How far a draft agrees with the oracle: sums over the new tokens, whatever shares a pass, with and without loops."""

import pytest
import torch
from torch import Tensor

from oracles.factory.evaluation.agreement import Agreements, compare
from oracles.factory.evaluation.continuations import Continuation
from oracles.factory.evaluation.loops import loop_mask

V = 7
CPU = torch.device("cpu")
GENERATOR = torch.Generator().manual_seed(5)
ORACLE, DRAFT = (torch.randn(V, V, V, generator=GENERATOR) for _ in range(2))
TEXTS = [
    Continuation((1, 2), (3, 3, 3, 3, 4, 5)),
    Continuation((6, 2), (0, 5, 1, 2, 4, 5)),
    Continuation((4,), (1, 2, 1, 2, 1, 2)),
    Continuation((4, 4, 4), (5,)),
    Continuation((4, 4), ()),
]


def order_two(table: Tensor):
    """Return what a table of laws says after the last two ids; 0 stands before the text."""

    def logits(ids: Tensor) -> Tensor:
        before = torch.cat([torch.zeros_like(ids[:, :1]), ids[:, :-1]], dim=1)
        return table[before, ids]

    return logits


def by_hand(skip_loops: bool) -> tuple[int, int, float]:
    """Return tokens, equal likeliest ids and overlap, token by token."""
    count, same, overlap = 0, 0, 0.0
    for text in TEXTS:
        ids = (0, *text.prompt, *text.new)
        for i, is_looped in enumerate(loop_mask(text.new)):
            if skip_loops and is_looped:
                continue
            at = 1 + len(text.prompt) + i
            p, q = (table[ids[at - 2], ids[at - 1]].softmax(0) for table in (ORACLE, DRAFT))
            count, same = count + 1, same + int(p.argmax() == q.argmax())
            overlap += torch.minimum(p, q).sum().item()
    return count, same, overlap


@pytest.mark.parametrize("tokens_at_once", [1, 4096])
def test_sums_are_those_of_single_tokens(monkeypatch, tokens_at_once):
    monkeypatch.setattr("oracles.factory.evaluation.agreement.TOKENS_AT_ONCE", tokens_at_once)
    found = compare(order_two(ORACLE), {"draft": order_two(DRAFT)}, TEXTS, CPU)["draft"]
    for part, skip_loops in ((found.all, False), (found.unlooped, True)):
        count, same, overlap = by_hand(skip_loops)
        assert (part.num_tokens, part.same_best) == (count, same)
        assert part.mean_overlap == pytest.approx(overlap / count, rel=1e-6)
    assert 0 < found.unlooped.num_tokens < found.all.num_tokens == 19


def test_nothing_looked_at_is_no_number():
    nothing = Agreements()
    assert (nothing.all.share_same, nothing.unlooped.mean_overlap) == (None, None)
