"""The embedded checkpoints: complete, small, bfloat16, and able to predict held-out Python."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import oracles.train
from drafts import EarlyExit
from oracles.training.bits import bits_per_byte, load_exported
from specdec import SpeculativeDecoder

EMBEDDED = Path(oracles.train.__file__).parent / "embedded"
PROMPTS = EMBEDDED.parents[1] / "experiments" / "prompts" / "code.jsonl"
NAMES = ("code", "code-draft")
# A model of the token frequencies alone spends more than this on a byte of the corpus.
UNIGRAM_BITS = 2.3
CODE = Tokenizer.from_file(str(oracles.train.TOKENIZER))


@pytest.mark.parametrize("name", [*NAMES, "code-exit"])
def test_weights_are_bfloat16_in_small_shards(name: str) -> None:
    for path in (EMBEDDED / name).glob("*.safetensors"):
        assert path.stat().st_size < 15 * 2**20
        with safe_open(path, "pt") as file:
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_everything_together_is_under_30_megabytes() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file()) < 30e6


@pytest.mark.parametrize(("name", "least", "most"), [("code", 8e6, 12e6), ("code-draft", 0.5e6, 1e6)])
def test_sizes(name: str, least: float, most: float) -> None:
    model = load_exported(EMBEDDED / name, CODE.get_vocab_size())
    assert least <= sum(parameter.numel() for parameter in model.parameters()) <= most


def test_both_share_the_tokenizer() -> None:
    first, second = (json.loads((EMBEDDED / name / "tokenizer.json").read_text(encoding="utf-8")) for name in NAMES)
    assert first == second


def test_the_exit_head_is_accepted_more_often_than_the_oracles_own_head_at_its_place() -> None:
    code = oracles.load("code", dtype="float32", device="cpu")
    head = oracles.load_head("code-exit", code)
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    texts = [row["prompt"] for row in rows[::10]]
    bare, trained = (
        SpeculativeDecoder(code, EarlyExit(code, head.num_layers, one)).generate(texts, 24).stats.acceptance_rate
        for one in (None, head)
    )
    assert bare is not None
    assert trained is not None
    assert trained > 1.5 * bare > 0


def test_the_larger_model_predicts_heldout_code_better() -> None:
    rows = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    texts = [row["prompt"] for row in rows if row["kind"] == "completion"][:8]
    bits = [bits_per_byte(load_exported(EMBEDDED / name, CODE.get_vocab_size()), CODE, texts) for name in NAMES]
    assert bits[0] < bits[1] < UNIGRAM_BITS
