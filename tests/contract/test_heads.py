"""Exit heads: what is saved is what is loaded, an untrained one changes nothing, and training teaches it the oracle."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer

import drafts
from experiments import train_early_exit
from oracles import Transformer, load, load_head
from oracles.factory.train import TOKENIZER
from oracles.factory.training import training_text
from oracles.factory.training.exits import Agreement, ExitDistillation
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.loop import LOG_FILE, Options, Trainer, run
from oracles.factory.training.recipes import RECIPES
from oracles.factory.training.windows import WindowPlan, Windows, token_stream
from oracles.heads import ExitHead, HeadShape, save_head
from oracles.heads.exit_head import EXIT_HEAD, WEIGHTS
from oracles.transformer.blocks import Adapter
from specdec import SpeculativeDecoder

CODE = Tokenizer.from_file(str(TOKENIZER))
TEXT = "".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(200))
STREAM = token_stream([TEXT], CODE)
TINY, PLAN = RECIPES["tiny"].recipe, RECIPES["tiny"].windows
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
    stored = load_file(tmp_path / "head" / WEIGHTS)
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
    tensors = load_file(folder / WEIGHTS)
    save_file({name: tensors[name] for name in list(tensors)[1:]}, folder / WEIGHTS)
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


def distillation() -> ExitDistillation:
    model = Transformer(replace(TINY.config, num_layers=3), seed=0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.mul_(10)  # layers that matter
    return ExitDistillation(model, (1, 2), INNER, seed=0, precision="float32")


def test_the_loss_is_the_summed_divergence_from_the_oracle():
    task = distillation()
    rows = STREAM[:66].view(2, 33)
    streams = task.oracle.streams(rows[:, :-1])
    taught = task.oracle.read_out(streams[-1]).double().log_softmax(-1)
    wanted = sum(
        (taught.exp() * (taught - task.oracle.read_out(streams[k - 1]).double().log_softmax(-1))).sum() for k in (1, 2)
    )
    assert task.loss(rows).item() == pytest.approx(wanted.item() / 64, rel=1e-4)
    measured = task.agreement(CODE, [TEXT[:200]], 16)
    assert set(measured) == {"1", "1, bare", "2", "2, bare"}
    assert measured["1"] == measured["1, bare"], "untrained adapters change nothing"
    assert measured["1"].num_tokens == 1 + len(CODE.encode(TEXT[:200]).ids)


def test_agreement_counts_what_two_laws_have_in_common():
    first, second = torch.tensor([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]]), torch.tensor([[0.4, 0.2, 0.4], [0.5, 0.4, 0.1]])
    both = Agreement.between(first.log(), second.log())
    assert (both.num_tokens, both.same_best) == (2, 1)
    assert both.overlap == pytest.approx(0.8 + 0.7)
    assert both.divergence == pytest.approx((first * (first / second).log()).sum().item())
    assert both + both == Agreement(4, 2, 2 * both.overlap, 2 * both.divergence)


def test_training_leaves_the_oracle_and_brings_every_head_nearer_to_it(tmp_path):
    recipe, task = replace(TINY, num_steps=60, matrix_rate=0.03), distillation()
    before = {name: value.clone() for name, value in task.oracle.state_dict().items()}
    untrained = task.agreement(CODE, [TEXT[:600]], 32)
    run(Trainer(recipe, Windows(PLAN, STREAM, 0), Options(tmp_path), task))
    trained = task.agreement(CODE, [TEXT[:600]], 32)
    for key in ("1", "2"):
        assert trained[key].divergence < 0.8 * untrained[key].divergence
        assert trained[f"{key}, bare"] == untrained[f"{key}, bare"]
    assert all(torch.equal(value, before[name]) for name, value in task.oracle.state_dict().items())


def test_the_script_goes_on_where_it_stopped_and_writes_heads_that_load(tmp_path, monkeypatch, capsys):
    config = replace(TINY.config, num_layers=2, max_context=64)
    export_checkpoint(Transformer(config, seed=0).state_dict(), config, CODE, tmp_path / "oracle")
    source = type("Source", (), {"text": TEXT})
    for module in (train_early_exit, training_text):
        monkeypatch.setattr(module, "read_split", lambda name: [source])
    monkeypatch.setattr(train_early_exit, "WINDOWS", WindowPlan(64, 32, 32, long_share=0.0))
    options = {"--oracle": tmp_path / "oracle", "--steps": 4}
    argv = [*(str(x) for pair in options.items() for x in pair), "--num-layers", "1", "--inner-size", str(INNER)]
    train_early_exit.main([*argv, "--out", str(tmp_path / "whole")])
    train_early_exit.main([*argv, "--out", str(tmp_path / "parts"), "--stop-after", "2"])
    assert not (tmp_path / "parts" / "head-1").exists()
    train_early_exit.main([*argv, "--out", str(tmp_path / "parts"), "--resume"])
    whole, parts = (load_file(tmp_path / name / "head-1" / WEIGHTS) for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "parts" / LOG_FILE).read_text().splitlines()]
    assert steps == [1, 2, 3, 4]
    assert "\n1, bare  " in capsys.readouterr().out
    model = Transformer(config, seed=0).pack()
    assert load_head(tmp_path / "parts" / "head-1", model).num_layers == 1
    with pytest.raises(ValueError, match="another run: exit heads of width 48"):
        train_early_exit.main([*argv, "--out", str(tmp_path / "parts"), "--resume", "--inner-size", "16"])
    with pytest.raises(SystemExit, match=r"give 1\.\.1"):
        train_early_exit.main([*argv, "--out", str(tmp_path / "parts"), "--num-layers", "2"])


def test_the_embedded_exit_head_fits_its_oracle():
    model = load("code", dtype="float32", device="cpu")
    head = load_head("code-exit", model)
    assert 1 <= head.num_layers < model.num_layers
