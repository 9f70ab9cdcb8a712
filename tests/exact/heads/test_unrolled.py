"""Training-time test of an EAGLE-3 head computes what the head computes at decoding time, off the disk."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles import Transformer, load_head
from oracles.factory.training.eagle3_distillation import describe_eagle3, new_eagle3, unroll
from oracles.factory.training.head_export import export_head
from oracles.factory.training.head_text import HeadText
from oracles.factory.training.lesson import Lesson
from oracles.heads import Eagle3Head
from oracles.heads.eagle3_network import Eagle3Network
from oracles.transformer.attention import chunked_attention
from oracles.transformer.draft_vocabulary import DraftHead
from specdec.contracts import Context, Scores
from specdec.drafting import HeadModel
from tests.support.models.tiny_models import tiny_unpacked

VOCAB, LENGTH, STEPS, LAYERS = 11, 17, 4, (0, 2, 4)
IDS = torch.randint(VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(3))
CASES = {
    "all ids, borrowed": (None, False, {}),
    "all ids, own": (None, True, {"norm_output": True}),
    "few ids, borrowed": ((0, 2, 3, 7, 10), False, {"norm_before_residual": True}),
    "few ids, own": ((0, 2, 3, 7, 10), True, {"norm_output": True, "norm_before_residual": True}),
}


def tiny_oracle() -> Transformer:
    return tiny_unpacked(VOCAB, torch.float32, num_layers=6, tie_embeddings=True)


def written(name: str, folder: Path) -> tuple[Eagle3Network, Eagle3Head]:
    """Return a network with weights that matter, and the head that is loaded from where it was written."""
    ids, own_head, flags = CASES[name]
    oracle, target_ids = tiny_oracle(), None if ids is None else torch.tensor(ids)
    text = HeadText(IDS[0].int(), torch.ones(LENGTH, dtype=torch.bool))
    lesson = Lesson(oracle, LAYERS, target_ids, text, STEPS, "kl", 0.8, "float32")
    values = describe_eagle3(lesson, "tiny", 24) | flags
    network = new_eagle3(values, lesson, own_head, 0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter += torch.randn(parameter.shape, generator=generator) * 0.3
            parameter.copy_(parameter.bfloat16())
    export_head(network, values, folder, target_ids)
    head = load_head(folder, tiny_oracle().pack())
    assert isinstance(head, Eagle3Head)
    assert head.layers == LAYERS
    return network, head


@torch.no_grad()
def decoded(head: Eagle3Head) -> list[tuple[Tensor, Tensor]]:
    """Return what the head feeds back ``[R, H]`` and its logits ``[R, V]``, after each drafted id of every prefix.

    Row r of the session has the ids up to r + 1, and drafts the ids that follow.
    """
    num_roots = LENGTH - STEPS
    rows, ids = np.arange(num_roots), IDS[0].tolist()
    streams = tiny_oracle().streams(IDS)
    states = tuple(streams[layer].expand(num_roots, -1, -1) for layer in head.layers)
    model = HeadModel(head, num_roots, LENGTH + STEPS, torch.device("cpu"), slack=STEPS)
    model.begin(rows, [np.array(ids[: r + 2]) for r in rows], Scores(None, states))
    context = np.tile(np.array(ids), (num_roots, 1))
    own = model.own_context(rows, Context(context, rows + 2, None))  # type: ignore[arg-type]
    logits = model.catch_up(rows, own, rows)
    found = []
    for step in range(STEPS):
        features = model.cache.features[rows, rows + step + 1]
        found.append((features.clone(), logits[:, 0].clone()))
        if step + 1 < STEPS:
            logits = model.advance(rows, IDS[0, 2 + step : 2 + step + num_roots].unsqueeze(1), rows)
    return found


def close(found: Tensor, expected: Tensor) -> bool:
    """Return whether numbers are equal to 1e-5 of the largest."""
    return bool((found - expected).abs().max() < 1e-5 * expected.abs().max())


@pytest.mark.parametrize("name", CASES)
def test_unrolled_steps_are_those_of_a_session(name: str, tmp_path: Path) -> None:
    network, head = written(name, tmp_path)
    oracle, target_ids = tiny_oracle(), CASES[name][0]
    columns = list(range(VOCAB)) if target_ids is None else list(target_ids)
    with torch.no_grad():
        streams = oracle.streams(IDS)
        steps = list(unroll(network, oracle.embed, [streams[layer] for layer in LAYERS], IDS, STEPS))
        for stream, (feature, logits) in zip(steps, decoded(head), strict=True):
            guess = network.norm(stream) if network.norm_output else stream
            assert close(guess[0], feature)
            normed, table = network.norm(stream[0]), network.lm_head
            rows = oracle.model.embed_tokens.weight[columns] if table is None else table.weight
            assert rows is not None
            assert close(normed @ rows.t(), logits[:, columns])
    assert isinstance(network.lm_head, DraftHead) == (CASES[name][1] and target_ids is not None)


def test_some_rows_are_borrowed_of_a_head_that_is_the_embeddings_only(tmp_path: Path) -> None:
    written("few ids, borrowed", tmp_path)
    with pytest.raises(ValueError, match="only where its head is its embeddings"):
        load_head(tmp_path, tiny_unpacked(VOCAB, torch.float32, num_layers=6).pack())


def test_chunks_of_queries_change_nothing() -> None:
    generator = torch.Generator().manual_seed(0)
    query, *rest = (torch.randn(2, 13, heads, 8, generator=generator) for heads in (4, 2, 2, 2, 2, 2, 2))
    key, value = rest[:2]
    own = [(rest[2], rest[3]), (rest[4], rest[5])]
    whole, parts = (chunked_attention(query, key, value, chunk, own) for chunk in (13, 4))
    torch.testing.assert_close(whole, parts)
    assert not torch.allclose(whole, chunked_attention(query, key, value, 13, own[:1]))
