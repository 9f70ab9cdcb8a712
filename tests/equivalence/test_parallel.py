"""One model on one, two and four processes: the same bits and tokens, every byte in the formula, and who differs."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from torch.distributed.device_mesh import init_device_mesh

import oracles
from experiments.studies.processes import decode, faults_of
from oracles.checkpoints.embedded_folders import EMBEDDED
from oracles.factory.training.export import export_checkpoint
from oracles.parallel import parallel_transformer, split_bits
from oracles.parallel.parallel_transformer import ParallelTransformer, Sums
from oracles.parallel.ranks import RanksDisagree
from oracles.parallel.shares import Share
from oracles.transformer.attention import CachedAttention
from oracles.transformer.linear import Linear
from specdec import SpeculativeDecoder
from tests.support.processes import status_of
from tests.support.ranks import start_ranks

IDS = torch.arange(40).unsqueeze(0)
# Key heads as those of "code", query heads that four cannot share, and widths that four do not divide; and every bias.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {"num_heads": 6, "num_kv_heads": 2, "head_dim": 8, "intermediate_size": 42, "num_layers": 1},
    "gpt2": {
        "num_heads": 4,
        "intermediate_size": 40,
        "num_layers": 1,
        "positions": "learned",
        "norm": "layer",
        "activation": "gelu_tanh",
        "gated": False,
        **dict.fromkeys(("qkv_bias", "attn_out_bias", "mlp_bias"), True),
    },
}


def write_models(folder: Path) -> Path:
    """Return the folder with a checkpoint of every shape, all of whose numbers are random, biases too."""
    tokenizer = Tokenizer.from_file(str(EMBEDDED / "code" / "tokenizer.json"))
    for name, shape in SHAPES.items():
        config = oracles.TransformerConfig(
            vocab_size=tokenizer.get_vocab_size(), hidden_size=32, max_context=128, tie_embeddings=True, **shape
        )
        generator = torch.Generator().manual_seed(0)
        state = oracles.Transformer(config).state_dict()
        drawn = {key: value + 0.3 * torch.randn(value.shape, generator=generator) for key, value in state.items()}
        export_checkpoint(drawn, config, tokenizer, folder / name)
    return folder


def logits_of(oracle: Any, ids: torch.Tensor = IDS) -> torch.Tensor:
    rows, nodes = np.zeros(1, dtype=np.int64), torch.tensor([ids.shape[1]])
    logits: torch.Tensor = oracle.score(ids, None, nodes, oracle.new_cache(1, ids.shape[1]), rows).logits
    return logits


def score_other_ids(oracle: ParallelTransformer) -> str:
    """Return what this process is told if the last one is about to score other ids."""
    try:
        logits_of(oracle, IDS + (oracle.ranks.rank == oracle.ranks.count - 1))
    except RanksDisagree as error:
        return str(error)
    return "nothing"


def share(place: Path, folder: Path, shapes: Sequence[str]) -> None:
    """Decode with some shapes and every way of sums, as one of several processes, and write what came out."""
    torch.set_num_threads(1)
    found: dict[str, Any] = {}
    for name in shapes:
        models = [oracles.load_parallel(folder / name, sums=sums) for sums in get_args(Sums)]
        rows = [row for model in models for row in decode(model, ("def add(a, b):", "x"), 6)]
        found[name] = {"rows": rows, "logits": [logits_of(model).tolist() for model in models]}
    if models[0].ranks.count == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("copy", "tensor"))
        pair = oracles.load_parallel(folder / "llama", mesh=mesh["tensor"], sums="reduced")
        found["pair"] = (pair.ranks.count, pair.weight_bytes, logits_of(pair).tolist())
    found["told"] = score_other_ids(models[0])
    place.write_text(json.dumps(found), encoding="utf-8")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def found(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, list[dict[str, Any]]]:
    """Return what each process of one, two and four wrote."""
    results = {}
    for count, shapes in ((1, [*SHAPES]), (2, [*SHAPES]), (4, ["llama"])):
        out = tmp_path_factory.mktemp(f"of-{count}")
        assert [status_of(process) for process in start_ranks(share, count, out, folder, shapes)] == [0] * count
        results[count] = [json.loads((out / f"{rank}.json").read_text(encoding="utf-8")) for rank in range(count)]
    return results


@pytest.mark.parametrize("shape", SHAPES)
def test_any_number_of_processes_gives_the_bits_and_tokens_of_one(shape: str, found: Any) -> None:
    of_shape = {count: ranks for count, ranks in found.items() if shape in ranks[0]}
    rows = [row for ranks in of_shape.values() for row in ranks[0][shape]["rows"]]
    assert faults_of(rows) == []
    assert {(row["sums"], row["claim"]) for row in rows} == {("blocks", "exact"), ("reduced", "exact up to numerics")}
    bits = {(row["processes"], row["bits"]) for row in rows if row["sums"] == "reduced"} - {(1, rows[0]["bits"])}
    assert any(one != rows[0]["bits"] for _, one in bits), "another order of sums would be seen"
    for ranks in of_shape.values():
        assert all(one[shape]["logits"] == ranks[0][shape]["logits"] for one in ranks)
        tokens = [[row["tokens"] for row in one[shape]["rows"]] for one in ranks]
        assert all(one == tokens[0] for one in tokens)


@pytest.mark.parametrize("shape", SHAPES)
def test_processes_together_score_as_the_whole_model_does(shape: str, found: Any, folder: Path) -> None:
    whole = oracles.load(folder / shape, backend="eager")
    expected = logits_of(whole)
    of_shape = [ranks for ranks in found.values() if shape in ranks[0]]
    for ranks in of_shape:
        for logits in ranks[0][shape]["logits"]:
            torch.testing.assert_close(torch.tensor(logits), expected, rtol=1e-4, atol=1e-4)
    held = [ranks[-1][shape]["rows"][0]["weights"] for ranks in of_shape]
    assert held == sorted({*held}, reverse=True), "more processes hold less each"


def test_a_pair_of_a_mesh_has_a_model_of_its_own(found: Any) -> None:
    two = found[2][0]["llama"]
    count, num_bytes, logits = found[4][3]["pair"]
    assert (count, num_bytes) == (2, two["rows"][0]["weights"])
    torch.testing.assert_close(torch.tensor(logits), torch.tensor(two["logits"][1]), rtol=1e-4, atol=1e-4)


def test_a_process_that_is_about_to_score_other_nodes_is_named(found: Any) -> None:
    assert [one["told"] for one in found[1]] == ["nothing"]
    for count in (2, 4):
        words = {one["told"].partition(": ")[2] for one in found[count]}
        (said,) = words
        assert said.startswith(f"rank {count - 1} of {count} scores other nodes than the rest: give all processes")


def test_each_process_takes_views_of_the_mapped_weights() -> None:
    config = oracles.TransformerConfig(
        vocab_size=9, hidden_size=8, max_context=8, **{**SHAPES["llama"], "intermediate_size": 9}
    )
    sizes: dict[str, list[tuple[int, ...]]] = {}
    for name, weight in oracles.Transformer(config).state_dict().items():
        parts = [Share(config, rank, 4, 4).take(name, weight) for rank in range(4)]
        assert all(part.untyped_storage().data_ptr() == weight.untyped_storage().data_ptr() for part in parts)
        sizes[name.removeprefix("model.layers.0.")] = [tuple(part.shape) for part in parts]
    assert sizes["self_attn.k_proj.weight"] == [(8, 8)] * 4
    assert sizes["self_attn.q_proj.weight"] == [(24, 8)] * 4
    assert sizes["self_attn.o_proj.weight"] == [(8, 12)] * 4
    assert sizes["mlp.up_proj.weight"] == [(2, 8), (2, 8), (2, 8), (3, 8)]
    assert sizes["mlp.down_proj.weight"] == [(8, 2), (8, 2), (8, 2), (8, 3)]
    assert sizes["lm_head.weight"] == [(2, 8), (2, 8), (2, 8), (3, 8)]
    assert sizes["input_layernorm.weight"] == [(8,)] * 4


SHARE = Share(
    oracles.TransformerConfig(vocab_size=99, hidden_size=32, max_context=128, **SHAPES["llama"]), 0, 1, num_blocks=4
)


def test_layers_whose_bits_depend_on_their_width_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert split_bits.has_bitwise_splits(SHARE)
    sound = Linear.forward
    monkeypatch.setattr(Linear, "forward", lambda self, x: sound(self, x) * (1 + 1e-6 * self.out_features))
    assert not split_bits.has_bitwise_splits(SHARE)


def test_attention_whose_bits_depend_on_the_number_of_heads_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaning(CachedAttention):
        def __call__(self, *given: Any) -> torch.Tensor:
            return super().__call__(*given) * (1 + 1e-6 * self.config.kv_heads)

    monkeypatch.setattr(split_bits, "CachedAttention", Leaning)
    assert not split_bits.has_bitwise_splits(SHARE)


def test_a_model_whose_bits_cannot_be_kept_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel_transformer, "has_bitwise_splits", lambda share: False)
    oracle = oracles.load_parallel(folder / "gpt2")
    assert (oracle.bitwise, oracle.backend, oracle.sums) == (False, "1-process", "blocks")
    result = SpeculativeDecoder(oracle).generate(["x"], max_new_tokens=2)
    assert result.exactness == "exact up to numerics"


def test_differences_and_uncounted_bytes_are_faults() -> None:
    row = {"processes": 1, "sums": "blocks", "arm": "plain", "bits": "a", "tokens": [[1]], "steps": [3, 3]}
    row["prompts"] = [0, 0]
    two = {**row, "processes": 2}
    assert faults_of([row, two, {**two, "sums": "reduced", "bits": "b"}]) == []
    assert faults_of([row, {**two, "tokens": [[2]]}]) == ["2 processes, blocks, plain: not the output of 1"]
    assert faults_of([row, {**two, "bits": "b"}]) == ["2 processes, blocks, plain: not the output of 1"]
    assert faults_of([row, {**two, "prompts": [8, 9]}]) == [
        "2 processes, blocks, plain: 8 bytes were sent, the formula says 9"
    ]
