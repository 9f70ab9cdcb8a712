"""Checkpoints of drafts that read another one's vocabulary and write some of its ids: saved, loaded, refused."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import oracles
from oracles import Transformer
from oracles.checkpoints.loading import load_tokenizer
from oracles.factory.train import TOKENIZER
from oracles.factory.training.draft_distillation import draft_shape, new_draft
from oracles.factory.training.export import export_checkpoint, export_draft
from oracles.factory.training.recipes import RECIPES
from oracles.transformer.draft_vocabulary import DraftHead

CODE = Tokenizer.from_file(str(TOKENIZER))
LENDING = RECIPES["tiny"].recipe.config
V, W = LENDING.vocab_size, LENDING.hidden_size
SHAPE = replace(draft_shape(V, 9, 64, 2, 24), hidden_size=16, num_heads=2, num_kv_heads=1, max_context=64)


@pytest.fixture(scope="module")
def lender(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("lender")
    export_checkpoint(Transformer(LENDING, seed=1).state_dict(), LENDING, CODE, folder)
    return folder


@pytest.fixture(scope="module")
def trained(lender) -> Transformer:
    """Return a draft in training form, whose frequent ids are 100 .. 108."""
    table = oracles.load_trainable(lender, dtype="float32").model.embed_tokens.weight.detach()
    counts = torch.zeros(V, dtype=torch.int64)
    counts[100:109] = torch.arange(1, 10)
    return new_draft(SHAPE, table, torch.arange(100, 109), counts, seed=2)


@pytest.fixture
def folder(lender, trained, tmp_path) -> Path:
    export_draft(trained, str(lender), tmp_path / "draft")
    return tmp_path / "draft"


def test_what_is_loaded_is_what_was_trained(folder, trained, lender, any_pack):
    loaded = any_pack(oracles.load_trainable(folder, dtype="float32"))
    assert loaded.vocab_size == V
    assert loaded.tokenizer.to_str() == load_tokenizer(folder).to_str() == CODE.to_str()
    assert loaded.eos_ids == oracles.load(lender, backend="eager").eos_ids
    ids = torch.arange(90, 110).unsqueeze(0)
    cache, row = loaded.new_cache(1, 32), torch.zeros(1, dtype=torch.int64).numpy()
    logits = loaded.score(ids, None, torch.tensor([20]), cache, row).logits[0]
    assert logits.isfinite()[0].nonzero().flatten().tolist() == list(range(100, 109))
    with torch.no_grad():
        wanted = trained(ids)[0]
    torch.testing.assert_close(logits, wanted, rtol=2e-2, atol=5e-3)  # weights of bfloat16
    assert float(wanted[:, 100:109].std()) > 0.01


def test_a_table_with_rows_beyond_the_vocabulary_is_cut_to_it(tmp_path):
    padded = replace(LENDING, vocab_size=V + 32)
    export_checkpoint(Transformer(padded, seed=1).state_dict(), padded, CODE, tmp_path / "lender")
    table = oracles.load_trainable(tmp_path / "lender", dtype="float32").model.embed_tokens.weight.detach()
    counts, shape = torch.zeros(V + 32, dtype=torch.int64), replace(SHAPE, vocab_size=V + 32)
    export_draft(new_draft(shape, table, torch.arange(9), counts, 2), str(tmp_path / "lender"), tmp_path / "d")
    assert oracles.load(tmp_path / "d").vocab_size == oracles.load(tmp_path / "lender").vocab_size == V


def test_tables_are_products_of_the_lenders_embeddings(folder, lender):
    stored = load_file(folder / "model.safetensors")
    assert set(stored) >= {"d2t", "lm_head.projection.weight", "model.embed_tokens.projection.weight"}
    assert "lm_head.weight" not in stored
    assert stored["d2t"].tolist() == [100] * 9
    table = load_file(lender / "model.safetensors")["model.embed_tokens.weight"].double()
    model = oracles.load_trainable(folder, dtype="float32")
    rows = table @ stored["model.embed_tokens.projection.weight"].double().t()
    assert torch.equal(model.model.embed_tokens.weight, rows.bfloat16().float())
    columns = table[100:109] @ stored["lm_head.projection.weight"].double()
    assert isinstance(model.lm_head, DraftHead)
    assert torch.equal(model.lm_head.weight, columns.bfloat16().float())


@pytest.mark.parametrize("weights", ["int8", "int8-dynamic", "bfloat16"])
def test_drafts_are_rounded_as_other_models_are(folder, weights):
    whole, rounded = oracles.load(folder), oracles.load(folder, weights=weights)
    row = torch.zeros(1, dtype=torch.int64).numpy()
    both = [
        model.score(torch.tensor([[3, 5]]), None, torch.tensor([2]), model.new_cache(1, 8), row).logits[0]
        for model in (whole, rounded)
    ]
    assert torch.equal(both[0].isfinite(), both[1].isfinite())
    torch.testing.assert_close(both[0][:, 100:109], both[1][:, 100:109], rtol=0.1, atol=0.05)


def changed(folder: Path, tensors: dict[str, torch.Tensor | None], **values) -> Path:
    """Change a checkpoint in place: None removes a tensor."""
    stored = {name: t for name, t in (load_file(folder / "model.safetensors") | tensors).items() if t is not None}
    save_file(stored, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text()) | values
    (folder / "config.json").write_text(
        json.dumps({name: value for name, value in config.items() if value is not None})
    )
    return folder


# Differences of these ids overflow to numbers above 0.
FAR = torch.tensor([0, 2**62 + 10, -(2**62) - 10, 3, 4, 5, 6, 7, 8]) - torch.arange(9)
RISING = "column r writes id r \\+ d2t\\[r\\]; these must rise, from 0 to"


@pytest.mark.parametrize(
    ("tensors", "values", "error"),
    [
        ({"d2t": None}, {}, "tensor 'd2t' is missing"),
        ({"d2t": torch.zeros(8, dtype=torch.int64)}, {}, "'d2t' is torch.int64 \\(8,\\); draft_vocab_size wants 9"),
        ({"d2t": torch.zeros(9)}, {}, "'d2t' is torch.float32 \\(9,\\); draft_vocab_size wants 9 whole numbers"),
        ({"d2t": torch.arange(108, 99, -1)}, {}, RISING),
        ({"d2t": torch.arange(9, 0, -1)}, {}, RISING),
        ({"d2t": torch.full((9,), -1)}, {}, RISING),
        ({"d2t": torch.full((9,), V)}, {}, RISING),
        ({"d2t": FAR}, {}, RISING),
        ({"lm_head.projection.weight": None}, {}, "tensor 'lm_head.projection.weight' is missing"),
        ({"lm_head.projection.weight": torch.zeros(W + 1, 16)}, {}, f"it projects are {W} wide"),
        ({"model.embed_tokens.projection.weight": torch.zeros(16, W, 1)}, {}, f"it projects are {W} wide"),
        ({}, {"draft_vocab_size": 0}, "draft_vocab_size is 0; a head writes at least one id"),
        ({}, {"draft_vocab_size": V + 1}, f"draft_vocab_size is {V + 1}; .* at most vocab_size {V}"),
        ({}, {"tie_word_embeddings": True}, "draft_vocab_size needs a head of its own"),
        ({}, {"draft_vocab_size": None}, "tensor 'd2t' is unexpected|unexpected.*d2t"),
        ({}, {"vocabulary_of": "nowhere"}, "reads the vocabulary_of 'nowhere': .*neither an embedded checkpoint"),
    ],
)
def test_broken_checkpoints_are_named(folder, tensors, values, error):
    with pytest.raises(ValueError, match=error):
        oracles.load(changed(folder, tensors, **values))


def test_lenders_have_a_vocabulary_of_their_own_and_drafts_have_none(folder, tmp_path, trained):
    export_draft(trained, str(folder), tmp_path / "second")
    with pytest.raises(ValueError, match="has no vocabulary of its own either"):
        oracles.load(tmp_path / "second")
    CODE.save(str(folder / "tokenizer.json"))
    with pytest.raises(ValueError, match=r"there is a tokenizer.json of its own too; remove one of them"):
        oracles.load(folder)


def test_a_null_says_that_a_lender_borrows_nothing(lender, tmp_path, trained):
    own = Path(shutil.copytree(lender, tmp_path / "own"))
    config = json.loads((own / "config.json").read_text())
    (own / "config.json").write_text(json.dumps(config | {"vocabulary_of": None}))
    export_draft(trained, str(own), tmp_path / "draft")
    assert oracles.load(tmp_path / "draft").vocab_size == V


def test_shapes_of_drafts_are_of_heads_of_64_and_no_wider_than_what_they_read():
    assert [(s.num_heads, s.num_kv_heads) for s in (draft_shape(V, 9, 64 * n, 2, 24) for n in (1, 4, 6))] == [
        (1, 1), (4, 1), (6, 2),
    ]  # fmt: skip
    with pytest.raises(ValueError, match="--hidden-size is 100; give a multiple of 64"):
        draft_shape(V, 9, 100, 2, 24)
    with pytest.raises(
        ValueError, match="--hidden-size is 16, and the oracle's embeddings, which the draft reads, are 12 wide"
    ):
        new_draft(SHAPE, torch.eye(V)[:, :12], torch.arange(9), torch.ones(V), 1)
