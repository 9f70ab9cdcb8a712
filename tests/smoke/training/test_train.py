"""The trainer: resuming gives the bits of an uninterrupted run, and the export holds what was trained."""

import json
import os
import socket
import sys
from argparse import Namespace
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

from oracles.checkpoints.embedded_folders import EMBEDDED
from oracles.checkpoints.loading import load_trainable
from oracles.checkpoints.tokenization import end_of_text_id
from oracles.factory import distil, own_text, train
from oracles.factory.train import TOKENIZER
from oracles.factory.training import precision, workers
from oracles.factory.training.export import export_checkpoint, shard
from oracles.factory.training.held_out import bits_per_byte
from oracles.factory.training.loop import LOG_FILE, PLATEAU_FILE, STATE_FILE, Trainer, build_optimisers, run
from oracles.factory.training.precision import PRECISIONS
from oracles.factory.training.recipes import RECIPES, Recipe
from oracles.factory.training.tasks import DIVERGENCES, Distillation, NextToken, Pupil
from oracles.factory.training.windows import Windows, token_stream
from oracles.transformer.attention import chunked_attention
from oracles.transformer.eager import Transformer
from specdec.system import hold
from tests.support.processes import started, status_of

CODE = Tokenizer.from_file(str(TOKENIZER))
TEXT = "".join(f"def f{i}(x):\n    return x + {i}\n\n" for i in range(200))
STREAM = token_stream([TEXT], CODE)
TINY, PLAN = RECIPES["tiny"].recipe, RECIPES["tiny"].windows
Numbers = dict[str, str | None] | None


def trainer(
    out: Path, stop_after: int | None = None, seed: int = 0, recipe: Recipe = TINY, arithmetic: Numbers = None
) -> Trainer:
    out.mkdir(exist_ok=True)
    task = NextToken(Transformer(recipe.config, seed=seed), "bfloat16")
    batches = Windows(PLAN, STREAM, seed)
    return Trainer(recipe, batches, task, out, save_every=2, stop_after=stop_after, arithmetic=arithmetic)


def logged(out: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (out / LOG_FILE).read_text(encoding="utf-8").splitlines()]


def test_the_log_forgets_steps_after_the_resumed_one(tmp_path: Path) -> None:
    run(trainer(tmp_path, stop_after=4))
    with (tmp_path / LOG_FILE).open("a") as log:
        log.write(json.dumps({"step": 5, "loss": 0.0}) + "\n")
        log.write('{"step": 4, "lo')  # the disk was full
    again = trainer(tmp_path)
    again.resume()
    run(again)
    rows = logged(tmp_path)
    assert [row["step"] for row in rows] == list(range(1, TINY.num_steps + 1))
    assert rows[4]["loss"] > 0


def test_a_kill_beside_a_saved_state_leaves_no_hole_in_the_log(tmp_path: Path) -> None:
    killed = trainer(tmp_path)
    save = killed.save

    def save_and_die() -> None:
        save()
        raise KeyboardInterrupt

    killed.save = save_and_die  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        run(killed)
    again = trainer(tmp_path)
    again.resume()
    assert again.num_done == 2
    run(again)
    assert [row["step"] for row in logged(tmp_path)] == list(range(1, TINY.num_steps + 1))


def test_training_lowers_the_loss_and_depends_on_the_seed(tmp_path: Path) -> None:
    finals = []
    for seed in (0, 1):
        one = trainer(tmp_path / str(seed), seed=seed)
        losses = [one.step() for _ in range(TINY.num_steps)]
        assert losses[-1] < losses[0]
        finals.append(losses[-1])
    assert finals[0] != finals[1]


def test_resuming_nothing_or_another_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing to resume"):
        trainer(tmp_path).resume()
    run(trainer(tmp_path, stop_after=1))
    with pytest.raises(ValueError, match="seed 1"):
        trainer(tmp_path, seed=1).resume()
    with pytest.raises(ValueError, match=r"matrix_rate=1\.0"):
        trainer(tmp_path, recipe=replace(TINY, matrix_rate=1.0)).resume()
    wider = NextToken(Transformer(replace(TINY.config, intermediate_size=32)), "bfloat16")
    with pytest.raises(ValueError, match=r"state\.pt is of another run: [^;]*size mismatch"):
        Trainer(TINY, Windows(PLAN, STREAM, 0), wider, tmp_path).resume()
    run(trainer(tmp_path))
    with pytest.raises(ValueError, match=r"state\.pt has 6 steps, and the run is to have 5: give more"):
        trainer(tmp_path, recipe=replace(TINY, num_steps=5)).resume()


def test_a_run_goes_on_in_the_arithmetic_of_its_state_if_it_says_one(tmp_path: Path) -> None:
    run(trainer(tmp_path, stop_after=1, arithmetic={"precision": "bfloat16", "served": "int8"}))
    other: Numbers = {"precision": "bfloat16", "served": "float32"}
    with pytest.raises(ValueError, match=r"state\.pt is of another run: served int8, not float32; use another --out"):
        trainer(tmp_path, arithmetic=other).resume()
    state = torch.load(tmp_path / STATE_FILE, weights_only=True)
    del state["arithmetic"]  # as states were before
    torch.save(state, tmp_path / STATE_FILE)
    trainer(tmp_path, arithmetic=other).resume()


def test_a_model_of_one_kind_of_weights_needs_one_optimiser() -> None:
    kinds = {
        torch.optim.Muon: torch.nn.Linear(4, 4, bias=False),
        torch.optim.AdamW: torch.nn.LayerNorm(4),
    }
    for kind, model in kinds.items():
        (found,) = build_optimisers(model, TINY)
        assert isinstance(found, kind)


def test_a_prolonged_run_is_the_longer_run(tmp_path: Path) -> None:
    plan = replace(PLAN, long_share=TINY.decay_share)
    long = replace(TINY, num_steps=8)

    def start(out: Path, recipe: Recipe) -> Trainer:
        out.mkdir(exist_ok=True)
        task = NextToken(Transformer(recipe.config, seed=0), "bfloat16")
        return Trainer(recipe, Windows(plan, STREAM, 0), task, out)

    run(start(tmp_path / "short", replace(TINY, num_steps=4)))
    prolonged, whole = start(tmp_path / "short", long), start(tmp_path / "whole", long)
    prolonged.resume(PLATEAU_FILE)
    assert prolonged.num_done == 2
    run(prolonged)
    run(whole)
    expected = whole.model.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in prolonged.model.state_dict().items())


@pytest.mark.parametrize("divergence", sorted(DIVERGENCES))
def test_an_equal_teacher_has_nothing_to_teach_and_another_one_has(divergence: str) -> None:
    rows = Windows(PLAN, STREAM, 0).batch(0, 6)

    def loss(teacher_seed: int) -> float:
        pupil = Pupil(Transformer(TINY.config, seed=0), divergence)
        return Distillation({"one": pupil}, Transformer(TINY.config, seed=teacher_seed), "float32").loss(rows).item()

    assert loss(0) == pytest.approx(0.0, abs=1e-6)
    assert loss(1) > 1e-4
    with pytest.raises(ValueError, match="choose one of forward-kl"):
        Pupil(Transformer(TINY.config), f"no {divergence}")


def test_pupils_learn_side_by_side_what_they_learn_alone(tmp_path: Path) -> None:
    def weights(names: tuple[str, ...]) -> dict[str, torch.Tensor]:
        pupils = {name: Pupil(Transformer(TINY.config, seed=int(name))) for name in names}
        task = Distillation(pupils, Transformer(TINY.config, seed=9), "float32")
        one = Trainer(replace(TINY, max_grad_norm=1e9), Windows(PLAN, STREAM, 0), task, tmp_path)
        for _ in range(2):
            one.step()
        return pupils["1"].model.state_dict()

    together, alone = weights(("1", "2")), weights(("1",))
    assert all(torch.equal(tensor, alone[name]) for name, tensor in together.items())


def test_a_part_of_the_row_may_only_be_read() -> None:
    model = Transformer(TINY.config, seed=0)
    rows = Windows(PLAN, STREAM, 0).batch(0, 6)
    other = rows.clone()
    other[:, -1] = 0
    whole, last = NextToken(model, "float32"), NextToken(model, "float32", first=rows.shape[1] - 1)
    expected = torch.nn.functional.cross_entropy(model(rows[:, :-1])[:, -1], rows[:, -1])
    assert last.loss(rows).item() == pytest.approx(expected.item(), rel=1e-6)
    assert last.loss(other).item() != last.loss(rows).item()
    assert whole.loss(rows).item() != last.loss(rows).item()


@pytest.mark.parametrize("length", [27, 128, 130, 300])
def test_attention_in_chunks_is_attention(length: int) -> None:
    generator = torch.Generator().manual_seed(length)
    query, key, value = (torch.randn(2, length, heads, 16, generator=generator) for heads in (6, 2, 2))
    expected = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (query, key.repeat_interleave(3, 2), value.repeat_interleave(3, 2))),
        is_causal=True,
    )
    got = chunked_attention(query, key, value, chunk=64)
    torch.testing.assert_close(got, expected.transpose(1, 2).flatten(2))


def test_the_faster_precision_is_the_one_of_the_shorter_time(monkeypatch: pytest.MonkeyPatch) -> None:
    state = torch.random.get_rng_state()
    assert precision.faster_precision("cpu") in PRECISIONS
    assert torch.equal(torch.random.get_rng_state(), state), "to look at the clock draws nothing"
    for fastest in PRECISIONS:
        times = {getattr(torch, name): 1.0 + (name != fastest) for name in PRECISIONS}
        monkeypatch.setattr(precision, "_seconds", lambda dtype, device, times=times: times[dtype])
        assert precision.faster_precision("cpu") == fastest


def test_the_export_is_the_model_in_bfloat16(tmp_path: Path) -> None:
    model = Transformer(TINY.config, seed=5)
    export_checkpoint(model.state_dict(), TINY.config, CODE, tmp_path)
    loaded = load_trainable(tmp_path)
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor.bfloat16().float())
    with safe_open(tmp_path / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.bfloat16}  # noqa: SIM118
    assert json.loads((tmp_path / "generation_config.json").read_text())["eos_token_id"] == end_of_text_id(CODE)
    assert Tokenizer.from_file(str(tmp_path / "tokenizer.json")).to_str() == CODE.to_str()
    # What cannot be written leaves the folder as it is; what can leaves nothing of older weights.
    broken: dict[str, Any] = {**model.state_dict(), "model.norm.weight": None}
    with pytest.raises(AttributeError):
        export_checkpoint(broken, TINY.config, CODE, tmp_path)
    assert load_trainable(tmp_path).state_dict().keys() == loaded.state_dict().keys()
    names = {path.name for path in tmp_path.iterdir()}
    for old in ("model-00001-of-00002.safetensors", "model.safetensors.index.json"):
        (tmp_path / old).write_text("{}")
    export_checkpoint(model.state_dict(), TINY.config, CODE, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == names


def test_shards_keep_order_and_size() -> None:
    tensors = {str(i): torch.zeros(size) for i, size in enumerate((3, 3, 3, 9, 1))}
    shards = shard(tensors, max_bytes=6 * 4)
    assert [list(part) for part in shards] == [["0", "1"], ["2"], ["3"], ["4"]]


def test_a_run_begins_with_the_weights_of_a_checkpoint_of_its_shape(tmp_path: Path) -> None:
    finished = Transformer(TINY.config, seed=5).bfloat16().float()
    export_checkpoint(finished.state_dict(), TINY.config, CODE, tmp_path)
    asked = Namespace(init=tmp_path, seed=0, device="cpu")
    begun = train._model(asked, TINY).state_dict()
    assert all(torch.equal(begun[name], tensor) for name, tensor in finished.state_dict().items())
    with pytest.raises(ValueError, match="training wants"):
        train._model(asked, RECIPES["code-draft-tiny"].recipe)


@pytest.mark.parametrize(
    ("program", "options", "reason"),
    [
        (train, ["--tokenizer", "nowhere"], r"oracles\.factory\.train: 'nowhere' has no tokenizer"),
        (train, ["--device", "nope"], "device is 'nope'; give one as torch names them"),
        (
            train,
            ["--tokenizer", str(EMBEDDED / "arithmetic" / "tokenizer.json")],
            "the tokenizer writes 17 ids, and the model has 3072",
        ),
        (
            distil,
            ["--teacher", "nowhere", "--own-text", "nothing"],
            r"oracles\.factory\.distil: 'nowhere' has no tokenizer",
        ),
    ],
)
def test_programs_that_cannot_begin_say_why(
    program: ModuleType, options: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["program", "tiny", *options, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit, match=reason):
        program.main()
    assert not (tmp_path / "run").exists()
    with hold(tmp_path / "run", "--out"), pytest.raises(SystemExit, match="run is held by another process"):
        program.main()


def test_text_without_room_for_the_oracle_or_without_a_file_is_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for words, told in (
        ("--out text --length 64", "--length is 64; give more than --beginning, which is 64"),
        (f"--out {tmp_path}", f"--out: {tmp_path} is a folder, or lies in one that cannot be written; give a file"),
    ):
        monkeypatch.setattr(sys, "argv", ["own_text", *words.split(), "--oracle", "nowhere"])
        with pytest.raises(SystemExit, match=rf"oracles\.factory\.own_text: {told}"):
            own_text.main()


def test_bits_per_byte_of_uniform_predictions() -> None:
    model = Transformer(TINY.config, seed=0)
    torch.nn.init.zeros_(model.model.embed_tokens.weight)
    text = TEXT[:700]
    uniform = len(CODE.encode(text).ids) * torch.log2(torch.tensor(float(TINY.config.vocab_size))).item()
    assert bits_per_byte(model, CODE, [text]) == pytest.approx(uniform / len(text.encode()), rel=1e-6)


def free_port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


def learn(out: Path) -> None:
    """Take two steps, as one of the workers that the environment names."""
    torch.set_num_threads(1)
    out.mkdir(exist_ok=True)
    workers.join()
    assert workers.of_first(os.environ.get("RANK", "0")) == "0"
    task = NextToken(Transformer(TINY.config, seed=0), "float32")
    run(Trainer(TINY, Windows(PLAN, torch.arange(4000) % 97, 0), task, out, stop_after=2))


def started_worker(out: Path, rank: int, port: int) -> ForkServerProcess:
    """Return one of two workers, with the environment that torchrun gives it."""
    numbers = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_PORT": port}
    environment = {name: str(number) for name, number in numbers.items()} | {"MASTER_ADDR": "127.0.0.1"}
    return started(learn, out, environment=environment)


def test_two_workers_learn_what_one_learns(tmp_path: Path) -> None:
    learn(tmp_path / "1")
    port = free_port()
    assert [status_of(one) for one in [started_worker(tmp_path / "2", rank, port) for rank in range(2)]] == [0, 0]
    one, two = (torch.load(tmp_path / count / "state.pt", weights_only=True) for count in "12")
    assert [len(logged(tmp_path / count)) for count in "12"] == [2, 2]
    assert one["num_tokens"] == two["num_tokens"]
    for name, tensor in one["model"].items():
        torch.testing.assert_close(two["model"][name], tensor, rtol=1e-3, atol=1e-4)
