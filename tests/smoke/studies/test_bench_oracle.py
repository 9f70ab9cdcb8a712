"""The benchmark of passes from its command line, on tiny models: its tables, its comparisons, its refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

from experiments.bench import stored
from experiments.bench.oracle import __main__ as bench
from experiments.bench.oracle.benchmark_models import Models
from experiments.harness import rounds
from experiments.harness.findings.model_shapes import model_shape
from experiments.harness.rounds import Round, TimedArm, measure
from experiments.peers import with_llama_cpp
from experiments.peers.gguf_file import interleave, write_gguf
from oracles.checkpoints.gguf import GGUFFile
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer
from tests.support.backends import needed_native
from tests.support.runs.experiments import table_rows

pytestmark = pytest.mark.usefixtures("documents")

TINY = ["--shapes", "tiny", "--threads", "1", "--rounds", "2", "--repeats", "1", "--new-tokens", "4"]


@pytest.fixture
def native() -> None:
    needed_native()


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(bench, "take_threads", torch.set_num_threads)


def test_the_parts_of_a_shape_print_their_tables(native, capsys, monkeypatch):
    monkeypatch.setattr(with_llama_cpp, "PACKAGES", ("no_such_package",))
    bench.main([*TINY, "--batches", "1", "2"])
    printed = capsys.readouterr().out
    assert "threads 1; 2 rounds." in printed
    assert "llama.cpp: not run, no_such_package not installed." in printed
    decoded = table_rows(printed, "Plain greedy decoding")
    assert len(decoded) == 2 * (2 + 1 + 1 + 2)
    assert len(table_rows(printed, "Passes beside llama.cpp's")) == 3 * 3
    for row in decoded:
        if row["program"] != "transformers bfloat16":
            assert row["ids as native bfloat16"] == ("" if row["program"] == "native bfloat16" else "100.0%")
        assert row["speed over transformers"] != "-"
        assert row["speed over llama.cpp"] == "-"


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--parts", "nonsense"], "--parts"),
        (["--shapes", "1b"], "--shapes"),
        (["--rounds", "0"], "--rounds"),
        (["--threads", "two"], "--threads"),
        (["--new-tokens", "2300"], "--new-tokens: 2364 tokens"),
        (["--bogus"], "--bogus"),
    ],
)
def test_unusable_arguments_are_named(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.main(argv)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def fake(name: str, log: list[str], ids: list[int] | None = None, **settings: object) -> TimedArm:
    def run() -> Round:
        log.append(name)
        return Round(float(len(log)), None if ids is None else np.array(ids))

    return TimedArm(name, run, **settings)  # type: ignore[arg-type]


def test_ids_unlike_the_twins_end_a_run_or_are_counted():
    log: list[str] = []
    first, loose = fake("a", log, [1, 2, 3, 4]), fake("b", log, [1, 2, 3, 5], twin="a", strict=False)
    assert measure([first, loose], 2).agreement == {"b": 0.75}
    ended = [fake("a", log, [1, 2, -1, -1]), fake("b", log, [1, 3, 4, -1], twin="a", strict=False)]
    assert measure(ended, 2).agreement == {"b": pytest.approx(1 / 3)}, "ends of rows are no ids"
    strict = fake("b", log, [1, 2, 3, 5], twin="a")
    with pytest.raises(AssertionError, match=r"b disagrees with a, first at \(row, token\) \(3,\)"):
        measure([first, strict], 2)
    with pytest.raises(AssertionError, match=r"b made ids of shape \(2,\), and a \(4,\)"):
        measure([first, fake("b", log, [1, 2], twin="a", strict=False)], 2)
    with pytest.raises(KeyError, match="c"):
        measure([first, fake("b", log, [1], twin="c")], 2)


def test_weights_are_the_same_in_every_storage_and_their_bytes_known(native):
    models = Models("tiny", None, 8)
    config = models.config
    table, norms = config.vocab_size * config.hidden_size, 4 * config.hidden_size * (2 * config.num_layers + 1)
    for storage, size in (("bfloat16", 2), ("float32", 4)):
        assert models.native(storage).weight_bytes - table * size - norms == model_shape(config, size).weight_bytes
    assert all(torch.equal(weight.float().bfloat16(), weight) for weight in models.state.values())


def test_names_and_rotary_pairs_are_those_of_llama_cpp(tmp_path):
    config = TransformerConfig(16, 8, 2, 2, 8, 16)
    write_gguf(tmp_path / "model.gguf", config, Transformer(config).state_dict(), "float32")
    inner = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
    names = [f"blk.{layer}.{name}" for layer in (0, 1) for name in inner] + ["token_embd", "output_norm", "output"]
    assert set(GGUFFile(tmp_path / "model.gguf").tensors) == {f"{name}.weight" for name in names}
    rows = torch.arange(8.0)[:, None]
    assert interleave(rows, 2).flatten().tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


def test_other_shapes_than_llamas_have_no_gguf_file(tmp_path):
    config = TransformerConfig(16, 8, 1, 2, 8, 16, qkv_bias=True)
    with pytest.raises(ValueError, match="only plain Llama shapes"):
        write_gguf(tmp_path / "x.gguf", config, {}, "float32")


@pytest.mark.parametrize("length", [100, 700])
def test_a_prompt_beside_llama_cpp_is_as_long_as_was_asked_for(length, tmp_path, monkeypatch):
    class Asked(Exception):
        """What is measured: ids of the prompt, and those that passes score."""

    def beside(_path, prompt, ids, *_):
        raise Asked(len(prompt), len(ids))

    def ids(_oracle, prompts, count):
        assert Path(prompts).is_file(), "from any folder"
        return np.arange(count)

    monkeypatch.setattr(stored, "missing", list)
    monkeypatch.setattr(stored, "take_threads", lambda _: None)
    monkeypatch.setattr(stored.oracles, "load", lambda _: None)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stored, "prompt_ids", ids)
    monkeypatch.setattr(stored, "Beside", beside)
    with pytest.raises(Asked) as asked:
        stored.main(["--model", str(tmp_path), "--prompt-length", str(length)])
    assert asked.value.args == (length, stored.MAX_BATCH + stored.CONTEXT)


def test_a_model_that_is_not_there_is_named(tmp_path, monkeypatch):
    monkeypatch.setattr(stored, "missing", list)
    monkeypatch.setattr(stored, "take_threads", lambda _: None)
    with pytest.raises(SystemExit, match=r"^bench_stored: .*none\.gguf"):
        stored.main(["--model", str(tmp_path / "none.gguf")])


@pytest.mark.skipif(bool(with_llama_cpp.missing()), reason=f"not installed: {with_llama_cpp.missing()}")
def test_llama_cpp_writes_the_same_ids(native, capsys):
    bench.main([*TINY, "--parts", "decode", "passes", "--batches", "1", "--new-tokens", "32"])
    rows = {row["program"]: row for row in table_rows(capsys.readouterr().out, "Plain greedy decoding")}
    assert rows["llama.cpp float32"]["ids as native bfloat16"] == "100.0%"
