"""Recorded texts fulfil the oracle contract: trees, cache, ends; and files of records are read as they stand."""

import json

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

import oracles
from drafts import PromptLookup, stateless
from oracles import RecordedText
from oracles.checkpoints.loading import load_tokenizer
from specdec import SpeculativeDecoder
from specdec.cache import KVCache
from specdec.contracts import IntArray, Oracle, as_recorded
from specdec.verify import RULES
from tests.support.models.counting import Counting
from tests.support.models.scoring import path_to
from tests.support.texts.records import OUTPUTS, PROMPTS, TOKENIZER, recorded, rows_of


def expected(ids: list[int]) -> int:
    """Return the id recorded after some ids, looked for one record at a time; 0 if there is none."""
    for prompt, output in zip(PROMPTS, OUTPUTS, strict=True):
        text = prompt + output
        if len(prompt) <= len(ids) < len(text) and text[: len(ids)] == ids:
            return text[len(ids)]
    return 0


def filled(model: RecordedText, *prefixes: list[int]) -> KVCache:
    cache = model.new_cache(len(prefixes), 24)
    for row, prefix in enumerate(prefixes):
        if prefix:
            scores = model.score(torch.tensor([prefix]), None, torch.tensor([len(prefix)]), cache, rows_of(row), "none")
            assert scores.logits is None
            cache.commit(rows_of(row), None, rows_of(len(prefix)))
    return cache


def test_it_is_an_oracle_that_says_what_it_is():
    model: Oracle = recorded(eos_id=8)
    assert (model.vocab_size, model.eos_ids, model.tokenizer, model.backend) == (10, (8,), None, "recorded")
    assert model.max_context == 7
    assert model.bitwise
    assert model.weight_bytes == 24 * 18  # every beginning once, a root, and an end after every run
    assert as_recorded(model) is model
    assert as_recorded(oracles.TabularLM.random(3, 1, 0)) is None
    assert as_recorded(oracles.load("code-draft-tiny")) is None
    assert RecordedText(PROMPTS, OUTPUTS, vocab_size=50).vocab_size == 50


def test_chains_have_the_recorded_ids_and_are_off_for_good_once_they_leave():
    model = recorded()
    cache = filled(model, [1], [], [1, 2, 3])
    tokens = torch.tensor([[2, 3, 4, 5], [1, 5, 3, 4], [9, 0, 0, 0]])
    scores = model.score(tokens, None, torch.tensor([4, 3, 1]), cache, rows_of(0, 1, 2))
    assert scores.logits is None
    assert scores.best[0].tolist() == [[3, 4, 5, 3], [0, 3, 3, 0], [7, 0, 0, 0]]
    assert torch.isfinite(scores.best[1]).all()


def test_random_trees_rollbacks_and_levels_see_their_paths_and_nothing_else():
    generator = np.random.default_rng(0)
    model = recorded()
    texts: list[list[int]] = [[1], [], [1, 2, 3]]
    cache = filled(model, *texts)
    on_path = 0
    for _ in range(60):
        rows = generator.permutation(3)[: generator.integers(1, 4)].astype(np.int64)
        parents = np.stack([generator.integers(-1, np.arange(6)) for _ in rows])
        parents[:, 0] = -1
        tokens = np.stack(
            [likely_tokens(len(texts[row]), above, generator) for row, above in zip(rows, parents, strict=True)]
        )
        shape = torch.from_numpy(tokens), torch.from_numpy(parents)
        whole = model.score(*shape, torch.full((len(rows),), 6), cache, rows).best[0].tolist()
        model.score(shape[0][:, :2], shape[1][:, :2], torch.full((len(rows),), 2), cache, rows)
        rest = model.score(*shape, torch.full((len(rows),), 6), cache, rows, first=2).best[0].tolist()
        last = model.score(*shape, torch.full((len(rows),), 5), cache, rows, "last").best[0].tolist()
        for b, row in enumerate(rows.tolist()):
            paths = [path_to(parents[b], node) for node in range(6)]
            ids = [expected(texts[row] + tokens[b, path].tolist()) for path in paths]
            assert (whole[b], rest[b], last[b]) == (ids, ids[2:], [ids[4]])
            on_path += sum(map(bool, ids))
            kept = paths[max(range(6), key=lambda node: (ids[node] > 0, len(paths[node])))]
            cache.commit(rows_of(row), torch.tensor([kept + [0] * (6 - len(kept))]), rows_of(len(kept)))
            texts[row] += tokens[b, kept].tolist()
            if len(texts[row]) > 6 or not any(ids):
                cut = int(generator.integers(0, min(len(texts[row]), 3)))
                cache.truncate(rows_of(row), rows_of(cut))
                texts[row] = texts[row][:cut]
    assert on_path > 50


def likely_tokens(length: int, parents: IntArray, generator: np.random.Generator) -> IntArray:
    """Return an id for each node that stands at its place in some record, mostly the first."""
    records = [prompt + output for prompt, output in zip(PROMPTS, OUTPUTS, strict=True)]
    places = [length + len(path_to(parents, node)) - 1 for node in range(len(parents))]
    texts = [records[i] for i in generator.choice(3, len(parents), p=[0.6, 0.2, 0.2])]
    return np.array([text[place] if place < len(text) else 0 for text, place in zip(texts, places, strict=True)])


def test_a_row_that_is_used_again_begins_anew():
    model = recorded()
    cache = filled(model, [1, 2, 3, 4])
    cache.reset(rows_of(0))
    scores = model.score(torch.tensor([[1, 5]]), None, torch.tensor([2]), cache, rows_of(0), "last")
    assert scores.best[0].tolist() == [[3]]


@pytest.mark.parametrize("batch_size", [None, 1, 2])
@pytest.mark.parametrize("draft", [None, PromptLookup(4), PromptLookup(1)])
def test_greedy_output_is_the_record_and_ends_where_it_ends(draft, batch_size):
    result = SpeculativeDecoder(recorded(), draft).generate(PROMPTS, batch_size=batch_size)
    assert result.tokens == OUTPUTS
    assert result.finish_reasons == ["length"] * 3
    assert result.exactness == "exact"


@pytest.mark.parametrize("rule", RULES)
def test_every_rule_gives_the_record(rule):
    assert SpeculativeDecoder(recorded(), PromptLookup(3), rule).generate(PROMPTS).tokens == OUTPUTS


def test_a_stream_is_the_record():
    events = SpeculativeDecoder(recorded(), PromptLookup(3)).stream(PROMPTS[0])
    assert [token for event in events for token in event.tokens] == OUTPUTS[0]


@pytest.mark.parametrize("draft", [None, PromptLookup(3)])
@pytest.mark.parametrize("length", [0, 1, 2, 4, 5])
def test_fewer_tokens_than_the_record_has_are_a_beginning_of_it(draft, length):
    result = SpeculativeDecoder(recorded(), draft).generate(PROMPTS, max_new_tokens=length)
    assert result.tokens == [output[:length] for output in OUTPUTS]


def test_the_end_is_eos_where_it_was_recorded_and_length_where_it_was_not():
    result = SpeculativeDecoder(recorded(eos_id=8), PromptLookup(3)).generate(PROMPTS)
    assert result.tokens == OUTPUTS
    assert result.finish_reasons == ["length", "length", "eos"]
    stopped = SpeculativeDecoder(recorded(), PromptLookup(3)).generate(PROMPTS, stop=[[5]])
    assert (stopped.tokens[0], stopped.finish_reasons[0]) == ([3, 4, 5], "stop")


def test_a_draft_beyond_the_record_is_never_made():
    asked: list[int] = []

    @stateless(num_draft_tokens=4)
    def zeros(ids: list[int], budget: int) -> list[int]:
        asked.append(budget)
        return [0] * budget

    assert SpeculativeDecoder(recorded(), zeros).generate(PROMPTS[:1]).tokens == OUTPUTS[:1]
    assert asked == [4, 3, 2, 1, 0] or asked == [4, 3, 2, 1]


def test_what_one_prompt_says_about_another_does_not_reach_it():
    """Prompts that are beginnings of one another, without a word against another, each have their own record."""
    model = RecordedText([[1], [1, 2, 3]], [[2, 3, 4, 6], [4]])
    result = SpeculativeDecoder(model, PromptLookup(2)).generate([[1, 2, 3], [1]])
    assert result.tokens == [[4], [2, 3, 4, 6]]


TEXTS = ["def add(a, b):\n", "import os\nimport "], ["    return a + b\n", "sys\n"]


def test_text_is_read_by_the_tokenizer_and_comes_back():
    model = RecordedText(*TEXTS, tokenizer=TOKENIZER)
    assert model.vocab_size == TOKENIZER.get_vocab_size()
    result = SpeculativeDecoder(model, PromptLookup(4)).generate(TEXTS[0])
    assert result.texts == TEXTS[1]
    assert [tokens == output.tolist() for tokens, output in zip(result.tokens, model.outputs, strict=True)] == [
        True
    ] * 2
    for prompt, output, text in zip(model.prompts, model.outputs, map("".join, zip(*TEXTS, strict=True)), strict=True):
        assert TOKENIZER.decode([*prompt.tolist(), *output.tolist()]) == text


def test_the_vocabulary_holds_all_ids_that_may_be_written():
    gaps = Tokenizer(WordLevel({"a": 0, "b": 7}, unk_token="a"))
    assert RecordedText([[0]], [[7]], gaps).vocab_size == 8
    assert RecordedText([[0]], [[1]], eos_id=5).vocab_size == 6


def test_text_and_ids_may_be_mixed_and_a_token_across_the_border_parts():
    ids = TOKENIZER.encode(TEXTS[1][0]).ids
    mixed = RecordedText(TEXTS[0][:1], [ids], tokenizer=TOKENIZER)
    assert mixed.outputs[0].tolist() == ids
    whole = TOKENIZER.encode("return").ids
    parted = RecordedText(["ret"], ["urn"], tokenizer=TOKENIZER)
    assert parted.prompts[0].tolist() == TOKENIZER.encode("ret").ids
    assert parted.outputs[0].tolist() == TOKENIZER.encode("urn").ids
    assert [*parted.prompts[0], *parted.outputs[0]] != whole


@pytest.mark.parametrize("suffix", ["jsonl", "json", "parquet"])
def test_files_of_text_and_of_ids_are_read(suffix, tmp_path):
    rows = [{"id": i, "prompt_ids": p, "output_ids": o} for i, (p, o) in enumerate(zip(PROMPTS, OUTPUTS, strict=True))]
    texts = [{"question": p, "answer": [a, "second turn"]} for p, a in zip(*TEXTS, strict=True)]
    for name, entries in (("ids", rows), ("texts", texts)):
        path = tmp_path / f"{name}.{suffix}"
        if suffix == "parquet":
            from datasets import Dataset

            Dataset.from_list(entries).to_parquet(str(path))
        else:
            made = json.dumps(entries) if suffix == "json" else "\n".join(map(json.dumps, entries))
            path.write_text(made, encoding="utf-8")
    model = RecordedText.load(tmp_path / f"ids.{suffix}")
    assert SpeculativeDecoder(model).generate(PROMPTS).tokens == OUTPUTS
    model = RecordedText.load(tmp_path / f"texts.{suffix}", output_column="answer", tokenizer=TOKENIZER)
    assert SpeculativeDecoder(model).generate(TEXTS[0]).texts == TEXTS[1]


def test_tokenizers_are_found_by_name_folder_and_file():
    folder = oracles.checkpoints.embedded_folders.EMBEDDED / "code"
    for where in ("code", folder, str(folder), folder / "tokenizer.json"):
        assert load_tokenizer(where).get_vocab() == TOKENIZER.get_vocab()
        assert RecordedText(*TEXTS, tokenizer=where).tokenizer.get_vocab() == TOKENIZER.get_vocab()
    with pytest.raises(ValueError, match=r"'nowhere' has no tokenizer: give a tokenizer\.json"):
        load_tokenizer("nowhere")


def test_a_model_that_knows_nothing_of_records_is_a_model():
    class Plain(Counting):
        def __getattribute__(self, name):
            if name == "is_recorded":
                raise AttributeError(name)
            return super().__getattribute__(name)

    assert len(SpeculativeDecoder(Plain()).generate([[1]], max_new_tokens=3).tokens[0]) == 3
