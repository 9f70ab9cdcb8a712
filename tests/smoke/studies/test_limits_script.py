"""The experiment on limits from its command line, on tiny models: its tables, pictures, rooflines and refusals."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from experiments.harness import rounds
from experiments.harness.findings.model_shapes import shape_of
from experiments.studies.limits import __main__ as limits
from experiments.studies.limits import limit_timing
from experiments.studies.limits.limit_options import LimitSubject, parse, random_oracle
from experiments.studies.limits.limit_tables import attention_kinds
from experiments.studies.limits.limit_timing import measure_prefill, random_cache
from specdec.stats.report.provenance import Panel, panels
from specdec.theory.limits import pass_cost
from tests.support.backends import needed_native
from tests.support.models.gguf_files import Kind, family_model, write_gguf
from tests.support.models.tiny_models import tiny_unpacked
from tests.support.runs.experiments import read_json

pytestmark = pytest.mark.usefixtures("documents")

SIZES = ["--contexts", "16", "64", "--widths", "3", "9", "--batch-sizes", "1", "2", "--window", "24"]
PROMPT = ["--prefill", "40", "--chunks", "16", "64", "--rounds", "1", "--repeats", "1"]
TITLES = [
    "Bytes of the cache",
    "Attention with a cache and without",
    "The machine",
    "Passes and the roofline",
    "Break-even width",
    "Passes by context",
    "Gain of speculation by context, draft cost 0.1",
    "A sliding window of 24",
    "A prompt of 40 tokens in chunks",
]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rounds, "PAUSE", 0.0)
    monkeypatch.setattr(limits, "take_threads", lambda _: None)
    monkeypatch.setattr(limits.limits, "READ_MB", (1,))
    monkeypatch.setattr(limit_timing, "SIDES", (16, 32))
    monkeypatch.setattr(limit_timing, "REPEATS", 1)


@pytest.mark.parametrize(
    "model", [["--shape", "tiny"], ["--shape", "tiny", "--backend", "eager"], ["--oracle", "arithmetic"]]
)
def test_the_tables_and_pictures(model, tmp_path, capsys):
    assert limits.main([*model, *SIZES, *PROMPT, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert [line[4:] for line in printed.splitlines() if line.startswith("### ")] == TITLES
    kept = read_json(tmp_path / "limits.json")
    tables = kept["tables"]
    assert list(tables) == TITLES
    passes = [(row["batch"], row["context"], row["width"]) for row in tables["Passes and the roofline"]]
    assert passes == [(b, c, w) for b in (1, 2) for c in (16, 64) for w in (1, 3, 9)]
    assert all(row["ms"] > 0 and row["least ms"] > 0 for row in tables["Passes and the roofline"])
    assert len(tables["Break-even width"]) == len(tables["Passes by context"]) == 4
    assert [row["v"] for row in tables[TITLES[6]]] == ["measured", "roofline"] * 4
    assert [row["context"] for row in tables[TITLES[7]]] == [16, 64]
    assert [(row["chunk"], row["passes"]) for row in tables[TITLES[8]]] == [(16, 3), (64, 1)] * 2
    assert sum(row["this model"] == "yes" for row in tables["Bytes of the cache"]) == 1
    assert kept["provenance"]["arguments"]["prefill"] == 40
    for name in ("roofline.png", "contexts.png"):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    if "arithmetic" in model:
        line = next(line for line in printed.splitlines() if line.startswith("| 9 "))
        attention = [cell.strip() for cell in line.split("|")[3:8]]
        assert attention == ["10.33", "0.53", "19.67", "61.99", "3.15"]


def test_an_oracle_serves_its_own_context_and_random_weights_a_longer_one():
    own = parse(["--oracle", "code-draft-tiny", "--contexts", "8", "--prefill", "8"], None)
    longer = parse(["--oracle", "code-draft-tiny", "--contexts", "5000", "--prefill", "8"], None)
    near, far = LimitSubject(own), LimitSubject(longer)
    assert (near.name, far.name) == ("code-draft-tiny", "code-draft-tiny, random weights")
    assert far.oracle.max_context == 5000 + max(longer.widths)
    assert far.oracle.config == replace(near.oracle.config, max_context=far.oracle.max_context)
    assert shape_of(far.oracle) == shape_of(near.oracle)
    assert near.with_window(7).config.sliding_window == 7


@pytest.mark.parametrize("prefill", [8, 300])
def test_a_gguf_file_has_its_own_weights_with_any_window_and_context(prefill, tmp_path):
    needed_native()
    kinds = {"output.weight": Kind.Q8_0, "blk.1.ffn_up.weight": Kind.Q4_1}
    path = write_gguf(tmp_path / "a.gguf", family_model("llama"), kind=lambda name: kinds.get(name, Kind.Q4_0))
    subject = LimitSubject(parse(["--oracle", str(path), "--contexts", "8", "--prefill", str(prefill)], None))
    cut = subject.with_window(7)
    assert (subject.name, subject.oracle.weight_type) == (str(path), "q8_0")
    assert (cut.config.sliding_window, cut.weight_bytes) == (7, subject.oracle.weight_bytes)
    assert cut.max_context == subject.oracle.max_context == max(prefill, 128)
    cache, nodes = (
        random_cache(cut, 1, prefill - 3, 3),
        (torch.ones(1, 3, dtype=torch.int64), None, torch.full((1,), 3)),
    )
    assert cut.score(*nodes, cache, np.arange(1), "all").logits is not None


def test_the_shape_of_a_native_oracle_has_its_storage():
    needed_native()
    config = tiny_unpacked(dtype=torch.float32).config
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        name = str(dtype).removeprefix("torch.")
        oracle = random_oracle(config, name, "native")
        assert oracle.weight_type == name
        assert (shape_of(oracle).bytes_per_weight, shape_of(oracle).bytes_per_cached) == (dtype.itemsize, 4)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_filled_cache_takes_a_pass_after_its_context(backend):
    if backend == "native":
        needed_native()
    oracle = random_oracle(tiny_unpacked().config, "float32", backend)
    cache, rows = random_cache(oracle, 2, 40, 3), np.arange(2)
    assert cache.lengths.tolist() == [40, 40]
    nodes = torch.ones(2, 3, dtype=torch.int64), None, torch.full((2,), 3)
    logits = oracle.score(*nodes, cache, rows, "all").logits
    assert logits is not None
    assert torch.isfinite(logits).all()


def test_chunks_of_a_prompt_are_all_timed():
    oracle = random_oracle(tiny_unpacked().config, "float32", "eager")
    found = measure_prefill(oracle, 30, (7, 30, 64), 2, "chunks")
    assert [prefill.chunk for prefill in found] == [7, 30, 64]
    assert all(0 < prefill.longest.median <= prefill.seconds.high for prefill in found)
    # A prompt in one pass is as long as that pass.
    assert found[1].longest == found[1].seconds


def test_the_roofline_of_this_machine_is_measured():
    oracle = random_oracle(tiny_unpacked().config, "float32", "eager")
    assert limit_timing.measure_bandwidth(pass_cost(shape_of(oracle)).bytes, 1) > 0
    assert all(limit_timing.measure_flops(dtype, 1) > 0 for dtype in limits.DTYPES)


def test_all_ways_to_multiply_make_the_same_product():
    plain, packed = (multiply() for multiply in limit_timing._products(torch.float32, 16))
    torch.testing.assert_close(packed, plain)
    torch.testing.assert_close(plain, plain.t())


def test_every_kind_of_attention_is_named_once():
    shape = shape_of(random_oracle(tiny_unpacked().config, "float32", "eager"))
    named = ["MHA, 4 KV heads", "GQA, 2 KV heads", "MQA, 1 KV head", "2 KV heads, window 9"]
    assert [*attention_kinds(shape, 9)] == named
    alone = attention_kinds(replace(shape, num_heads=1, num_kv_heads=1, window=5), 9)
    assert [*alone] == ["MHA, 1 KV head", "MQA, 1 KV head", "1 KV head, window 5"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--oracle", "arithmetic", "--shape", "tiny"], "not allowed with"),
        (["--shape", "none"], "invalid choice"),
        (["--contexts", "0"], "must be at least 1"),
        (["--alphas", "1.5"], "must lie in"),
        (["--draft-cost", "-1"], "must lie in [0, inf), got -1"),
    ],
)
def test_what_cannot_be_is_refused(arguments, message, capsys):
    with pytest.raises(SystemExit):
        parse(arguments, None)
    assert message in capsys.readouterr().err


def test_an_unknown_oracle_or_a_folder_that_cannot_be_ends_the_program_with_the_reason(tmp_path):
    with pytest.raises(SystemExit, match="limits: 'nowhere' is neither"):
        limits.main(["--oracle", "nowhere", *SIZES, *PROMPT])
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match=r"limits: --out: .*file cannot be written"):
        limits.main(["--oracle", "nowhere", *SIZES, *PROMPT, "--out", str(tmp_path / "file")])


def test_panels_are_a_picture(tmp_path):
    points = [(1.0, 2.0), (10.0, 3.0)]
    panels(
        tmp_path / "p.png",
        [Panel("x", "y", {"a": points}, {"a": points}), Panel("x", "y", {"b": points}, {}, False, False)],
    )
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")
