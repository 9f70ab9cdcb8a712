"""The training of EAGLE-3 heads: losses, text, learning, interruption, and what is written."""

import json
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import drafts
import oracles
from experiments import train_head
from oracles.factory.corpus import STDLIB, modules_only, read_split
from oracles.factory.dialogues.dialogue_parts import Conversation
from oracles.factory.dialogues.shards import Shards
from oracles.factory.training.export import export_checkpoint
from oracles.factory.training.features import eager_reader, served_reader
from oracles.factory.training.head_distillation import LOSSES, Eagle3Distillation, Said, ce, kl, tv
from oracles.factory.training.head_export import describe_eagle3, new_eagle3, usual_outputs
from oracles.factory.training.head_text import HeadText, dialogues, own_text
from oracles.factory.training.loop import LOG_FILE, STATE_FILE, Options, Trainer, run
from oracles.factory.training.recipes import RECIPES, Recipe
from oracles.factory.training.windows import WindowPlan, Windows
from oracles.heads import NativeEagle3Head
from oracles.transformer.eager import Transformer
from specdec import SpeculativeDecoder
from tests.support.models import tiny_unpacked
from tests.support.own_texts import CODE, END, STREAM, write_own_text

VOCAB = 11
# By which factor the loss falls at least in 60 steps.
FALLS = {"kl": 0.75, "tv": 0.9, "ce": 0.9}


def tiny_text(length: int = 2000) -> HeadText:
    ids = torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(0)).int()
    return HeadText(ids, torch.ones(length, dtype=torch.bool))


def tiny_task(loss: str = "kl", target_ids: tuple[int, ...] | None = None, text: HeadText | None = None):
    oracle, ids = tiny_unpacked(VOCAB, torch.float32, num_layers=6), None if target_ids is None else target_ids
    values = describe_eagle3(oracle, "tiny", (0, 2, 4), 24, None if ids is None else len(ids))
    written = None if ids is None else torch.tensor(ids)
    network = new_eagle3(values, oracle, written, True, 0)
    return Eagle3Distillation(
        oracle, network, (0, 2, 4), written, tiny_text() if text is None else text, 3, loss, 0.8, "float32"
    )


def trainer(task: Eagle3Distillation, out: Path, steps: int = 60) -> Trainer:
    out.mkdir(exist_ok=True)
    recipe = Recipe(task.oracle.config, steps, matrix_rate=1e-2, other_rate=1e-2, warmup_steps=5)
    windows = Windows(WindowPlan(256, 32, 32, long_share=0.0), torch.arange(len(task.text.ids)), 0)
    return Trainer(recipe, windows, Options(out, save_every=10), task)


def test_losses_are_taken_from_the_whole_law() -> None:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(5, 7, generator=generator).softmax(-1)
    columns = torch.tensor([0, 2, 3, 6])
    learnt = torch.randn(5, 4, generator=generator).log_softmax(-1)
    said = Said(learnt, whole[:, columns].log(), torch.tensor([0, 1, -1, 3, -1]), torch.zeros(5))
    spread = torch.zeros(5, 7).index_copy(1, columns, learnt.exp())
    stands = torch.minimum(whole, spread).sum(-1)
    assert tv(said).item() == pytest.approx(1 - stands.mean().item(), abs=1e-6)
    terms = torch.where(spread > 0, whole * (whole.log() - spread.log()), 0.0)
    assert kl(said).item() == pytest.approx(terms.sum(-1).mean().item(), abs=1e-6)
    assert ce(said).item() == pytest.approx(-(learnt[0, 0] + learnt[1, 1] + learnt[3, 3]).item() / 3, abs=1e-6)


@pytest.mark.parametrize("loss", sorted(LOSSES))
def test_a_head_learns_and_the_oracle_stays(loss: str, tmp_path: Path) -> None:
    # The text is what the oracle finds likeliest, so that all three losses have something to learn.
    oracle, ids = tiny_unpacked(VOCAB, torch.float32, num_layers=6), tiny_text().ids.view(-1, 50).long()
    said = oracle(ids).argmax(-1)
    text = HeadText(torch.cat([ids[:, :25], said[:, 24:-1]], 1).flatten().int(), torch.ones(2000, dtype=torch.bool))
    task = tiny_task(loss, text=text)
    before = {name: value.clone() for name, value in task.oracle.state_dict().items()}
    places = task.text.spread(8, 32)
    first, untrained = task.loss(places).item(), task.acceptance(task.text, places)
    run(trainer(task, tmp_path))
    trained = task.acceptance(task.text, places)
    assert task.loss(places).item() < FALLS[loss] * first
    assert loss == "ce" or trained["drawn_1"] > untrained["drawn_1"] + 0.05
    assert all(torch.equal(value, before[name]) for name, value in task.oracle.state_dict().items())


def test_acceptance_is_one_less_total_variation_of_the_first_step() -> None:
    task = tiny_task("tv", (0, 2, 3, 7))
    places = task.text.spread(4, 32)
    task.weights = [1.0, 0.0, 0.0]
    assert task.acceptance(task.text, places)["drawn_1"] == pytest.approx(1 - task.loss(places).item(), abs=1e-6)


def test_only_what_counts_is_learned() -> None:
    text = tiny_text()
    text.counts[:] = False
    text.counts[20:22] = True
    task = tiny_task(text=text)
    row = torch.arange(33).unsqueeze(0)
    first = task.loss(row).item()
    assert [len(said.learnt) for said in task._said(row, text)] == [2, 1, 0]
    text.ids[23:] = (text.ids[23:] + 1) % VOCAB
    assert task.loss(row).item() == first
    text.counts[:] = False
    assert task.loss(row).item() == 0.0


def test_an_interrupted_run_is_saved_and_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    whole = trainer(tiny_task(), tmp_path / "whole", 8)
    run(whole)
    parts = trainer(tiny_task(), tmp_path / "parts", 8)

    def interrupt(num_done: int) -> dict[str, float]:
        if num_done == 3:
            signal.raise_signal(signal.SIGINT)
        return {"seen": num_done}

    with pytest.raises(KeyboardInterrupt):
        run(parts, interrupt)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    again = trainer(tiny_task(), tmp_path / "parts", 8)
    again.resume()
    assert again.num_done == 3
    run(again)
    expected = whole.model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in again.model.state_dict().items())
    rows = [json.loads(line) for line in (tmp_path / "parts" / LOG_FILE).read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(1, 9))
    assert [row.get("seen") for row in rows] == [1, 2, 3, *[None] * 5]


def code_oracle(folder: Path) -> Path:
    config = RECIPES["tiny"].recipe.config
    export_checkpoint(Transformer(config, seed=0).state_dict(), config, CODE, folder / "oracle")
    write_own_text(folder / "own.safetensors")
    return folder / "oracle"


def test_the_script_goes_on_where_it_stopped_and_writes_a_head_that_drafts(tmp_path: Path, capsys) -> None:
    where = code_oracle(tmp_path)
    options = {
        "--oracle": where, "--own-text": tmp_path / "own.safetensors", "--steps": 4, "--window": 32, "--vocab-size": 64,
        "--step-tokens": 128, "--dev-windows": 2, "--measure-every": 2, "--precision": "float32",
    }  # fmt: skip
    argv = [str(x) for pair in options.items() for x in pair]
    train_head.main([*argv, "--out", str(tmp_path / "whole")])
    train_head.main([*argv, "--out", str(tmp_path / "parts"), "--stop-after", "2"])
    assert not (tmp_path / "parts" / "head").exists()
    train_head.main([*argv, "--out", str(tmp_path / "parts"), "--resume"])
    whole, parts = (load_file(tmp_path / name / "head" / "model.safetensors") for name in ("whole", "parts"))
    assert all(torch.equal(whole[name], parts[name]) for name in whole)
    assert "lm_head.weight" not in whole
    assert "step 4: greedy_1" in capsys.readouterr().out
    oracle = oracles.load(where)
    head = oracles.load_head(tmp_path / "parts" / "head", oracle)
    assert isinstance(head, NativeEagle3Head)
    assert "writes 64 of" in repr(head)
    prompt = [STREAM[:9].tolist()]
    drafted = SpeculativeDecoder(oracle, drafts.Eagle3(head, 3)).generate(prompt, 12)
    assert drafted.tokens == SpeculativeDecoder(oracle).generate(prompt, 12).tokens
    with pytest.raises(SystemExit, match="another run"):
        train_head.main([*argv, "--out", str(tmp_path / "parts"), "--resume", "--loss", "tv"])
    untied = replace(RECIPES["tiny"].recipe.config, tie_embeddings=False)
    export_checkpoint(Transformer(untied, seed=0).state_dict(), untied, CODE, tmp_path / "untied")
    with pytest.raises(SystemExit, match="give --lm-head own"):
        train_head.main([*argv, "--out", str(tmp_path / "other"), "--oracle", str(tmp_path / "untied")])
    with pytest.raises(SystemExit, match="less than a window"):
        train_head.main([*argv, "--out", str(tmp_path / "other"), "--unroll", "32"])
    assert not (tmp_path / "other" / STATE_FILE).exists()


def test_texts_are_split_by_hash_and_joined() -> None:
    conversation = Conversation(np.arange(9, dtype=np.uint16), ((2, 4), (6, 9)), "open", 0.0, "train")
    ids, counts = text_of(conversation)
    assert ids.tolist() == [7, 8, *range(9)]
    assert counts.nonzero()[:, 0].tolist() == [4, 5, 8, 9, 10]


def text_of(conversation: Conversation) -> tuple[torch.Tensor, torch.Tensor]:
    class One(Shards):
        def __init__(self) -> None:
            pass

        def split(self, name: str):
            return iter([conversation] if name == "train" else [])

    with pytest.raises(ValueError, match="no text for this part"):
        dialogues(One(), (7, 8), "dev")
    text = dialogues(One(), (7, 8), "train")
    return text.ids, text.counts


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
        describe_eagle3(oracle, "tiny", (0, 2, 4), 24, None)
    with pytest.raises(ValueError, match="loss is 'mse'"):
        tiny_task("mse")


def test_the_standard_library_alone_needs_no_wheel() -> None:
    manifest = modules_only()
    assert not manifest.packages
    assert {entry.package for entry in manifest.files} == {STDLIB}
    assert callable(read_split)


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
