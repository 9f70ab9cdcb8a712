"""The training of heads: losses, text, learning, interruption, and what is written."""

import ctypes
import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import drafts
import oracles
from experiments import train_head
from oracles.checkpoints.config_keys import ConfigKeys
from oracles.checkpoints.hf_config import read_layers
from oracles.factory.corpus import STDLIB, modules_only
from oracles.factory.dialogues.dialogue_parts import Conversation
from oracles.factory.dialogues.shards import Shards
from oracles.factory.training import loop, training_arguments, workers
from oracles.factory.training.block_distillation import BlockDistillation, describe_dspark, dspark_shape, new_dspark
from oracles.factory.training.draft_distillation import DraftDistillation, draft_shape, new_draft
from oracles.factory.training.eagle3_distillation import (
    Eagle3Distillation,
    describe_eagle3,
    new_eagle3,
    usual_outputs,
)
from oracles.factory.training.exit_distillation import ExitDistillation, last_layers
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.head_distillation import HeadDistillation, calibration_error
from oracles.factory.training.head_kinds import KINDS, HeadPupil
from oracles.factory.training.head_losses import (
    DSPARK_LOSS,
    LOSSES,
    PairedPredictions,
    bce,
    ce,
    kl,
    mix,
    read_mixture,
    tv,
)
from oracles.factory.training.head_text import HeadText, dialogues, own_text
from oracles.factory.training.lesson import Lesson, ReadOut, eager_reader, served_reader
from oracles.factory.training.loop import LOG_FILE, STATE_FILE, TRIM_EVERY, Trainer, run
from oracles.factory.training.medusa_distillation import MedusaDistillation, new_medusa
from oracles.factory.training.recipes import RECIPES, Recipe
from oracles.factory.training.training_text import check_text_ids
from oracles.factory.training.windows import WindowPlan, Windows
from oracles.heads import NativeEagle3Head
from oracles.quantisation import INT4, QuantisedWeight
from oracles.transformer.config import RopeScaling
from oracles.transformer.draft_vocabulary import ProjectedHead
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import linear_layers
from specdec import SpeculativeDecoder
from tests.support.models.tiny_models import tiny_unpacked
from tests.support.texts.own_texts import CODE, END, STREAM, write_own_text

VOCAB = 11
BLOCKS: dict[str, Any] = {
    **{"num_layers": 2, "intermediate_size": 24, "markov_rank": 4},
    **{"mask_id": 10, "own_head": True},
}


def tiny_text(length: int = 2000) -> HeadText:
    ids = torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(0)).int()
    return HeadText(ids, torch.ones(length, dtype=torch.bool))


def a_lesson(loss: str, layers: tuple[int, ...], ids: Sequence[int] | None, text: HeadText | None) -> Lesson:
    """Return a lesson of a tiny oracle in a text, its own or one that is given; the head writes some ids or all."""
    oracle, written = tiny_unpacked(VOCAB, torch.float32, num_layers=6), None if ids is None else torch.tensor(ids)
    return Lesson(oracle, layers, written, tiny_text() if text is None else text, 3, loss, 0.8, "float32")


def tiny_task(loss: str = "kl", ids: Sequence[int] | None = None, text: HeadText | None = None) -> Eagle3Distillation:
    lesson = a_lesson(loss, (0, 2, 4), ids, text)
    return Eagle3Distillation(lesson, new_eagle3(describe_eagle3(lesson, "tiny", 24), lesson, True, 0))


def tiny_medusa_task(loss: str = "kl", ids: None = None, text: HeadText | None = None) -> MedusaDistillation:
    lesson = a_lesson(loss, (5,), ids, text)
    return MedusaDistillation(lesson, new_medusa(lesson, 1))


def tiny_block_task(
    loss: str = DSPARK_LOSS, ids: Sequence[int] | None = None, text: HeadText | None = None, anchors: int = 16
) -> BlockDistillation:
    lesson = a_lesson(loss, (0, 2, 4), ids, text)
    shape = dspark_shape(lesson, **BLOCKS)
    return BlockDistillation(lesson, new_dspark(shape, lesson, 0), shape, anchors)


def tiny_draft_task(
    loss: str = "kl", ids: Sequence[int] = range(VOCAB), text: HeadText | None = None
) -> DraftDistillation:
    lesson = a_lesson(loss, (), ids, text)
    table = lesson.oracle.model.embed_tokens.weight.detach()
    shape = replace(draft_shape(VOCAB, len(ids), 64, 1, 24), hidden_size=8, num_heads=2)
    return DraftDistillation(lesson, new_draft(shape, table, lesson.target_ids, lesson.text.numbers(VOCAB), 0))


def tiny_exit_task(
    loss: str = "kl", target_ids: None = None, text: HeadText | None = None, exits: tuple[int, ...] = (1, 3)
) -> ExitDistillation:
    oracle, learned = tiny_unpacked(VOCAB, torch.float32, num_layers=6), tiny_text() if text is None else text
    layers = last_layers(exits, oracle.num_layers)
    return ExitDistillation(Lesson(oracle, layers, None, learned, 1, loss, 0.8, "float32"), 128, seed=0)


TASKS = {
    "eagle3": tiny_task,
    "dspark": tiny_block_task,
    "medusa": tiny_medusa_task,
    "early_exit": tiny_exit_task,
    "draft_model": tiny_draft_task,
}
# What else makes a task out of a lesson and a network.
SHAPES_OF: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "eagle3": lambda task: (),
    "draft_model": lambda task: (),
    "dspark": lambda task: (task.shape, task.num_anchors),
}
# Layers that ``oracles.load_head(weights=...)`` leaves as they are.
NEVER_ROUNDED = ("markov_head.", "confidence_head.")
# What is learned, and by which factor the loss falls at least in so many steps.
LEARNED = [
    ("eagle3", "kl", 0.75, 40),
    ("dspark", DSPARK_LOSS, 0.9, 40),
    ("medusa", "kl", 0.9, 40),
    ("early_exit", "kl", 0.9, 60),
    ("draft_model", "kl", 0.9, 40),
]


def trainer(task: HeadDistillation, out: Path, steps: int) -> Trainer:
    out.mkdir(exist_ok=True)
    recipe = Recipe(task.oracle.config, steps, matrix_rate=1e-2, other_rate=1e-2, warmup_steps=5)
    windows = Windows(WindowPlan(256, 32, 32, long_share=0.0), torch.arange(len(task.text.ids)), 0)
    return Trainer(recipe, windows, task, out, save_every=10)


def test_losses_are_taken_from_the_whole_law() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(5, 7, generator=generator).softmax(-1)
    columns = torch.tensor([0, 2, 3, 6])
    learnt = torch.randn(5, 4, generator=generator).log_softmax(-1)
    said = PairedPredictions(learnt, whole[:, columns].log(), torch.tensor([0, 1, -1, 3, -1]), torch.zeros(5))
    spread = torch.zeros(5, 7).index_copy(1, columns, learnt.exp())
    stands = torch.minimum(whole, spread).sum(-1)
    assert tv(said).item() == pytest.approx(1 - stands.mean().item(), abs=1e-6)
    terms = torch.where(spread > 0, whole * (whole.log() - spread.log()), 0.0)
    assert kl(said).item() == pytest.approx(terms.sum(-1).mean().item(), abs=1e-6)
    assert ce(said).item() == pytest.approx(-(learnt[0, 0] + learnt[1, 1] + learnt[3, 3]).item() / 3, abs=1e-6)


def test_mixtures_are_sums_of_what_they_name() -> None:
    learnt, taught = (torch.randn(5, 4, generator=torch.Generator().manual_seed(i)).log_softmax(-1) for i in (0, 1))
    said = PairedPredictions(learnt, taught, torch.tensor([0, 1, -1, 3, -1]), torch.zeros(5), torch.full((5,), 0.3))
    assert read_mixture(DSPARK_LOSS) == {"ce": 0.1, "tv": 0.9, "bce": 1.0}
    expected = 0.1 * ce(said) + 0.9 * tv(said) + bce(said)
    assert mix(read_mixture(DSPARK_LOSS), said).item() == pytest.approx(expected.item(), abs=1e-6)
    chance = torch.minimum(learnt.exp(), taught.exp()).sum(-1)
    nats = -(chance * torch.tensor(0.3).log() + (1 - chance) * torch.tensor(0.7).log()).mean()
    assert bce(said).item() == pytest.approx(nats.item(), abs=1e-5)
    known = ", ".join(LOSSES)
    for wrong in ("mse", "kl+", "kl+kl", "2*", "-1*kl"):
        with pytest.raises(ValueError, match=f"loss is '{re.escape(wrong)}'; choose one of {known}, or a sum"):
            read_mixture(wrong)
    with pytest.raises(ValueError, match="loss 'bce' is of a head that tells confidences"):
        bce(replace(said, believed=None))


def test_a_loss_of_ones_own_may_have_any_name_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LOSSES, "top_1_hinge", kl)
    assert read_mixture("0.5*top_1_hinge+tv") == {"top_1_hinge": 0.5, "tv": 1.0}
    with pytest.raises(ValueError, match="loss is '1_hinge'"):
        read_mixture("1_hinge")


def test_the_calibration_error_is_the_gap_of_bins() -> None:
    told, found = torch.tensor([0.05, 0.07, 0.95, 0.99, 1.0]), torch.tensor([0.0, 1.0, 1.0, 1.0, 0.0])
    expected = (abs(0.12 - 1.0) + abs(2.94 - 2.0)) / 5
    assert calibration_error(told, found) == pytest.approx(expected)
    assert calibration_error(found, found) == 0.0


@pytest.mark.parametrize(("kind", "loss", "falls", "steps"), LEARNED)
def test_a_head_learns_and_the_oracle_stays(kind: str, loss: str, falls: float, steps: int, tmp_path: Path) -> None:
    # The text is what the oracle finds likeliest, so that all losses have something to learn.
    oracle, ids = tiny_unpacked(VOCAB, torch.float32, num_layers=6), tiny_text().ids.view(-1, 50).long()
    said = oracle(ids).argmax(-1)
    text = HeadText(torch.cat([ids[:, :25], said[:, 24:-1]], 1).flatten().int(), torch.ones(2000, dtype=torch.bool))
    task = TASKS[kind](loss, text=text)
    before = {name: value.clone() for name, value in task.oracle.state_dict().items()}
    places = task.text.spread(8, 32)
    first, untrained = task.loss(places).item(), task.acceptance(task.text, places)
    run(trainer(task, tmp_path, steps))
    trained = task.acceptance(task.text, places)
    assert task.loss(places).item() < falls * first
    firsts = [f"drawn_{name}" for name, offset in task.offsets.items() if not offset]
    assert loss == "ce" or all(trained[name] > untrained[name] + 0.05 for name in firsts)
    assert all(torch.equal(value, before[name]) for name, value in task.oracle.state_dict().items())


def test_block_drafters_are_as_their_config_describes_them() -> None:
    own = {"qkv_bias": True, "sliding_window": 8, "rope_scaling": RopeScaling("llama3", 8.0)}
    oracle = tiny_unpacked(VOCAB, torch.float32, num_layers=6, **own)
    lesson = replace(a_lesson(DSPARK_LOSS, (0, 2, 4), None, None), oracle=oracle)
    shape = dspark_shape(lesson, **BLOCKS)
    layers = describe_dspark(shape, "tiny")["transformer_layer_config"]
    assert read_layers(ConfigKeys(layers, "a head")) == shape.config
    assert (shape.block_size, shape.columns, shape.confidence) == (3, VOCAB, True)
    assert not dspark_shape(replace(lesson, loss="kl"), **BLOCKS).confidence
    with pytest.raises(ValueError, match=r"--num-draft-tokens is 129; blocks hold 1\.\.128 tokens"):
        dspark_shape(replace(lesson, num_steps=129), **BLOCKS)


def test_files_that_hold_no_text_of_the_oracle_are_named(tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("text")
    save_file({"ids": torch.arange(3)}, tmp_path / "other")
    for name, fault in (("plain", "is no readable safetensors file"), ("other", "holds no text of an oracle")):
        with pytest.raises(ValueError, match=f"{name} {fault}"):
            own_text(tmp_path / name, END, held_out=False)
    save_file({"tokens": torch.tensor([END, 5, END], dtype=torch.int32)}, tmp_path / "few")
    with pytest.raises(ValueError, match=r"few: none of its 1 texts is (held out|learned on) \(8 of 256 "):
        [own_text(tmp_path / "few", END, held_out=held_out) for held_out in (True, False)]
    with pytest.raises(ValueError, match=r"ids from 0 to 9, and the model has 0\.\.8: give text of this very model"):
        check_text_ids(torch.arange(10), 9)


@pytest.mark.parametrize("make", [tiny_task, tiny_block_task, tiny_draft_task])
def test_acceptance_is_one_less_total_variation_of_the_first_step(make) -> None:
    task = make("tv", (0, 2, 3, 7))
    places = task.text.spread(4, 32)
    task.weights = [1.0, 0.0, 0.0]
    assert task.acceptance(task.text, places)["drawn_1"] == pytest.approx(1 - task.loss(places).item(), abs=1e-6)


def test_exit_heads_learn_the_whole_law_from_the_streams_after_their_layers() -> None:
    task = tiny_exit_task()
    places = task.text.spread(2, 32)
    streams = task.oracle.streams(task.text.ids[places[:, :-1]].long())
    taught = task.oracle.read_out(streams[-1]).double().log_softmax(-1)
    laws = [task.oracle.read_out(streams[k - 1]).double().log_softmax(-1) for k in (1, 3)]
    # Adapters that have learned nothing change nothing. A root has known streams before it, so that no draft is first.
    nats = [(taught.exp() * (taught - law)).sum(-1)[:, 1:].mean().item() for law in laws]
    assert task.loss(places).item() == pytest.approx(sum(nats) / 2, rel=1e-4)
    stands = [torch.minimum(taught, law).exp().sum(-1)[:, 1:].mean().item() for law in laws]
    found = task.acceptance(task.text, places)
    assert [found["drawn_after_1"], found["drawn_after_3"]] == pytest.approx(stands, rel=1e-4)
    for wrong in (0, 6):
        with pytest.raises(ValueError, match=rf"--num-layers \[{wrong}\]: the oracle has 6 layers, so give 1\.\.5"):
            tiny_exit_task(exits=(2, wrong))


@pytest.mark.parametrize("kind", ["eagle3", "dspark", "draft_model"])
def test_what_learns_as_it_is_served_says_and_learns_what_the_rounded_weights_do(kind: str) -> None:
    plain, twin = TASKS[kind](), TASKS[kind]()
    task = type(plain)(replace(plain.lesson, learn_as=INT4), plain.model, *SHAPES_OF[kind](plain))
    assert "as int4" in task.identity
    layers, doubles = (dict(linear_layers(one.model)) for one in (task, twin))
    with torch.no_grad():
        for name, layer in doubles.items():
            if name.startswith(NEVER_ROUNDED):  # they begin as zeros
                layer.weight.normal_(generator=torch.Generator().manual_seed(1))
                layers[name].weight.copy_(layer.weight)
            elif isinstance(layer, ProjectedHead):
                rounded = QuantisedWeight.of(layer.table @ layer.projection.weight, name, INT4).dequantise()
                layer.table, layer.projection.weight = rounded, torch.nn.Parameter(torch.eye(rounded.shape[1]))
            else:
                layer.weight.copy_(QuantisedWeight.of(layer.weight, name, INT4).dequantise())
    rows = torch.arange(20).view(1, -1)
    for a, b in zip(task.predictions(rows, task.text), twin.predictions(rows, twin.text), strict=True):
        assert torch.allclose(a.learnt, b.learnt, atol=1e-5)
        assert a.believed is None or torch.allclose(a.believed, b.believed, atol=1e-5)
    for one in (task, twin):
        torch.autograd.backward(one.loss(rows))
    for name, layer in layers.items():
        if not isinstance(layer, ProjectedHead):
            assert torch.allclose(layer.weight.grad, doubles[name].weight.grad, atol=1e-6), name
            is_kept = torch.equal(layer.weight, doubles[name].weight)
            assert is_kept == name.startswith(NEVER_ROUNDED), f"what trains is rounded: {name}"


@pytest.mark.parametrize("ids", [None, (1, 4, 7)])
def test_borrowed_rows_are_read_as_they_are_served(ids: Sequence[int] | None) -> None:
    """Of some ids they become rows of the head; a whole head stays the oracle's, whatever the head's weights are."""
    lesson = replace(a_lesson("kl", (0, 2, 4), ids, None), learn_as=INT4)
    rows = lesson.oracle.lm_head.weight.detach()
    served = rows if ids is None else QuantisedWeight.of(rows[list(ids)], "", INT4).dequantise()
    x = torch.randn(3, rows.shape[1], generator=torch.Generator().manual_seed(0))
    assert torch.allclose(ReadOut(lesson, None)(x), x @ served.t(), atol=1e-6)


def test_only_what_counts_is_learned() -> None:
    text = tiny_text()
    text.counts[:] = False
    text.counts[20:22] = True
    task = tiny_task(text=text)
    row = torch.arange(33).unsqueeze(0)
    first = task.loss(row).item()
    assert [len(said.learnt) for said in task.predictions(row, text)] == [2, 1, 0]
    text.ids[23:] = (text.ids[23:] + 1) % VOCAB
    assert task.loss(row).item() == first
    text.counts[:] = False
    assert task.loss(row).item() == 0.0


def test_workers_exchange_as_much_whatever_counts_in_their_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    exchanged: list[int] = []
    monkeypatch.setattr(workers, "count", lambda: 2)
    monkeypatch.setattr(workers.dist, "all_reduce", lambda packed: exchanged.append(packed.numel()))
    task = tiny_task()
    for counts in (True, False):
        task.text.counts[:] = counts
        task.model.zero_grad()
        loss = task.loss(torch.arange(33).unsqueeze(0))
        torch.autograd.backward(loss)
        workers.average(task.model, loss)
    assert exchanged == [1 + sum(1 + part.numel() for part in task.model.parameters())] * 2
    assert [part.grad is None for part in task.model.parameters()].count(False) == 1  # what no worker has stays None


def test_blocks_learn_in_mixed_precision() -> None:
    task = tiny_block_task()
    places = task.text.spread(2, 32)
    whole = task.loss(places)
    task.lesson = replace(task.lesson, precision="bfloat16")
    narrow = task.loss(places)
    narrow.backward()
    assert narrow.item() == pytest.approx(whole.item(), rel=0.02)
    assert all(parameter.grad is not None for parameter in task.model.parameters())


def test_windows_without_anchors_change_nothing() -> None:
    text = tiny_text()
    text.counts[:] = False
    text.counts[50:60] = True
    task = tiny_block_task(text=text)
    # Anchors of the middle window only; a window of which nothing counts teaches nothing.
    rows = torch.stack([torch.arange(33), torch.arange(40, 73), torch.arange(100, 133)])
    assert task.loss(rows).item() == pytest.approx(task.loss(rows[1:2]).item(), abs=1e-6)
    assert task.loss(rows).item() > 0
    task.loss(rows[:1]).backward()
    assert task.loss(rows[:1]).item() == 0.0


def test_anchors_are_spread_over_what_counts() -> None:
    counts = torch.zeros(2, 33, dtype=torch.bool)
    counts[0, 10:31], counts[1, 2] = True, True
    roots = tiny_block_task(anchors=5).roots(counts)
    assert roots.row.tolist() == [0] * 5 + [1]
    # A block of three from 29 on would draft id 32, the last.
    assert roots.at.tolist() == [9, 14, 19, 24, 29, 1]


@pytest.fixture
def _interruptible() -> Iterator[None]:
    """Have Ctrl-C raise KeyboardInterrupt, as it does not in a process that a shell has put in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize("make", TASKS.values())
def test_an_interrupted_run_is_saved_and_goes_on_with_the_same_bits(make, tmp_path: Path, capsys) -> None:
    whole = trainer(make(), tmp_path / "whole", 8)
    run(whole)
    parts = trainer(make(), tmp_path / "parts", 8)

    def interrupt(num_done: int) -> dict[str, float]:
        if num_done == 3:
            signal.raise_signal(signal.SIGINT)
        return {"seen": num_done}

    with pytest.raises(KeyboardInterrupt):
        run(parts, interrupt)
    assert "which is saved: --resume goes on" in capsys.readouterr().err
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = trainer(make(), tmp_path / "parts", 8)
    again.resume()
    assert again.num_done == 3
    run(again)
    expected = whole.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.model.state_dict().items())
    rows = [json.loads(line) for line in (tmp_path / "parts" / LOG_FILE).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row.get("seen") for row in rows] == [1, 2, 3, *[None] * 5]


def check_init(given: Sequence[object], begin: Path, out: Path, part: str = "") -> None:
    """Check that a run of one step with hardly any rate begins with the weights of a folder, which ``--init`` names."""
    own = ("--init", begin, "--out", out, "--steps", 1, "--rate", 1e-12)  # of options that are given twice, the last
    train_head.main([str(x) for x in (*given, *own)])
    begun, found = (load_file(path / part / "model.safetensors") for path in (begin, out / begin.name))
    assert all(torch.equal(found[name], begun[name]) for name in begun)


def refuse_init(folder: Path, argv: list[str]) -> None:
    """Check that a head begins with no weights that it would drop, or take for something else."""
    given, tensors = folder / "parts" / "head", load_file(folder / "parts" / "head" / "model.safetensors")
    config, ids = json.loads((given / "config.json").read_text()), tensors["d2t"]
    layers = {"eagle_aux_hidden_state_layer_ids": [0, 2]}
    for number, (made, values, told) in enumerate([
        ({"lm_head.weight": torch.zeros(64, 32)}, {}, "lm_head.weight' has no place in what is trained"),
        ({"d2t": ids + 10**6}, {}, "column r writes id"),
        ({"d2t": ids.float()}, {}, "64 whole numbers"),
        ({}, layers, r"layer_ids is \[0, 2\], and training has .*give the options .*--layers, which counts from 0"),
        ({}, {"norm_before_residual": True}, "norm_before_residual is True, and training has False"),
    ]):  # fmt: skip
        where = folder / f"given-{number}"
        where.mkdir()
        save_file({**tensors, **made}, where / "model.safetensors")
        (where / "config.json").write_text(json.dumps({**config, **values}))
        with pytest.raises(SystemExit, match=told):
            train_head.main([*argv, "--init", str(where), "--out", str(folder / "no")])
    (where / "config.json").unlink()
    with pytest.raises(SystemExit, match=r"config\.json does not exist"):
        train_head.main([*argv, "--init", str(where), "--out", str(folder / "no")])
    with pytest.raises(SystemExit, match=r"--vocab-size is 20, and --init .* writes 64 ids: leave it out"):
        train_head.main([*argv, "--init", str(given), "--vocab-size", "20", "--out", str(folder / "no")])


def code_oracle(folder: Path) -> Path:
    config = RECIPES["tiny"].recipe.config
    export_checkpoint(Transformer(config, seed=0).state_dict(), config, CODE, folder / "oracle")
    write_own_text(folder / "own.safetensors")
    return folder / "oracle"


def test_the_script_goes_on_where_it_stopped_and_writes_a_head_that_drafts(tmp_path: Path, capsys, monkeypatch) -> None:
    where = code_oracle(tmp_path)
    options = {
        "--oracle": where, "--own-text": tmp_path / "own.safetensors", "--steps": 4, "--window": 32, "--vocab-size": 64,
        "--step-tokens": 128, "--dev-windows": 2, "--measure-every": 2, "--precision": "float32",
    }  # fmt: skip
    argv = [str(x) for pair in options.items() for x in pair]
    train_head.main([*argv, "--out", str(tmp_path / "whole")])
    assert capsys.readouterr().out.count("step 4: greedy_1") == 1
    train_head.main([*argv, "--out", str(tmp_path / "parts"), "--stop-after", "2"])
    assert not (tmp_path / "parts" / "head").exists()
    begun = {name: (tmp_path / "parts" / name).read_bytes() for name in (STATE_FILE, LOG_FILE)}
    for given, fault in {
        "": r"state\.pt is there: give --resume to go on with it, or another --out",
        "--resume --precision bfloat16": "is of another run: precision float32, not bfloat16; use another --out",
    }.items():
        with pytest.raises(SystemExit, match=fault):
            train_head.main([*argv, *given.split(), "--out", str(tmp_path / "parts")])
        assert all((tmp_path / "parts" / name).read_bytes() == content for name, content in begun.items())
    monkeypatch.setattr(training_arguments, "faster_precision", lambda device: "bfloat16")
    unsaid = [str(x) for pair in options.items() if pair[0] != "--precision" for x in pair]
    train_head.main([*unsaid, "--out", str(tmp_path / "parts"), "--resume"])
    whole, parts = (load_file(tmp_path / name / "head" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert "lm_head.weight" not in whole
    assert "step 4: greedy_1" in capsys.readouterr().out
    train_head.main([*argv, "--out", str(tmp_path / "parts"), "--resume"])  # after its last step
    assert capsys.readouterr().out.count("step 4: greedy_1") == 1
    oracle = oracles.load(where)
    head = oracles.load_head(tmp_path / "parts" / "head", oracle)
    assert isinstance(head, NativeEagle3Head)
    assert "writes 64 of" in repr(head)
    prompt = [STREAM[:9].tolist()]
    drafted = SpeculativeDecoder(oracle, drafts.Eagle3(head, 3)).generate(prompt, 12)
    assert drafted.tokens == SpeculativeDecoder(oracle).generate(prompt, 12).tokens
    check_init(argv, tmp_path / "parts" / "head", tmp_path / "begun")
    with pytest.raises(SystemExit, match=r"lm_head.weight' is missing, and training wants .*: give the options"):
        train_head.main(
            [*argv, "--init", str(tmp_path / "parts" / "head"), "--lm-head", "own", "--out", str(tmp_path / "no")]
        )
    refuse_init(tmp_path, argv)
    with pytest.raises(SystemExit, match="another run"):
        train_head.main([*argv, "--out", str(tmp_path / "parts"), "--resume", "--loss", "tv"])
    untied = replace(RECIPES["tiny"].recipe.config, tie_embeddings=False)
    export_checkpoint(Transformer(untied, seed=0).state_dict(), untied, CODE, tmp_path / "untied")
    for given, fault in {
        "--steps 0": "--steps is 0; give at least 1",
        "--save-every 0": "--save-every is 0; give at least 1",
        "--rate -1": "--rate is -1.0; give a number above 0",
        "--discount 7": "--discount is 7.0; give a number above 0, at most 1.0",
        "--step-tokens 100": "--step-tokens is 100; give a multiple of --window 32",
        "--device nope": "device is 'nope'; give one as torch names them",
        "--num-draft-tokens 32": "less than a window",
        "--layers 1 9": r"layers \[9\]: the oracle has the outputs of layers 0\.\.\d; choose among these \(--layers\)",
        "--fall 1.5": "--fall is 1.5; give a number above 0, at most 1",
        "--markov-rank 4": "--markov-rank is of --kind dspark: leave it out with --kind eagle3",
        "--kind draft_model --discount 0.5": "--discount is of --kind eagle3, dspark, medusa: leave it out with",
        "--kind early_exit --discount 0.5": "--discount is of --kind eagle3, dspark, medusa: leave it out with",
        "--loss bce": "--loss bce: bce is of a head that tells confidences: --kind dspark",
        f"--oracle {tmp_path / 'untied'}": "give --lm-head own",
    }.items():
        with pytest.raises(SystemExit, match=fault):
            train_head.main([*argv, "--out", str(tmp_path / "other"), *given.split()])
    assert not (tmp_path / "other" / STATE_FILE).exists()


def test_rates_rise_stay_and_fall_over_the_share_that_is_asked_for(tmp_path: Path, monkeypatch) -> None:
    taken: list[float] = []
    step = Trainer.step

    def recorded(self: Trainer) -> float:
        loss = step(self)
        (rate,) = {optimiser.param_groups[0]["lr"] for optimiser in self.optimisers}
        taken.append(rate)
        return loss

    monkeypatch.setattr(Trainer, "step", recorded)
    options = {
        "--kind": "medusa", "--oracle": code_oracle(tmp_path), "--own-text": tmp_path / "own.safetensors",
        "--steps": 40, "--fall": 0.2, "--rate": 0.08, "--window": 32, "--step-tokens": 32, "--dev-windows": 1,
        "--num-draft-tokens": 1, "--precision": "float32", "--out": tmp_path / "run",
    }  # fmt: skip
    train_head.main([str(part) for pair in options.items() for part in pair])
    # 30 steps of rise; the fall takes the last fifth of 40.
    rates = [0.08 / 30 * done for done in range(1, 31)] + [0.08, 0.08, *(0.01 * left for left in range(8, 0, -1))]
    assert taken == pytest.approx(rates)


def test_a_fault_of_the_training_itself_is_shown_with_its_place(tmp_path: Path, monkeypatch) -> None:
    def unpack(self: MedusaDistillation, layers: Sequence[torch.Tensor], *others: Any) -> Any:
        (_, second) = layers
        yield second

    monkeypatch.setattr(MedusaDistillation, "draft", unpack)
    given = f"--kind medusa --oracle {code_oracle(tmp_path)} --own-text {tmp_path / 'own.safetensors'} --window 32"
    sizes = f"--steps 1 --step-tokens 32 --dev-windows 1 --precision float32 --out {tmp_path / 'run'}"
    with pytest.raises(RuntimeError, match="in its own code") as caught:
        train_head.main([*given.split(), *sizes.split()])
    assert isinstance(caught.value.__cause__, ValueError)


@pytest.mark.parametrize(
    ("kind", "given", "source"),
    [
        ("eagle3", ["--layers", "0", "1"], drafts.Eagle3),
        ("dspark", ["--vocab-size", "64", "--own-layers", "1"], drafts.BlockDrafter),
        ("dspark", ["--lm-head", "own", "--loss", "tv"], drafts.BlockDrafter),
        ("medusa", [], drafts.Medusa),
    ],
)
def test_heads_of_all_kinds_are_written_in_formats_that_load(kind: str, given, source, tmp_path: Path) -> None:
    where, made = code_oracle(tmp_path), tmp_path / "run" / "head"
    argv = ["--kind", kind, "--oracle", str(where), "--own-text", str(tmp_path / "own.safetensors"), *given]
    sizes = "--steps 2 --window 32 --step-tokens 64 --dev-windows 2 --num-draft-tokens 3 --precision float32"
    argv += sizes.split()
    train_head.main([*argv, "--out", str(tmp_path / "run")])
    check_init(argv, made, tmp_path / "again")
    oracle = oracles.load(where)
    head = oracles.load_head(made, oracle)
    assert getattr(head, "num_laws", 3) == 3
    prompt = [STREAM[:9].tolist()]
    drafted = SpeculativeDecoder(oracle, source(head, 3)).generate(prompt, 12)
    assert drafted.tokens == SpeculativeDecoder(oracle).generate(prompt, 12).tokens
    assert drafted.stats.num_drafted > 0
    config = json.loads((made / "config.json").read_text())
    for key in KINDS[kind].meaning:
        (made / "config.json").write_text(json.dumps({**config, key: "other"}))
        with pytest.raises(SystemExit, match=f"config.json: {key} is other, and training has .*: give the options"):
            train_head.main([*argv, "--init", str(made), "--out", str(tmp_path / "no")])


def test_a_kind_of_ones_own_says_what_its_weights_depend_on(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"output_layers": [0, 2]}')
    pupil = HeadPupil(tiny_medusa_task(), save=print, values={"output_layers": [0, 1]})
    with pytest.raises(ValueError, match=r"output_layers is \[0, 2\], and training has \[0, 1\]: give the options"):
        pupil.begin(tmp_path, ("output_layers",))


def test_exit_heads_lie_in_folders_of_their_layers_and_draft(tmp_path: Path, capsys) -> None:
    config = replace(RECIPES["tiny"].recipe.config, num_layers=3)
    export_checkpoint(Transformer(config, seed=0).state_dict(), config, CODE, tmp_path / "oracle")
    write_own_text(tmp_path / "own.safetensors")
    options = {
        "--kind": "early_exit", "--oracle": tmp_path / "oracle", "--own-text": tmp_path / "own.safetensors",
        "--steps": 2, "--window": 32, "--step-tokens": 64, "--dev-windows": 2, "--inner-size": 48,
        "--precision": "float32", "--served": "float32",
    }  # fmt: skip
    argv, run_folder = [str(x) for pair in options.items() for x in pair], tmp_path / "run"
    train_head.main([*argv, "--num-layers", "2", "1", "--out", str(run_folder)])
    assert re.search("step 2: greedy_after_1 .*, drawn_after_2 ", capsys.readouterr().out)
    oracle = oracles.load(tmp_path / "oracle")
    prompt = [STREAM[:9].tolist()]
    for k in (1, 2):
        head = oracles.load_head(run_folder / "head" / str(k), oracle)
        assert head.num_layers == k
        drafted = SpeculativeDecoder(oracle, drafts.EarlyExit(oracle, k, head)).generate(prompt, 12)
        assert drafted.tokens == SpeculativeDecoder(oracle).generate(prompt, 12).tokens
    check_init([*argv, "--num-layers", 2], run_folder / "head", tmp_path / "again", "2")
    for given, fault in {
        "--num-layers 1": "another run: exit heads of width 48 after layers 1, 2 by kl, .*, served",
        "--num-layers 3": r"--num-layers \[3\]: the oracle has 3 layers, so give 1\.\.2",
        "--num-layers 2 --learn-as int4": "--learn-as is of --kind eagle3, dspark, draft_model: leave it out",
        "--num-layers 2 --anchors 4": "--anchors is of --kind dspark: leave it out with --kind early_exit",
        "--num-layers 2 --kind medusa": "--inner-size is of --kind early_exit: leave it out with --kind medusa",
    }.items():
        with pytest.raises(SystemExit, match=fault):
            train_head.main([*argv, *given.split(), "--resume", "--out", str(run_folder)])


def test_a_draft_model_learns_from_shards_and_drafts(tmp_path: Path, monkeypatch, capsys) -> None:
    config = replace(RECIPES["tiny"].recipe.config, hidden_size=64)
    export_checkpoint(Transformer(config, seed=0).state_dict(), config, CODE, tmp_path / "oracle")
    ids = np.arange(60, dtype=np.uint16)
    kinds = [("train", "chat")] * 8 + [("dev", "chat"), ("dev", "summary")]
    talks = [Conversation(ids + i, ((10, 60),), kind, 0.0, split) for i, (split, kind) in enumerate(kinds)]
    Shards(tmp_path / "shards").append([(0, talks)], {"seed": "1"})
    monkeypatch.setattr(train_head, "begin_of", lambda _: (7, 8))
    argv = ["--kind", "draft_model", "--oracle", tmp_path / "oracle", "--shards", tmp_path / "shards", "--steps", 3]
    argv += ["--vocab-size", 50, "--hidden-size", 64, "--own-layers", 1, "--intermediate-size", 32, "--window", 32]
    argv += ["--step-tokens", 64, "--dev-windows", 2, "--precision", "float32", "--out", tmp_path / "run"]
    train_head.main([str(x) for x in argv])
    printed = capsys.readouterr().out
    assert "496 tokens, 400 of them count; 124 held out" in printed
    assert "held out, by kind" in printed
    rows = printed.partition("held out, by kind")[2].split()
    assert [word for word in rows if word in ("chat", "summary", "answer")] == ["chat", "summary"]
    # Of further folders what is to be learned on is, and what they hold out is not looked at.
    Shards(tmp_path / "more").append([(0, talks[:1] * 4 + talks[-1:] * 4)], {"seed": "2"})
    given = [str(x) for x in argv]
    given.insert(given.index("--steps"), str(tmp_path / "more"))
    train_head.main([*given[:-1], str(tmp_path / "run of two")])
    assert "744 tokens, 600 of them count; 124 held out" in capsys.readouterr().out
    check_init(argv, tmp_path / "run" / "draft_model", tmp_path / "again")
    oracle, draft = oracles.load(tmp_path / "oracle"), oracles.load(tmp_path / "run" / "draft_model")
    prompt = [STREAM[:9].tolist()]
    drafted = SpeculativeDecoder(oracle, drafts.SmallTransformer(draft, 3)).generate(prompt, 12)
    assert drafted.tokens == SpeculativeDecoder(oracle).generate(prompt, 12).tokens


def test_freed_memory_goes_back_every_so_many_steps(tmp_path: Path, monkeypatch) -> None:
    task, given_back = tiny_exit_task(), []
    training = trainer(task, tmp_path, 2 * TRIM_EVERY + 1)
    monkeypatch.setattr(loop, "give_back_freed_memory", lambda: given_back.append(training.num_done))
    run(training)
    assert given_back == [TRIM_EVERY, 2 * TRIM_EVERY]


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="the C library is not glibc")
def test_kept_memory_between_what_stays_can_be_given_back() -> None:
    program = """
from pathlib import Path
import torch
from oracles.factory.training.allocator import give_back_freed_memory, keep_freed_memory
def resident():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20
keep_freed_memory()
pairs = [(torch.ones(2**18), torch.ones(2**10)) for _ in range(200)]
stays = [small for _, small in pairs]
before = resident()
del pairs
kept = resident()
give_back_freed_memory()
print(before - kept < 20, before - resident() > 150)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True"]


def test_of_conversations_answers_count_after_their_beginning() -> None:
    with pytest.raises(ValueError, match="no text for this part"):
        dialogues([], (7, 8))
    conversation = Conversation(np.arange(9, dtype=np.uint16), ((2, 4), (6, 9)), "open", 0.0, "train")
    text = dialogues([conversation], (7, 8))
    assert text.ids.tolist() == [7, 8, *range(9)]
    assert text.counts.nonzero()[:, 0].tolist() == [4, 5, 8, 9, 10]


def test_what_covers_is_the_mass_of_the_written_ids() -> None:
    task = tiny_draft_task(ids=(0, 2, 3, 7))
    places = task.text.spread(2, 32)
    laws = task.oracle(task.text.ids[places[:, :-1]].long()).softmax(-1)[:, 1:-2]
    found = task.acceptance(task.text, places)["covered"]
    assert found == pytest.approx(laws[..., [0, 2, 3, 7]].sum(-1).mean().item(), abs=1e-6)


def test_own_text_is_held_out_by_its_beginnings(tmp_path: Path) -> None:
    write_own_text(tmp_path / "own.safetensors")
    learned, held = (own_text(tmp_path / "own.safetensors", END, held_out=out) for out in (False, True))
    count = sum(int((text.ids == END).sum()) for text in (learned, held))
    assert count == 300
    assert 0 < int((held.ids == END).sum()) < 40
    assert learned.frequent(3, 3072).tolist() == sorted(learned.frequent(3, 3072).tolist())
    with pytest.raises(ValueError, match="held-out tokens are less"):
        held.spread(2, 100_000)


def test_layers_whose_numbers_would_be_misread_are_refused() -> None:
    oracle = tiny_unpacked(VOCAB, torch.float32, num_layers=9)
    assert usual_outputs(9) == (1, 3, 5)
    assert [usual_outputs(count) for count in (1, 2, 3, 6)] == [(0,), (0,), (0, 1), (0, 2, 4)]
    with pytest.raises(ValueError, match="taken for outputs"):
        describe_eagle3(replace(a_lesson("kl", (0, 2, 4), None, None), oracle=oracle), "tiny", 24)
    for layers, wrong in (((-1, 5), -1), ((0, 6), 6)):
        with pytest.raises(
            ValueError, match=rf"layers \[{wrong}\]: the oracle has the outputs of layers 0\.\.5; choose"
        ):
            a_lesson("kl", layers, None, None)
    with pytest.raises(ValueError, match="loss is 'mse'"):
        tiny_task("mse")


def test_the_standard_library_alone_needs_no_wheel() -> None:
    manifest = modules_only()
    assert not manifest.packages
    assert {entry.package for entry in manifest.files} == {STDLIB}


def test_the_pass_that_serves_gives_the_features_of_the_one_that_trains() -> None:
    oracle = tiny_unpacked(VOCAB, torch.float32, num_layers=6)
    served = served_reader(tiny_unpacked(VOCAB, torch.float32, num_layers=6).pack(), (0, 2, 4))
    windows = tiny_text().ids[:36].view(2, 18).long()
    with torch.no_grad():
        for (layers, logits), (others, other) in zip(
            eager_reader(oracle, (0, 2, 4))(windows), served(windows), strict=True
        ):
            for mine, theirs in zip([logits, *layers], [other, *others], strict=True):
                assert (mine - theirs).abs().max() < 1e-4 * mine.abs().max()
