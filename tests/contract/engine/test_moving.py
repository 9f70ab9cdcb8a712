"""Batched values move as a whole: to a device, to other rows, to other places."""

from dataclasses import fields

import numpy as np
import torch

from specdec.contracts import NEVER, Draft, Resume, Scores, StageInfo
from specdec.laws import Laws
from tests.support.models.tiny_models import tiny_transformer

META = torch.device("meta")


def full_draft() -> Draft:
    """Return a draft of two rows, two nodes wide, in which nothing is left out."""
    flags = torch.tensor([[True, False], [False, True]])
    draft = Draft(
        tokens=torch.tensor([[1, 2], [3, 0]]),
        num_nodes=torch.tensor([2, 1]),
        parents=torch.tensor([[-1, -1], [-1, 0]]),
        laws=Laws(torch.full((1, 4), 0.25), torch.tensor([[0, -1], [0, 0]]), torch.tensor([[1, 2], [3, 0]])),
        without_replacement=flags,
        confidence=torch.tensor([[0.5, 0.25], [0.75, 1.0]]),
        is_scout=flags,
        source=torch.tensor([[1, 0], [1, 1]]),
        source_names=("a", "b"),
        decided=flags,
        stages=(StageInfo("a"),),
        undefined=torch.tensor([[NEVER, 0], [1, NEVER]]),
        shortened=torch.tensor([True, False]),
        resume=Resume(tiny_transformer(), (1, 2), torch.ones(2, 3, 4)),
    )
    assert all(getattr(draft, f.name) is not None for f in fields(Draft)), "a new field must move too"
    return draft


def tensors_of(draft: Draft) -> dict[str, torch.Tensor]:
    """Return every tensor of a draft, by the field that holds it."""
    found: dict[str, torch.Tensor] = {}
    for name, value in ((f.name, getattr(draft, f.name)) for f in fields(Draft)):
        parts = vars(value) if isinstance(value, (Laws, Resume)) else {"": value}
        found |= {name + part: x for part, x in parts.items() if isinstance(x, torch.Tensor)}
    return found


def test_a_draft_goes_to_a_device_with_all_that_it_holds() -> None:
    draft = full_draft()
    moved = tensors_of(draft.to(META))
    assert {name: x.device for name, x in moved.items()} == dict.fromkeys(tensors_of(draft), META)
    assert draft.to(torch.device("cpu")) is draft


def test_a_draft_is_spread_with_all_that_it_holds_and_other_rows_are_empty() -> None:
    draft = full_draft()
    wide = draft.scatter_rows(np.array([0, 2]), 3)
    whole, given = tensors_of(wide), tensors_of(draft)
    assert whole.keys() == given.keys()
    for name, values in given.items():
        moved = whole[name] if name == "lawstable" else whole[name][[0, 2]]
        assert torch.equal(moved, values), name
    nothing = {name: x[1].unique().tolist() for name, x in whole.items() if name != "lawstable"}
    assert {name: value for name, value in nothing.items() if value != [0]} == {
        "parents": [-1],
        "lawsindex": [-1],
        "undefined": [NEVER],
    }
    assert wide.source_names == draft.source_names
    assert draft.scatter_rows(np.array([0, 1]), 2) is draft


def test_nodes_of_several_drafts_make_a_draft() -> None:
    first, second = full_draft(), Draft(torch.tensor([[7], [8]]), torch.tensor([1, 1]))
    places, parents = torch.tensor([[2, 0], [0, 1]]), torch.tensor([[-1, 0], [-1, -1]])
    made = Draft.of_nodes([first, second], places, parents, torch.tensor([2, 1]))
    assert made.tokens.tolist() == [[7, 1], [3, 0]]
    assert made.laws is not None
    assert made.laws.index.tolist() == [[-1, 0], [0, -1]]
    assert made.laws.point.tolist() == [[7, 1], [3, 0]]
    assert made.is_scout is not None
    assert made.is_scout.tolist() == [[False, True], [False, False]], "what a part lacks its nodes have not"
    assert made.source is not None
    assert made.source.tolist() == [[0, 1], [1, 0]]
    assert made.confidence is None, "some nodes have none"
    assert Draft.of_nodes([second], places * 0, None, torch.tensor([1, 1])).laws is None


def test_laws_and_scores_move_as_drafts_do() -> None:
    laws = Laws(torch.eye(3), torch.tensor([[0, -1], [2, 1]]), torch.tensor([[0, 2], [0, 0]]))
    assert laws.gather(torch.tensor([[1, 0, 0], [0, 1, 1]])).dense().argmax(-1).tolist() == [[2, 0, 0], [2, 1, 1]]
    assert {x.device for x in vars(laws.to(META)).values()} == {META}
    logits, layer = torch.arange(12.0).view(2, 3, 2), torch.arange(6.0).view(2, 3, 1)
    picked = Scores(logits, (layer,)).gather(np.array([[2], [0]]))
    assert picked.logits is not None
    assert picked.logits.tolist() == [[[4.0, 5.0]], [[6.0, 7.0]]]
    assert picked.hidden[0].tolist() == [[[2.0]], [[3.0]]]
    halves = [Scores(logits[:, :1], (layer[:, :1],)), Scores(logits[:, 1:], (layer[:, 1:],))]
    joined = Scores.concat(halves)
    assert joined.logits is not None
    assert torch.equal(joined.logits, logits)
    assert torch.equal(joined.hidden[0], layer)
    assert Scores.concat([Scores(None, (layer,)), Scores(None, (layer,))]).logits is None


def test_parents_may_be_written_until_a_draft_is_scored() -> None:
    parents = torch.tensor([[-1, 0]])
    draft = Draft(torch.tensor([[1, 2]]), torch.tensor([2]), parents)
    assert draft.is_chain
    parents[0, 1] = -1
    assert not draft.is_chain
    scored = draft.after(np.array([5])).parents
    assert scored is not None
    assert scored.tolist() == [[-1, 0, 0]]
