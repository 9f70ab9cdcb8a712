"""The embedded checkpoints: complete, small, bfloat16, and able to do what they were trained for."""

import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from tokenizers import Tokenizer

import oracles.factory.train
from drafts import EarlyExit, SmallTransformer
from oracles.checkpoints.loading import load_trainable
from oracles.factory.arithmetic.problems import ANSWER_LENGTH, Problem, split
from oracles.factory.arithmetic.tokens import exact_answers
from oracles.factory.training.held_out import bits_per_byte
from specdec import SpeculativeDecoder
from tests.support.pairwise import first_of

EMBEDDED = Path(oracles.factory.train.__file__).parents[1] / "embedded"
PROMPTS = EMBEDDED.parents[1] / "experiments" / "prompts" / "code.jsonl"
NAMES = ("code", "code-draft", "code-draft-tiny")
ARITHMETIC = ("arithmetic", "arithmetic-draft")
# A model of the token frequencies alone spends more than this on a byte of the corpus.
UNIGRAM_BITS = 2.3
CODE = Tokenizer.from_file(str(oracles.factory.train.TOKENIZER))


@pytest.mark.parametrize("name", [*NAMES, *ARITHMETIC, "code-exit"])
def test_weights_are_bfloat16_in_small_shards(name: str) -> None:
    for path in (EMBEDDED / name).glob("*.safetensors"):
        assert path.stat().st_size < 15 * 2**20
        with safe_open(path, "pt") as file:
            assert {file.get_tensor(key).dtype for key in file.keys()} == {torch.bfloat16}  # noqa: SIM118


def test_everything_together_is_under_82_megabytes() -> None:
    assert sum(path.stat().st_size for path in EMBEDDED.rglob("*") if path.is_file()) < 82e6


def test_the_draft_of_smollm2_is_small_and_says_whose_vocabulary_it_reads(tmp_path, monkeypatch) -> None:
    folder = EMBEDDED / "smol-draft"
    with safe_open(folder / "model.safetensors", "pt") as file:
        columns = file.get_tensor("d2t").long()
        kinds = {file.get_tensor(key).dtype for key in file.keys() if key != "d2t"}  # noqa: SIM118
    ids = columns + torch.arange(len(columns))
    assert (kinds, len(ids)) == ({torch.bfloat16}, 8192)
    assert bool((ids.diff() > 0).all())
    assert sum(path.stat().st_size for path in folder.iterdir()) < 8e6
    monkeypatch.setenv("SPECDEC_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match=r"smol-draft reads the vocabulary_of 'smollm2': .* python -m oracles.smollm2"):
        oracles.load("smol-draft")


SIZES = {
    "code": (8e6, 12e6),
    "code-draft": (0.5e6, 2e6),
    "code-draft-tiny": (0.1e6, 0.4e6),
    "arithmetic": (10.6e6, 10.7e6),
    "arithmetic-draft": (0.1e6, 0.5e6),
}


@pytest.mark.parametrize("name", SIZES)
def test_sizes(name: str) -> None:
    model = load_trainable(name)
    least, most = SIZES[name]
    assert least <= sum(parameter.numel() for parameter in model.parameters()) <= most


def rows_of(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_the_language_models_share_the_tokenizer() -> None:
    files = [json.loads((EMBEDDED / name / "tokenizer.json").read_text(encoding="utf-8")) for name in NAMES]
    assert all(file == files[0] for file in files)


@pytest.mark.parametrize("every", first_of(16, 1))
@pytest.mark.parametrize(("name", "share"), [("arithmetic", 0.9915), ("arithmetic-draft", 0.5)])
def test_held_out_problems_are_answered_exactly(name: str, share: float, every: int) -> None:
    model = load_trainable(name)
    problems = [Problem.of_number(int(number)) for number in split()[1][::every]]
    assert exact_answers(model, problems) >= share * len(problems)


def test_the_shipped_problems_are_held_out_and_fit_the_engine() -> None:
    rows = rows_of(PROMPTS.parent / "arithmetic.jsonl")
    problems = [Problem.of_number(int(number)) for number in split()[1][::8]]
    assert rows == [{"prompt": problem.prompt, "answer": problem.answer} for problem in problems]
    oracle = oracles.load("arithmetic")
    draft = SmallTransformer(oracles.load("arithmetic-draft"), num_draft_tokens=4)
    result = SpeculativeDecoder(oracle, draft).generate([row["prompt"] for row in rows[:64]], ANSWER_LENGTH)
    assert result.texts is not None
    assert set(result.finish_reasons) == {"length"}
    assert sum(text == row["answer"] for text, row in zip(result.texts, rows, strict=False)) >= 60


def test_the_exit_head_is_accepted_more_often_than_the_oracles_own_head_at_its_place() -> None:
    code = oracles.load("code", dtype="float32", device="cpu")
    head = oracles.load_head("code-exit", code)
    texts = [row["prompt"] for row in rows_of(PROMPTS)[::10]]
    bare, trained = (
        SpeculativeDecoder(code, EarlyExit(code, head.num_layers, one)).generate(texts, 24).stats.acceptance_rate
        for one in (None, head)
    )
    assert bare is not None
    assert trained is not None
    assert trained > 1.5 * bare > 0


def test_a_larger_model_predicts_unseen_code_better() -> None:
    texts = [row["prompt"] for row in rows_of(PROMPTS) if row["kind"] == "completion"][:8]
    bits = [bits_per_byte(load_trainable(name), CODE, texts) for name in NAMES]
    assert bits[0] < bits[1] < bits[2] < UNIGRAM_BITS
