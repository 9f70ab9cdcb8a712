"""The benchmark of passes from its command line, on tiny models: its tables, its comparisons, its refusals."""

import numpy as np
import pytest
import torch

from experiments.bench import stored
from experiments.bench.oracle import __main__ as bench
from experiments.bench.oracle.benchmark_models import STORAGES, Models, shape_in
from experiments.harness import rounds
from experiments.harness.rounds import Round, TimedArm, Timings, measure, median_seconds, unique
from experiments.peers import with_llama_cpp
from experiments.peers.gguf_file import interleave, write_gguf
from oracles.checkpoints.gguf import GGUFFile
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer
from tests.support.backends import needed_native
from tests.support.experiments import table_rows

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
    parts = ["--parts", "decode", "passes", "bandwidth", "curve", "prefill"]
    sizes = ["--batches", "1", "2", "--widths", "1", "3", "--contexts", "5", "9", "--prefill-rows", "6"]
    bench.main([*TINY, *parts, *sizes])
    printed = capsys.readouterr().out
    assert "threads 1; 2 rounds." in printed
    assert "llama.cpp: not run, no_such_package not installed." in printed
    decoded = table_rows(printed, "Plain greedy decoding")
    assert len(decoded) == 2 * (2 + 1 + 1 + 2)
    assert {row["ids as native bfloat16"] for row in decoded if row["program"] != "transformers bfloat16"} <= {
        "", "100.0%"
    }  # fmt: skip
    assert len(table_rows(printed, "Passes beside llama.cpp's")) == 3 * 3
    shares = table_rows(printed, "Share of bandwidth")
    assert [(row["storage"], row["context"]) for row in shares] == [(s, c) for s in STORAGES for c in ("128", "9")]
    assert all(float(row["read GB/s"]) > 0 for row in shares)
    curve = table_rows(printed, "The width curve")
    assert [(row["storage"], row["context"]) for row in curve] == [
        ("bfloat16", "5"), ("float32", "5"), ("bfloat16", "9"), ("float32", "9")
    ]  # fmt: skip
    assert all(row["1"].endswith("(1.00)") for row in curve)
    assert len(table_rows(printed, "Prefill")) == 3
    for row in decoded:
        assert row["speed over transformers"] != "-"
        assert row["speed over llama.cpp"] == "-"


def test_the_parts_of_the_pair_print_their_tables(native, capsys):
    bench.main([*TINY, "--rounds", "1", "--parts", "c", "levels", "speculate", "--num-prompts", "1"])
    printed = capsys.readouterr().out
    rows = table_rows(printed, "Speculative decoding beside transformers")
    assert len(rows) == 4 * 3
    assert {row["ids as plain"] for row in rows if "bfloat16" not in row["program"]} == {"100.0%"}
    assert [row["what"] for row in table_rows(printed, "Cost of a drafted token")] == [
        "pass of code", "plain step of code", "token, greedy", "token, sampled, top-p 0.95"
    ]  # fmt: skip
    levels = table_rows(printed, "Cost of a drafted tree level")
    assert [(row["what"], row["batch"]) for row in levels] == [
        (what, batch) for batch in "18" for what in ("pass", "level, greedy", "level, sampled, top-p 0.95")
    ]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--parts", "nonsense"], "--parts"),
        (["--shapes", "1b"], "--shapes"),
        (["--rounds", "0"], "--rounds"),
        (["--threads", "two"], "--threads"),
        (["--contexts", "2300", "--widths", "64"], "--contexts with --widths: 2364 tokens"),
        (["--prefill-rows", "5000"], "--prefill-rows: 5000 tokens"),
        (["--new-tokens", "2000"], "--new-tokens: 2128 tokens"),
        (["--bogus"], "--bogus"),
    ],
)
def test_unusable_arguments_are_named(argv, message, capsys):
    with pytest.raises(SystemExit) as stop:
        bench.parse(argv, None)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err


def fake(name: str, log: list[str], ids: list[int] | None = None, **settings: object) -> TimedArm:
    def run() -> Round:
        log.append(name)
        return Round(float(len(log)), None if ids is None else np.array(ids))

    return TimedArm(name, run, **settings)  # type: ignore[arg-type]


def test_every_arm_runs_once_a_round_and_another_one_first():
    log: list[str] = []
    timings = measure([fake(name, log) for name in "abc"], 4)
    assert "".join(log) == "abc" + "abc" + "bca" + "cab" + "abc"
    assert timings.seconds["a"] == [4, 9, 11, 13]


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


def test_ratios_are_paired_by_round():
    timings = Timings({"a": [1.0, 2.0, 9.0], "b": [2.0, 1.0, 3.0]})
    assert str(timings.ratio("a", "b")) == "2.00 (0.50 .. 3.00)"
    assert timings.fastest("a", "b", "c") == "a"
    assert timings.fastest("c") is None


def test_repeated_calls_are_undone_and_the_first_does_not_count():
    calls: list[str] = []
    median_seconds(lambda: calls.append("do"), 2, lambda: calls.append("undo"))
    assert calls == ["do", "undo"] * 3


def test_arms_of_one_name_run_once():
    log: list[str] = []
    kept = [fake("a", log), fake("b", log)]
    assert unique([*kept, fake("a", log)]) == kept


def test_weights_are_the_same_in_every_storage_and_their_bytes_known(native):
    models = Models("tiny", None, 8)
    config = models.config
    table, norms = config.vocab_size * config.hidden_size, 4 * config.hidden_size * (2 * config.num_layers + 1)
    for storage, size in (("bfloat16", 2), ("float32", 4)):
        assert models.native(storage).weight_bytes - table * size - norms == shape_in(config, storage).weight_bytes
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

    monkeypatch.setattr(stored, "missing", list)
    monkeypatch.setattr(stored, "take_threads", lambda _: None)
    monkeypatch.setattr(stored.oracles, "load", lambda _: None)
    monkeypatch.setattr(stored, "prompt_ids", lambda _oracle, _prompts, count: np.arange(count))
    monkeypatch.setattr(stored, "Beside", beside)
    with pytest.raises(Asked) as asked:
        stored.main(["--model", str(tmp_path), "--prompt-length", str(length)])
    assert asked.value.args == (length, stored.MAX_BATCH + stored.CONTEXT)


@pytest.mark.skipif(bool(with_llama_cpp.missing()), reason=f"not installed: {with_llama_cpp.missing()}")
def test_llama_cpp_writes_the_same_ids(native, capsys):
    bench.main([*TINY, "--parts", "decode", "passes", "--batches", "1", "--new-tokens", "32"])
    rows = {row["program"]: row for row in table_rows(capsys.readouterr().out, "Plain greedy decoding")}
    assert rows["llama.cpp float32"]["ids as native bfloat16"] == "100.0%"
