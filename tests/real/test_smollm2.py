"""SmolLM2-135M-Instruct as it was published (``make real-test``); not run where it was not fetched."""

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import drafts
import oracles
from experiments.harness.models import path_of
from experiments.peers.with_transformers import load_peer
from experiments.studies.inference_stack.stack_registry import NAIVE, arms_of
from experiments.studies.inference_stack.stack_timing import write_ids
from experiments.studies.inference_stack.subjects import build_subject
from oracles.checkpoints.embedded_folders import heads_of
from oracles.checkpoints.gguf import PUBLISHED
from oracles.native import NativeTransformer
from specdec import RULES, SamplingParams, SpeculativeDecoder
from specdec.contracts import DraftSource
from tests.support.registry import OTHERS, SOURCES, Models

pytestmark = pytest.mark.real
LICENCE = (Path(__file__).parents[2] / "LICENSE").read_text(encoding="utf-8")
QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
PROMPTS = [
    QUESTION.format("Name three rivers of Europe and one fact about each."),
    QUESTION.format("Repeat this list: 12, 7, 1984, 365.\nThen add the first two numbers."),
    "def fibonacci(n):\n    ",
    QUESTION.format("What is the capital of France? Answer in one word."),
]
NUM_TOKENS, NEW = 1000, 24
ROW = np.zeros(1, np.int64)
# Both sum 576 to 1,536 float32 products in an order of their own, in 30 layers.
LARGEST_DIFFERENCE = 2e-3
# What drafts with a head, by the name of its strategy.
HEADED: dict[str, Callable[..., DraftSource]] = {
    "eagle3": drafts.Eagle3,
    "block_drafter": drafts.BlockDrafter,
    "medusa": drafts.Medusa,
}
# Text to ids, as the model's own tokenizer.json has them.
IDS: dict[str, Sequence[int]] = {
    "Hello, world!": [19556, 28, 905, 17],
    "In 1984, 365 days;  12.5%\n\n\tdone": [
        788, 216, 33, 41, 40, 36, 28, 216, 35, 38, 37, 2009, 43, 256, 33, 34, 30, 37, 21, 1116, 197, 22744,
    ],
    "<|im_start|>user\nWhat is 2+2?<|im_end|>\n": [1, 4093, 198, 1780, 314, 216, 34, 27, 34, 47, 2, 198],
    "naïve café — 日本語 🙂": [3546, 46494, 37366, 1841, 17097, 241, 115, 40993, 179, 120, 248, 47526],
    "I'll don't 'S x²½": [57, 3060, 1326, 982, 637, 67, 1792, 19133, 16738],
    "def f(x):\n    return x == 10": [1604, 275, 24, 104, 727, 472, 1003, 1792, 1758, 216, 33, 32],
}  # fmt: skip


@pytest.fixture(autouse=True)
def _fetched() -> None:
    try:
        PUBLISHED["smollm2"].locate()
    except ValueError as error:
        pytest.skip(str(error))


@cache
def oracle() -> NativeTransformer:
    return oracles.load("smollm2", backend="native")


@cache
def prompts() -> list[list[int]]:
    """Return the ids of the prompts, whose control tokens are meant."""
    return [oracle().tokenizer.encode(text).ids for text in PROMPTS]


@cache
def models() -> Models:
    """Return what the sources of the registry draft with: the oracle in fewer bits, or what its text is like."""
    view = oracles.load("smollm2", backend="native", weights="int8-dynamic")
    corpus: list[list[int]] = [oracle().tokenizer.encode(LICENCE).ids]
    ngrams = drafts.NGram.train(corpus, oracle().vocab_size, progress=False).model
    typed: Any = (view, view, oracle(), view)
    return Models(*typed, ngrams=ngrams)


@cache
def plain(temperature: float = 0.0) -> list[list[int]]:
    return decoded(None, "coupled", temperature, batch_size=1)


def decoded(source: DraftSource | None, rule: str, temperature: float, batch_size: int) -> list[list[int]]:
    sampling = SamplingParams(temperature=temperature)
    result = SpeculativeDecoder(oracle(), source, rule).generate(prompts(), NEW, sampling, batch_size=batch_size)
    return result.tokens


def test_logits_are_those_of_transformers_on_the_same_numbers() -> None:
    other = load_peer(path_of("smollm2"), torch.float32, "cpu")
    ids = torch.tensor([oracle().tokenizer.encode(LICENCE).ids[:NUM_TOKENS]])
    assert ids.shape == (1, NUM_TOKENS)
    with torch.no_grad():
        expected = other(ids).logits[0]
    found = scored(ids)
    assert (found - expected).abs().max() < LARGEST_DIFFERENCE
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def scored(ids: torch.Tensor) -> torch.Tensor:
    """Return the logits ``[T, V]`` after every token, scored through the cache in chunks of several lengths."""
    cache, parts, at = oracle().new_cache(1, ids.shape[1]), [], 0
    for size in (1, 7, 200, 64, 500, 228):
        chunk = ids[:, at : at + size]
        kept = np.array([size])
        parts.append(oracle().score(chunk, None, torch.from_numpy(kept), cache, ROW).logits[0])
        cache.commit(ROW, None, kept)
        at += size
    assert at == ids.shape[1]
    return torch.cat(parts)


@pytest.mark.parametrize("text", IDS)
def test_ids_are_those_of_the_models_own_tokenizer(text: str) -> None:
    tokenizer = oracle().tokenizer
    assert tokenizer.encode(text).ids == IDS[text]
    assert tokenizer.decode(IDS[text], skip_special_tokens=False) == text


@pytest.mark.parametrize("arm", ["prefill", "native pass", "draft model, 3 ahead", "engine"])
def test_arms_of_the_inference_study_write_the_naive_ones_ids(arm: str) -> None:
    subject = replace(build_subject("smollm2", "cpu", num_prompts=2, num_gate=2), num_new=8)
    wanted, found = (write_ids(arms_of(subject)[name].build(subject, 2), subject, 2, 2, name) for name in (NAIVE, arm))
    assert found.tolist() == wanted.tolist()


def test_an_answer_ends_with_the_turn() -> None:
    assert oracle().eos_ids == (2,)
    result = SpeculativeDecoder(oracle(), None).generate(prompts()[3:], 64)
    assert result.finish_reasons == ["eos"]
    assert result.texts == ["The capital of France is Paris."]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_does_not_depend_on_its_batch(temperature: float) -> None:
    assert len({tuple(row) for row in plain(temperature)}) == len(PROMPTS)
    for batch_size in (2, 4):
        assert decoded(None, "coupled", temperature, batch_size) == plain(temperature)


def test_products_of_whole_numbers_write_one_text_whatever_drafts() -> None:
    whole = oracles.load("smollm2", backend="native", arithmetic="int8")
    texts = [
        SpeculativeDecoder(whole, source).generate(prompts(), NEW, batch_size=batch_size).tokens
        for source, batch_size in ((None, 1), (None, 4), (drafts.PromptLookup(8), 1), (drafts.PromptLookup(8), 4))
    ]
    assert texts[0] == texts[1] == texts[2] == texts[3]


@pytest.mark.parametrize("rule", ["standard", "coupled"])
def test_what_ships_for_it_writes_plain_decodings_tokens_in_fewer_passes(rule: str) -> None:
    whole = oracles.load("smollm2", backend="native", arithmetic="int8")
    draft = oracles.load("smol-draft", backend="native", weights="q4_0-int8")
    sampling = SamplingParams(temperature=0.8 if rule == "coupled" else 0.0)
    wanted = SpeculativeDecoder(whole, None, rule).generate(prompts(), NEW, sampling)
    shipped = [HEADED[kind](oracles.load_head(name, whole), 3) for kind, name in heads_of("smollm2").items()]
    for source in (
        *shipped,
        drafts.SmallTransformer(draft, 2),
        drafts.Cascade([drafts.PromptLookup(3, min_ngram=2), drafts.SmallTransformer(draft, 2)]),
    ):
        found = SpeculativeDecoder(whole, source, rule).generate(prompts(), NEW, sampling, batch_size=3)
        assert found.tokens == wanted.tokens
        assert found.stats.block_efficiency > 1.2


def rule_of(source: DraftSource) -> str:
    return "standard" if RULES["standard"].trees or not source.offers.trees else "multi_draft"


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in SOURCES.items() for way in ways])
def test_every_chain_of_the_registry_writes_plain_decodings_tokens(name: str, way: str) -> None:
    make: Callable[[Models, int], DraftSource] = SOURCES[name][way]
    source = make(models(), 4)
    assert decoded(source, rule_of(source), 0.0, batch_size=2) == plain()


@pytest.mark.parametrize(("name", "way"), [(name, way) for name, ways in OTHERS.items() for way in ways])
def test_every_other_source_does(name: str, way: str) -> None:
    source = OTHERS[name][way](models())
    assert decoded(source, rule_of(source), 0.0, batch_size=2) == plain()


def test_answers_follow_a_schema_with_and_without_drafts() -> None:
    oracle = oracles.load("smollm2", arithmetic="int8")
    schema = {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 16}, "size": {"enum": ["small", "large"]}},
        "required": ["city", "size"],
        "additionalProperties": False,
    }
    prompts = [[{"role": "user", "content": f"Describe {name} as JSON."}] for name in ("Paris", "Bergen")]
    asked = [SamplingParams(json_schema=schema), SamplingParams(json_schema=schema, temperature=1.0)]
    plain = SpeculativeDecoder(oracle, rule="coupled").generate(prompts, 60, asked)
    source = drafts.Cascade([drafts.Forced(max_ids=4), drafts.PromptLookup(3)])
    drafted = SpeculativeDecoder(oracle, source, rule="coupled").generate(prompts, 60, asked)
    assert drafted.tokens == plain.tokens
    assert plain.texts is not None
    assert plain.finish_reasons == ["stop", "stop"]
    assert all(json.loads(text)["size"] in ("small", "large") for text in plain.texts)
    assert drafted.stats.block_efficiency > 1.1
