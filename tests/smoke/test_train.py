"""The trainer: resuming gives the bits of an uninterrupted run, and the export holds what was trained."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from oracles.tokenization import end_of_text_id
from oracles.train import TOKENIZER
from oracles.training.bits import bits_per_byte, load_exported
from oracles.training.export import export_llama, shard
from oracles.training.loop import LOG_FILE, LanguageModel, Options, Trainer, run
from oracles.training.recipes import RECIPES
from oracles.training.windows import token_stream
from oracles.transformer import Transformer

CODE = Tokenizer.from_file(str(TOKENIZER))
TEXT = "".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(200))
STREAM = token_stream([TEXT], CODE)
TINY = RECIPES["tiny"]


def trainer(out: Path, stop_after: int | None = None, seed: int = 0, teacher: Transformer | None = None) -> Trainer:
    out.mkdir(exist_ok=True)
    options = Options(out, seed=seed, save_every=2, stop_after=stop_after)
    return Trainer(TINY, STREAM, options, LanguageModel(TINY, options, teacher))


def logged(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / LOG_FILE).read_text(encoding="utf-8").splitlines()]


def test_a_resumed_run_has_the_bits_of_an_uninterrupted_one(tmp_path: Path) -> None:
    whole, first = trainer(tmp_path / "whole"), trainer(tmp_path / "parts", stop_after=3)
    run(whole)
    run(first)
    second = trainer(tmp_path / "parts")
    second.resume()
    assert second.num_done == 3
    run(second)
    expected = whole.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in second.model.state_dict().items())
    curves = [logged(tmp_path / folder) for folder in ("whole", "parts")]
    assert [row["loss"] for row in curves[0]] == [row["loss"] for row in curves[1]]
    assert [row["step"] for row in curves[1]] == list(range(1, TINY.num_steps + 1))


def test_the_log_forgets_steps_after_the_resumed_one(tmp_path: Path) -> None:
    run(trainer(tmp_path, stop_after=4))
    with (tmp_path / LOG_FILE).open("a") as log:
        log.write(json.dumps({"step": 5, "loss": 0.0}) + "\n")
    again = trainer(tmp_path)
    again.resume()
    run(again)
    rows = logged(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, TINY.num_steps + 1))
    assert rows[4]["loss"] > 0


def test_training_lowers_the_loss_and_depends_on_the_seed(tmp_path: Path) -> None:
    finals = []
    for seed in (0, 1):
        one = trainer(tmp_path / str(seed), seed=seed)
        losses = [one.step() for _ in range(TINY.num_steps)]
        assert losses[-1] < losses[0]
        finals.append(losses[-1])
    assert finals[0] != finals[1]


def test_resuming_nothing_or_another_recipe_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to resume"):
        trainer(tmp_path).resume()
    run(trainer(tmp_path, stop_after=1))
    with pytest.raises(ValueError, match="seed"):
        trainer(tmp_path, seed=1).resume()
    recipe, options = replace(TINY, matrix_rate=1.0), Options(tmp_path)
    other = Trainer(recipe, STREAM, options, LanguageModel(recipe, options))
    with pytest.raises(ValueError, match="recipe"):
        other.resume()


def test_distillation_from_an_equal_teacher_has_no_divergence(tmp_path: Path) -> None:
    teacher = Transformer(TINY.config, seed=0)
    pupil, alone = trainer(tmp_path / "a", teacher=teacher), trainer(tmp_path / "b")
    assert pupil.step() == pytest.approx((1 - TINY.teacher_weight) * alone.step(), rel=1e-5)


def test_the_export_is_the_model_in_bfloat16(tmp_path: Path) -> None:
    model = Transformer(TINY.config, seed=5)
    export_llama(model.state_dict(), TINY.config, CODE, tmp_path)
    loaded = load_exported(tmp_path, CODE.get_vocab_size())
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == end_of_text_id(CODE)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == CODE.to_str()


def test_shards_keep_order_and_size() -> None:
    tensors = {str(i): torch.zeros(size) for i, size in enumerate((3, 3, 3, 9, 1))}
    shards = shard(tensors, max_bytes=6 * 4)
    assert [list(part) for part in shards] == [["0", "1"], ["2"], ["3"], ["4"]]


def test_another_vocabulary_is_refused(tmp_path: Path) -> None:
    export_llama(Transformer(TINY.config).state_dict(), TINY.config, CODE, tmp_path)
    with pytest.raises(ValueError, match="same tokenizer"):
        load_exported(tmp_path, 50)


def test_bits_per_byte_of_uniform_predictions() -> None:
    model = Transformer(TINY.config, seed=0)
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    text = TEXT[:700]
    uniform = len(CODE.encode(text).ids) * torch.log2(torch.tensor(float(TINY.config.vocab_size))).item()
    assert bits_per_byte(model, CODE, [text]) == pytest.approx(uniform / len(text.encode()), rel=1e-6)
