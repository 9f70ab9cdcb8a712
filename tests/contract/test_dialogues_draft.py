"""A draft that learns on what a chat model wrote: its text in a row, its loss, its worth, and the command."""

import json
import math
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer

import oracles
from oracles import Transformer
from oracles.factory.dialogues import draft as training
from oracles.factory.dialogues.corpus import Corpus
from oracles.factory.dialogues.dialogue_parts import LIKELIEST, Conversation, write_part
from oracles.factory.dialogues.draft import RecordedDistillation, draft_recipe, new_draft
from oracles.factory.dialogues.draft_acceptance import DEPTH, table_of, worth
from oracles.factory.train import TOKENIZER
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.recipes import RECIPES, Recipe
from oracles.factory.training.windows import WindowPlan

VOCAB, BEGIN = 40, (7, 8)
SHAPE = replace(
    draft_recipe(VOCAB, 6).config, hidden_size=16, num_heads=2, num_kv_heads=1, intermediate_size=24, max_context=64
)


def law(*pairs: tuple[int, float]) -> tuple[list[int], list[float]]:
    """Return the 32 likeliest ids of a law and their log-probabilities: these, and others of next to nothing."""
    ids = [i for i, _ in pairs]
    ids += [i for i in range(VOCAB) if i not in ids][: LIKELIEST - len(ids)]
    return ids, [math.log(p) for _, p in pairs] + [-40.0] * (LIKELIEST - len(pairs))


def said(answers: list[tuple[list[int], list[float]]]) -> tuple[np.ndarray, np.ndarray]:
    ids, laws = zip(*answers, strict=True)
    return np.array(ids, dtype=np.uint16), np.array(laws, dtype=np.float16)


FIRST = Conversation(
    np.array([1, 2, 3, 10, 11], dtype=np.uint16), ((3, 5),), "chat", 0.0, "train",
    said([law((10, 0.75), (30, 0.25)), law((11, 1.0))]),
)  # fmt: skip
SECOND = Conversation(
    np.array([4, 12, 5, 6, 13], dtype=np.uint16), ((1, 2), (4, 5)), "two turns", 1.0, "train",
    said([law((12, 0.5), (13, 0.5)), law((13, 1.0))]),
)  # fmt: skip


def corpus() -> Corpus:
    return Corpus.of([FIRST, SECOND], BEGIN)


def test_conversations_stand_in_a_row_each_after_the_turn_of_the_system():
    found = corpus()
    assert found.ids.tolist() == [7, 8, 1, 2, 3, 10, 11, 7, 8, 4, 12, 5, 6, 13]
    assert found.answer_of.tolist() == [-1, -1, -1, -1, -1, 0, 1, -1, -1, -1, 2, -1, -1, 3]
    assert found.spans == ((0, 5, 7, 0.0), (7, 10, 11, 1.0), (7, 13, 14, 1.0))
    assert found.kinds == ("chat", "two turns", "two turns")
    mass = found.mass(VOCAB)
    wanted = {10: 0.75, 30: 0.25, 11: 1.0, 12: 0.5, 13: 1.5}
    assert mass.tolist() == pytest.approx([wanted.get(i, 0.0) for i in range(VOCAB)], abs=2e-3)


def test_a_corpus_needs_conversations_and_what_was_said_of_them():
    with pytest.raises(ValueError, match=r"write some with python -m oracles.factory.dialogues write"):
        Corpus.of([], BEGIN)
    with pytest.raises(ValueError, match="give parts, not shards"):
        Corpus.of([replace(FIRST, likeliest=None)], BEGIN)


def model(seed: int = 1) -> Transformer:
    """Return a draft that writes the ids of the corpus, and 0, in training form."""
    table = torch.randn(VOCAB, 20, generator=torch.Generator().manual_seed(seed))
    return new_draft(SHAPE, table, corpus().mass(VOCAB), seed)


def test_a_new_draft_writes_the_ids_that_are_expected_most():
    made = model()
    ids = made.lm_head.target_ids.tolist()
    assert ids == sorted(ids)
    assert set(ids) >= {10, 11, 12, 13, 30}
    assert {name for name, _ in made.named_parameters() if "layers" not in name} == {
        "model.embed_tokens.projection.weight", "lm_head.projection.weight", "model.norm.weight",
    }  # fmt: skip


def test_a_draft_is_no_wider_than_the_embeddings():
    with pytest.raises(ValueError, match="hidden_size is 16, and the embeddings that the draft reads are 12 wide"):
        new_draft(SHAPE, torch.eye(VOCAB)[:, :12], corpus().mass(VOCAB), 1)


def laws_of(made: Transformer, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return made(torch.tensor([ids]))[0].double().softmax(-1)


def test_the_loss_is_the_divergence_on_answers_of_ids_that_are_written():
    made, text = model(), corpus()
    task = RecordedDistillation(made, text, "float32")
    rows = torch.arange(14).unsqueeze(0)
    probs = laws_of(made, text.ids[:-1].tolist())
    taught = {5: {10: 0.75, 30: 0.25}, 6: {11: 1.0}, 10: {12: 0.5, 13: 0.5}, 13: {13: 1.0}}
    wanted = sum(p * math.log(p / float(probs[at - 1, i])) for at, one in taught.items() for i, p in one.items()) / 4
    assert task.loss(rows).item() == pytest.approx(wanted, rel=2e-3)
    cut = new_draft(replace(SHAPE, draft_vocab_size=1), torch.eye(VOCAB)[:, :20], text.mass(VOCAB), 1)
    assert cut.lm_head.target_ids.tolist() == [13], "the id that is expected most"
    # Of 13 alone a draft gives probability 1: what is left is the teacher's entropy term of 13 at place 10.
    loss = RecordedDistillation(cut, text, "float32").loss(rows).item()
    assert loss == pytest.approx(0.5 * math.log(0.5) / 4, rel=2e-3)


def test_what_a_draft_is_worth_by_hand():
    made, text = model(), corpus()
    found = worth(made, text)
    probs = {}
    for begin, start, stop, _ in text.spans:
        context = text.ids[begin : stop - 1].tolist()
        probs |= {at: laws_of(made, context)[at - 1 - begin] for at in range(start, stop)}
    teacher = {5: {10: 0.75, 30: 0.25}, 6: {11: 1.0}, 10: {12: 0.5, 13: 0.5}, 13: {13: 1.0}}
    best = {5: 10, 6: 11, 10: 12, 13: 13}
    hits = {at: int(probs[at].argmax()) == best[at] for at in best}
    kept = {at: sum(min(p, float(probs[at][i])) for i, p in one.items()) for at, one in teacher.items()}
    assert found["all"]["tokens"] == 4
    assert found["all"]["hit"] == pytest.approx(sum(hits.values()) / 4)
    assert found["all"]["kept"] == pytest.approx(sum(kept.values()) / 4, rel=2e-3)
    assert found["all"]["covered"] == pytest.approx(1.0, rel=2e-3)
    assert found["two turns"]["kept"] == pytest.approx((kept[10] + kept[13]) / 2, rel=2e-3)
    passes = 1 if all((hits[5], hits[6])) or hits[5] else 2
    assert found["all"]["tau_greedy"] == 2 / passes
    assert math.isnan(found["chat"]["tau_drawn"]), "it was answered greedily"
    (row,) = (row for row in table_of("dev", found).rows if row["of"] == "chat")
    assert (row["tokens"], row["hit"]) == ("2", f"{found['chat']['hit']:.3f}".removesuffix(".000"))


@pytest.mark.parametrize(
    ("hits", "passes"),
    [([True] * 5, 1), ([True] * 6, 2), ([False] * 3, 3), ([True, False, True, True, False], 2), ([], 0)],
)
def test_passes_of_chains(hits, passes):
    assert DEPTH == 4
    assert oracles.factory.dialogues.draft_acceptance._passes(hits) == passes


def test_expected_tokens_of_chains_that_fit():
    kept = torch.tensor([0.5, 1.0, 0.2, 0.0, 1.0])
    assert oracles.factory.dialogues.draft_acceptance._tokens_per_pass(kept).tolist() == pytest.approx([2.1, 2.2])
    assert oracles.factory.dialogues.draft_acceptance._tokens_per_pass(kept[:3]).tolist() == []


def test_the_command_trains_says_what_the_draft_is_worth_and_exports_it(tmp_path, monkeypatch, capsys):
    tiny = RECIPES["tiny"].recipe.config
    code = Tokenizer.from_file(str(TOKENIZER))
    export_checkpoint(Transformer(tiny, seed=1).state_dict(), tiny, code, tmp_path / "teacher")
    (tmp_path / "parts").mkdir()
    text = np.arange(60, dtype=np.uint16)
    answered = said([law((i, 1.0)) for i in range(10, 60)])
    talks = [
        Conversation(text, ((10, 60),), "chat", 0.0, split, answered) for split in ("train",) * 12 + ("dev", "test")
    ]
    write_part(tmp_path / "parts" / "part-0000.safetensors", talks, {})
    recipe = Recipe(replace(SHAPE, vocab_size=tiny.vocab_size, draft_vocab_size=50), num_steps=3, warmup_steps=2)
    monkeypatch.setattr(training, "draft_recipe", lambda *_: recipe)
    monkeypatch.setattr(training, "WINDOWS", WindowPlan(64, 32, 64))
    monkeypatch.setattr(training, "begin_of", lambda *_: BEGIN)
    out = tmp_path / "out"
    arguments = [
        "--out",
        out,
        "--oracle",
        tmp_path / "teacher",
        "--parts",
        tmp_path / "parts",
        "--precision",
        "float32",
    ]
    monkeypatch.setattr(sys, "argv", ["draft", *map(str, arguments), "--export", str(tmp_path / "made"), "--test"])
    training.main()
    printed = capsys.readouterr().out
    assert "\ndev\n" in printed
    assert "\ntest\n" in printed
    assert json.loads((out / "dev.json").read_text())["all"]["tokens"] == 50
    assert len((out / "loss.jsonl").read_text().splitlines()) == 3
    made = oracles.load(tmp_path / "made")
    assert made.vocab_size == tiny.vocab_size
    assert made.tokenizer.to_str() == code.to_str()
