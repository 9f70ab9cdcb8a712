"""DSpark and Medusa heads draft, off the disk, what their trainers learn and measure."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

import drafts
from oracles import Transformer, load_head
from oracles.factory.training import block_distillation
from oracles.factory.training.block_distillation import BlockDistillation, describe_dspark, dspark_shape, new_dspark
from oracles.factory.training.head_distillation import HeadDistillation
from oracles.factory.training.head_export import export_head
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.lesson import Lesson
from oracles.factory.training.medusa_distillation import MedusaDistillation, new_medusa, save_medusa
from oracles.heads import DFlashHead, MedusaHead
from specdec import SpeculativeDecoder
from specdec.contracts import Features
from tests.support.models.tiny_models import tiny_unpacked

VOCAB, LENGTH, STEPS, LAYERS, MASK = 11, 17, 4, (0, 2, 4), 7
IDS = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(3))
# What a head writes, and whether the rows are its own.
CASES = {
    "all ids, borrowed": (None, False),
    "few ids, borrowed": ((0, 2, 3, 7, 10), False),
    "few ids, own": ((0, 2, 3, 7, 10), True),
}
Head = DFlashHead | MedusaHead


def tiny_oracle() -> Transformer:
    return tiny_unpacked(VOCAB, torch.float32, num_layers=6, tie_embeddings=True)


def text_of(ids: Tensor) -> HeadText:
    return HeadText(ids.flatten().int(), torch.ones(ids.numel(), dtype=torch.bool))


def prepare(task: HeadDistillation) -> None:
    """Give a head weights that matter, have it learn for a moment, and leave them as they are stored."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.3
    optimiser = torch.optim.Adam(task.model.parameters(), 1e-2)
    for _ in range(40):
        optimiser.zero_grad()
        task.loss(torch.arange(len(task.text.ids)).unsqueeze(0)).backward()
        optimiser.step()
    with torch.no_grad():
        for parameter in task.model.parameters():
            parameter.copy_(parameter.bfloat16())


def dspark(name: str, text: HeadText, folder: Path) -> tuple[BlockDistillation, Head]:
    """Return a head in training, and the one that is loaded from where it was written."""
    ids, own_head = CASES[name]
    oracle, written = tiny_oracle(), None if ids is None else torch.tensor(ids)
    lesson = Lesson(oracle, LAYERS, written, text, STEPS, "tv+bce", 0.8, "float32")
    shape = dspark_shape(lesson, num_layers=2, intermediate_size=24, markov_rank=5, mask_id=MASK, own_head=own_head)
    network = new_dspark(shape, lesson, 0)
    task = BlockDistillation(lesson, network, shape, 1000)
    prepare(task)
    export_head(network, describe_dspark(shape, "tiny"), folder, written)
    head = load_head(folder, tiny_oracle().pack())
    assert isinstance(head, DFlashHead)
    assert (head.layers, head.num_laws, head.has_confidence) == (LAYERS, STEPS, True)
    return task, head


def medusa(name: str, text: HeadText, folder: Path) -> tuple[MedusaDistillation, Head]:
    oracle = tiny_oracle()
    lesson = Lesson(oracle, (oracle.num_layers - 1,), None, text, STEPS, "kl", 0.8, "float32")
    network = new_medusa(lesson, 1)
    task = MedusaDistillation(lesson, network)
    prepare(task)
    save_medusa(network, "tiny", folder)
    head = load_head(folder, tiny_oracle().pack())
    assert isinstance(head, MedusaHead)
    return task, head


KINDS = [*((dspark, name, drafts.BlockDrafter) for name in CASES), (medusa, "all ids, borrowed", drafts.Medusa)]
Maker = Callable[[str, HeadText, Path], tuple[HeadDistillation, Head]]


@torch.no_grad()
def opened(head: Head, num_roots: int) -> tuple[list[Tensor], list[Tensor]]:
    """Return logits ``[R, V]`` and chances ``[R]`` of each depth after every place of the text, its own ids before."""
    rows = np.arange(num_roots)
    streams = tiny_oracle().streams(IDS)
    layers = tuple(streams[layer].expand(num_roots, -1, -1) for layer in head.layers)
    cache = head.new_cache(num_roots, LENGTH + STEPS)
    head.put(Features(rows, np.zeros(num_roots, dtype=np.int64), rows + 1, layers), cache)
    block = head.open_block(cache, rows, IDS[0, 1 : 1 + num_roots], STEPS)
    logits, chances = [], []
    for depth in range(STEPS):
        previous = IDS[0, 1 + depth : 1 + depth + num_roots].unsqueeze(1)
        logits.append(block.logits(depth, previous)[:, 0])
        if head.has_confidence:
            chances.append(block.confidence(depth, previous)[:, 0])
    return logits, chances


def laws_agree(task: HeadDistillation, head: Head) -> bool:
    """Return whether a trainer says of every place and depth what a session says, to 1e-4."""
    num_roots, columns = LENGTH - 1 - STEPS, task.target_ids
    logits, chances = opened(head, num_roots)
    with torch.no_grad():
        said = list(task.predictions(torch.arange(LENGTH).unsqueeze(0), text_of(IDS)))
    fits = []
    for depth, one in enumerate(said):
        assert len(one.learnt) == num_roots
        fits.append(torch.allclose(one.learnt, logits[depth][:, columns].log_softmax(-1), atol=1e-4))
        if one.believed is not None:
            fits.append(torch.allclose(one.believed, chances[depth], atol=1e-4))
    return all(fits)


def test_an_anchor_that_sees_its_own_state_is_another_head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task, head = dspark("all ids, borrowed", text_of(IDS), tmp_path)
    right = block_distillation.AnchoredAttention.__init__

    def one_too_many(self: block_distillation.AnchoredAttention, context, anchors: Tensor) -> None:
        right(self, context, anchors + 1)

    monkeypatch.setattr(block_distillation.AnchoredAttention, "__init__", one_too_many)
    assert not laws_agree(task, head)


@pytest.mark.parametrize(("make", "name", "source"), KINDS)
def test_laws_confidences_and_accepted_tokens_of_a_session_are_the_trainers(
    make: Maker, name: str, source: Callable, tmp_path: Path
) -> None:
    """Greedily, on the oracle's own text: from each step's pending token, drafts stand as far as the trainer's do."""
    oracle = tiny_oracle().pack()
    whole = [9, 4] + SpeculativeDecoder(oracle).generate([[9, 4]], 40).tokens[0]
    text = text_of(torch.tensor(whole))
    task, head = make(name, text, tmp_path)
    assert laws_agree(task, head)
    with torch.no_grad():
        found = list(task.predictions(torch.arange(len(whole)).unsqueeze(0), text))
    same = torch.stack([said.learnt.argmax(-1) == said.likeliest_column for said in found])
    leading = [0, *same.int().cumprod(0).sum(0).tolist()]  # by the place of the pending token
    drafted = SpeculativeDecoder(oracle, source(head)).generate([[9, 4]], 40)
    assert [9, 4] + drafted.tokens[0] == whole
    steps = [row for row in drafted.records if row["num_committed"] - 1 < len(leading)]
    assert len(steps) > 10
    assert [row["num_accepted"] for row in steps] == [leading[row["num_committed"] - 1] for row in steps]
    assert sum(row["num_accepted"] for row in steps) > 0
