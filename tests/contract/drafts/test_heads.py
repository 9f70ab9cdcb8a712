"""Exit heads: what is saved is what is loaded, an untrained one changes nothing, and what does not fit is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import drafts
from oracles import Transformer, load, load_head
from oracles.checkpoints.weights import SINGLE
from oracles.factory.training.recipes import RECIPES
from oracles.heads import ExitHead, HeadShape, save_head
from oracles.heads.exit_head import EXIT_HEAD
from oracles.transformer.blocks import Adapter
from specdec import SpeculativeDecoder

TINY = RECIPES["tiny"].recipe
INNER = 48


def oracle(pack=Transformer.pack, **changes) -> Transformer:
    return pack(Transformer(replace(TINY.config, **changes), seed=0))


def adapter(seed: int = 3) -> Adapter:
    """Return an adapter that changes the stream."""
    made = Adapter(TINY.config, INNER)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_(0.0, 0.3, generator=generator)
    return made


def saved(folder: Path, num_layers: int = 1) -> Path:
    save_head(adapter(), HeadShape.of(TINY.config, num_layers, INNER), folder)
    return folder


@torch.no_grad()
def test_a_loaded_head_is_the_saved_adapter_in_bfloat16_before_the_oracles_own_head(tmp_path, any_pack):
    model = oracle(any_pack)
    stream = torch.randn(5, TINY.config.hidden_size, generator=torch.Generator().manual_seed(1))
    head = load_head(saved(tmp_path / "head"), model)
    rounded = adapter().to(torch.bfloat16).float()
    wanted = model.read_out(rounded(stream))
    assert head.num_layers == 1
    torch.testing.assert_close(head(stream), wanted, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(wanted, model.read_out(stream), atol=0.1)
    stored = load_file(tmp_path / "head" / SINGLE)
    assert {tensor.dtype for tensor in stored.values()} == {torch.bfloat16}


def test_logits_of_a_row_do_not_depend_on_its_batch(tmp_path, any_pack):
    head = load_head(saved(tmp_path), oracle(any_pack))
    stream = torch.randn(9, TINY.config.hidden_size, generator=torch.Generator().manual_seed(1))
    together = head(stream)
    for row in range(9):
        assert torch.equal(head(stream[row : row + 1])[0], together[row])


def test_an_untrained_adapter_is_no_adapter(any_pack):
    model = oracle(any_pack)
    stream = torch.randn(4, TINY.config.hidden_size, generator=torch.Generator().manual_seed(1))
    head = ExitHead(model, 1, Adapter(TINY.config, INNER))
    assert torch.equal(head(stream), model.read_out(stream))


def test_a_head_drafts_for_the_layer_that_it_was_made_for_only(tmp_path):
    model = oracle(num_layers=3)
    head = load_head(saved(tmp_path, num_layers=2), model)
    with pytest.raises(ValueError, match="head was made for layer 2, not for num_layers=1"):
        drafts.EarlyExit(model, 1, head)
    plain, made = (
        SpeculativeDecoder(model, draft).generate([[1, 2, 3]], 12).tokens
        for draft in (None, drafts.EarlyExit(model, 2, head))
    )
    assert made == plain


def test_heads_that_do_not_fit_are_refused_with_the_reason(tmp_path):
    folder, model = saved(tmp_path / "head"), oracle()
    with pytest.raises(ValueError, match="neither an embedded head"):
        load_head("no-such-head", model)
    for changes in ({"num_layers": 1}, {"hidden_size": 16}, {"vocab_size": 7}):
        with pytest.raises(ValueError, match="load the head with the oracle that it was trained on"):
            load_head(folder, oracle(**changes))
    tensors = load_file(folder / SINGLE)
    save_file({name: tensors[name] for name in list(tensors)[1:]}, folder / SINGLE)
    with pytest.raises(ValueError, match="is missing in its safetensors"):
        load_head(folder, model)


@pytest.mark.parametrize("content", ["{", "[]", '{"num_layers": 1}', '{"num_layers": 1.5}'])
def test_a_broken_description_is_named(tmp_path, content):
    folder = saved(tmp_path)
    (folder / EXIT_HEAD).write_text(content)
    with pytest.raises(ValueError, match=EXIT_HEAD):
        load_head(folder, oracle())


@pytest.mark.parametrize("inner_size", [-1, 0, INNER - 8, 10**9, 10**30])
def test_a_width_that_no_tensor_bears_out_is_refused_before_an_adapter_is_made(tmp_path, inner_size, monkeypatch):
    folder, model, devices = saved(tmp_path), oracle(), []
    (folder / EXIT_HEAD).write_text(json.dumps(vars(HeadShape.of(TINY.config, 1, inner_size))))
    original = Adapter.__init__

    def made(self, *arguments, **options):
        original(self, *arguments, **options)
        devices.append(next(self.parameters()).device.type)

    monkeypatch.setattr(Adapter, "__init__", made)
    with pytest.raises(ValueError, match=rf"{folder}.*(inner_size is {inner_size}|has shape .*, the config implies)"):
        load_head(folder, model)
    assert devices == ["meta"] * (inner_size == INNER - 8)


def test_the_embedded_exit_head_fits_its_oracle():
    model = load("code", dtype="float32", device="cpu")
    head = load_head("code-exit", model)
    assert 1 <= head.num_layers < model.num_layers
