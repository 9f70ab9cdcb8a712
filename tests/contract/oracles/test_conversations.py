"""Conversations wherever prompts may be, templates out of checkpoint directories, and where answers end."""

import json
import pickle
import warnings
from copy import copy
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tokenizers.processors import TemplateProcessing

import drafts
import oracles
from oracles import TabularLM
from specdec import SamplingParams, SpeculativeDecoder
from specdec.calibration_run import calibrate
from specdec.contracts import DraftSource
from specdec.drafting.lengths import LengthPolicy
from specdec.exactness import compare_runs
from specdec.prompts.chat import ChatTemplate, vicuna_template
from specdec.requests import RawPrompt, make_requests
from tests.support.texts.chats import (
    CHATML,
    MISTRAL,
    reference_named,
    small_tokenizer,
    template_named,
    write_checkpoint,
)

QUESTION = [{"role": "user", "content": "What is <|im_end|>?"}]
OTHER = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "help"}]
TOKENIZER = small_tokenizer()
SIZE = TOKENIZER.get_vocab_size()
END = TOKENIZER.token_to_id("<|im_end|>")


def table(template: Any, eos_id: int | None = None, seed: int = 0) -> TabularLM:
    """Return a random table over the small tokenizer's ids that has a template."""
    oracle = TabularLM.random(SIZE, 1, seed, eos_id=eos_id)
    oracle.tokenizer, oracle.chat_template = TOKENIZER, template
    return oracle


@pytest.fixture
def chatml() -> TabularLM:
    return table(template_named("chatml"))


def prompts_of(oracle: Any, prompts: Any) -> list[list[int]]:
    return [request.prompt.tolist() for request in make_requests(oracle, prompts, 4, None, 0, None)]


def test_a_conversation_is_a_prompt_and_a_bare_list_of_messages_is_one(chatml: TabularLM) -> None:
    ids, other = (template_named("chatml").encode(messages) for messages in (QUESTION, OTHER))
    assert prompts_of(chatml, QUESTION) == [ids]
    assert prompts_of(chatml, tuple(QUESTION)) == [ids]
    assert prompts_of(chatml, [QUESTION, OTHER]) == [ids, other]
    assert prompts_of(chatml, [OTHER, [1, 2, 3], QUESTION]) == [other, [1, 2, 3], ids]
    assert prompts_of(chatml, []) == []


def test_all_ways_to_decode_take_conversations(chatml: TabularLM) -> None:
    decoder = SpeculativeDecoder(chatml, drafts.PromptLookup(num_draft_tokens=3, max_ngram=1))
    ids = template_named("chatml").encode(QUESTION)
    wanted = SpeculativeDecoder(chatml).generate([ids], 8).tokens
    made = decoder.generate(QUESTION, 8)
    assert made.tokens == wanted
    assert [token for event in decoder.stream(QUESTION, 8) for token in event.tokens] == wanted[0]
    assert decoder.start(QUESTION, 8).slots.requests[0].prompt.tolist() == ids
    assert compare_runs(chatml, QUESTION, made, made).num_requests == 1


def test_a_conversation_without_a_template_is_refused_with_the_fix() -> None:
    with pytest.raises(ValueError, match=r"prompts\[1\] is a conversation, but the oracle has no chat template"):
        prompts_of(table(None), [[1], QUESTION])


def test_text_that_begins_with_what_the_tokenizer_puts_before_it_is_refused(chatml: TabularLM) -> None:
    begin, tokenizer = "<|im_start|>", copy(TOKENIZER)
    tokenizer.post_processor = TemplateProcessing(f"{begin} $A", None, [(begin, TOKENIZER.token_to_id(begin))])
    chatml.tokenizer, chatml.chat_template = tokenizer, None
    assert prompts_of(chatml, ["help"]) == [tokenizer.encode(f"{begin}help", add_special_tokens=False).ids]
    tokenizer.post_processor = TemplateProcessing(f"$A {begin}", None, [(begin, TOKENIZER.token_to_id(begin))])
    assert prompts_of(chatml, [begin, f"{begin}help"])[0] == [TOKENIZER.token_to_id(begin)] * 2, (
        "an end is no beginning"
    )
    both = f"{begin} $A {begin}"
    tokenizer.post_processor = TemplateProcessing(both, None, [(begin, TOKENIZER.token_to_id(begin))])
    with pytest.raises(ValueError, match=r"prompts\[0\] begins with '<\|im_start\|>', and the tokenizer puts another"):
        prompts_of(chatml, [f"{begin}help"])


def test_bad_messages_are_named_with_their_prompt(chatml: TabularLM) -> None:
    with pytest.raises(ValueError, match=r"prompts\[1\]: message 0 has the role None"):
        prompts_of(chatml, [QUESTION, [{"content": "x"}]])
    with pytest.raises(ValueError, match="prompts must be a list of prompts"):
        prompts_of(chatml, QUESTION[0])


def test_raw_text_for_an_instruct_model_is_said_once() -> None:
    def drafted(length: LengthPolicy) -> DraftSource:
        return drafts.SmallTransformer(table(None), length=length)

    calls = (
        lambda oracle: partial(SpeculativeDecoder(oracle).generate, ["hello", "help"], 1),
        lambda oracle: partial(SpeculativeDecoder(oracle).start, ["hello"], 1),
        lambda oracle: partial(calibrate, oracle, drafted, ["hello"]),
    )
    for call_of in calls:
        oracle = table(ChatTemplate(CHATML, TOKENIZER))
        call = call_of(oracle)  # no further call of this file's stands between
        with pytest.warns(RawPrompt, match="the oracle has a chat template, and a prompt is raw text") as told:
            call()
        assert [one.filename for one in told] == [__file__]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        prompts_of(oracle, ["hello"])
        prompts_of(table(ChatTemplate(CHATML, TOKENIZER)), [QUESTION, [1, 2]])
        prompts_of(table(None), ["hello"])


@pytest.mark.parametrize("slots", [False, True])
def test_raw_text_beside_a_template_without_a_hash_or_weak_references_is_text(slots: bool) -> None:
    @dataclass(slots=slots)
    class Own:
        end_ids: tuple[int, ...] = ()
        stop_strings: tuple[str, ...] = ()

        def encode(self, messages: Any) -> list[int]:
            return [1]

    with pytest.warns(RawPrompt):
        assert prompts_of(table(Own()), ["hello"]) == prompts_of(table(None), ["hello"])


def test_a_request_made_of_a_conversation_ends_with_its_turn() -> None:
    plain = table(template_named("chatml"), seed=5)
    wanted = SpeculativeDecoder(plain).generate(QUESTION, 12).tokens[0]
    at = next(i for i in range(1, 12) if wanted[i] not in wanted[:i])
    oracle = table(None, seed=5)

    class Ending:
        """Says that the turn ends with a token that the table makes."""

        end_ids, stop_strings = (wanted[at],), ()

        def encode(self, messages: Any) -> list[int]:
            return template_named("chatml").encode(messages)

    oracle.chat_template = Ending()
    decoder = SpeculativeDecoder(oracle)
    made = decoder.generate(QUESTION, 12)
    assert (made.tokens, made.finish_reasons) == ([wanted[: at + 1]], ["stop"])
    by_ids = decoder.generate([template_named("chatml").encode(QUESTION)], 12)
    assert by_ids.tokens == [wanted]
    assert decoder.generate(QUESTION, 12, SamplingParams(ignore_eos=True)).tokens == [wanted]
    oracle.eos_ids = (wanted[at],)
    made = decoder.generate(QUESTION, 12)
    assert (made.tokens, made.finish_reasons) == ([wanted[: at + 1]], ["eos"])
    both = decoder.generate([QUESTION, [3]], 12, stop=[[[wanted[0]]], None])
    assert both.tokens[0] == wanted[:1]


def test_vicunas_stop_string_ends_an_answer() -> None:
    oracle = table(vicuna_template(TOKENIZER, "<s>", "</s>"))
    (request,) = make_requests(oracle, QUESTION, 4, None, 0, ["x"])
    assert request.stop_strings == ("x", "USER:")
    assert request.stop_ids == ((TOKENIZER.token_to_id("</s>"),),)


NAMED = [{"name": "tool_use", "template": MISTRAL}, {"name": "default", "template": CHATML}]


@pytest.mark.parametrize("value", [CHATML, NAMED], ids=["text", "named"])
@pytest.mark.parametrize("token", ["<|im_end|>", {"content": "<|im_end|>", "lstrip": False}], ids=["text", "dict"])
def test_a_template_comes_out_of_the_tokenizers_settings(tmp_path: Path, value: Any, token: Any) -> None:
    oracle = oracles.load(write_checkpoint(tmp_path, chat_template=value, eos_token=token, bos_token=None))
    assert oracle.chat_template is not None
    assert oracle.chat_template.name == "tokenizer_config.json"
    assert oracle.chat_template.encode(QUESTION) == template_named("chatml").encode(QUESTION)
    assert oracle.chat_template.sha256 == ChatTemplate(CHATML, TOKENIZER, None, "<|im_end|>").sha256
    assert oracle.eos_ids == (TOKENIZER.token_to_id("<|endoftext|>"), END)
    assert prompts_of(oracle, QUESTION) == [oracle.chat_template.encode(QUESTION)]


def test_a_file_of_its_own_comes_first(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, chat_template=CHATML, bos_token="<s>", eos_token="</s>")
    (folder / "chat_template.jinja").write_text(MISTRAL, encoding="utf-8")
    for oracle in (oracles.load(folder), oracles.load(folder, backend="eager"), oracles.load_huggingface(folder)):
        assert oracle.chat_template is not None
        assert oracle.chat_template.name == "chat_template.jinja"
        assert oracle.chat_template.encode(QUESTION) == template_named("mistral").encode(QUESTION)
        assert TOKENIZER.token_to_id("</s>") in oracle.eos_ids


def test_tokens_of_both_files_are_those_of_transformers(tmp_path: Path) -> None:
    """The settings bring a token that ``tokenizer.json`` lacks, read another one in another way, and name a third."""
    from transformers import AutoTokenizer

    added = {END: {"content": "<|im_end|>", "rstrip": True, "special": True}}
    settings = {"bos_token": "<s>", "eos_token": "<|im_end|>", "pad_token": "<|eot_id|>"}
    folder = write_checkpoint(tmp_path, added_tokens_decoder=added)
    stored = json.loads((folder / "tokenizer.json").read_text(encoding="utf-8"))
    last = stored["added_tokens"].pop()
    (folder / "tokenizer.json").write_text(json.dumps(stored), encoding="utf-8")
    added[last.pop("id")] = last
    settings |= {"chat_template": "{{ pad_token }}" + CHATML, "added_tokens_decoder": added}
    settings |= {"tokenizer_class": "PreTrainedTokenizerFast"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    messages = [{"role": "user", "content": f"a {last['content']} is"}, {"role": "assistant", "content": "what?"}]
    reference = AutoTokenizer.from_pretrained(folder)
    ids = reference.apply_chat_template(messages, return_dict=False)
    assert {SIZE - 1, TOKENIZER.token_to_id("<|eot_id|>")} < set(ids)
    for oracle in (oracles.load(folder), oracles.load_huggingface(folder)):
        assert oracle.vocab_size == SIZE
        assert oracle.chat_template is not None
        assert oracle.chat_template.encode(messages, add_generation_prompt=False) == ids
    model = oracles.load_huggingface(folder)._model
    adopted = oracles.HuggingFaceLM(model, reference)
    assert len(reference("a what a is", truncation=True, max_length=2)["input_ids"]) == 2
    assert len(adopted.tokenizer.encode("a what a is").ids) > 2
    template = adopted.chat_template
    assert template is not None
    assert template.encode(messages, add_generation_prompt=False) == ids
    added[SIZE + 5] = {"content": "<|new|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ValueError, match=rf"gives '<\|new\|>' the id {SIZE + 5}, and after .* it would be {SIZE};"):
        oracles.load(folder)


def test_a_checkpoint_without_a_template_has_none(tmp_path: Path) -> None:
    assert oracles.load(write_checkpoint(tmp_path)).chat_template is None
    named = [{"name": "tool_use", "template": CHATML}]
    assert oracles.load(write_checkpoint(tmp_path, chat_template=named)).chat_template is None
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "chat_template.jinja").write_text(CHATML, encoding="utf-8")
    assert oracles.load(tmp_path).chat_template is None
    assert oracles.load("code").chat_template is None


def test_files_that_are_broken_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"tokenizer_config\.json: the chat template is no Jinja"):
        oracles.load(write_checkpoint(tmp_path, chat_template="{% if %}"))
    for text, words in (("{", "is no JSON"), ('{"added_tokens_decoder": {"a": 1}}', "is no table of ids and tokens")):
        (tmp_path / "tokenizer_config.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=rf"tokenizer_config\.json.* {words}"):
            oracles.load(tmp_path)
    write_checkpoint(tmp_path, chat_template=CHATML)
    (tmp_path / "chat_template.jinja").write_bytes(b"caf\xe9")
    with pytest.raises(ValueError, match=r"chat_template\.jinja: 'utf-8' codec can't decode byte 0xe9"):
        oracles.load(tmp_path)


@pytest.mark.parametrize("name", ["chat_template.jinja", "tokenizer_config.json"])
def test_a_link_to_nothing_is_no_missing_template(name: str, tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path, chat_template=CHATML)
    (folder / name).unlink(missing_ok=True)
    (folder / name).symlink_to(folder / "nowhere")
    with pytest.raises(ValueError, match=rf"{name} is no file \(a folder, or a link to nothing\)"):
        oracles.load(folder)


def test_a_fast_tokenizer_of_transformers_brings_its_template(tmp_path: Path) -> None:
    folder = write_checkpoint(tmp_path)
    model = oracles.load_huggingface(folder)._model
    oracle = oracles.HuggingFaceLM(model, reference_named("chatml"))
    assert oracle.chat_template is not None
    assert oracle.chat_template.encode(QUESTION) == template_named("chatml").encode(QUESTION)
    assert END in oracle.eos_ids
    assert oracles.HuggingFaceLM(model, TOKENIZER).chat_template is None
    several = copy(reference_named("chatml"))
    several.chat_template = {"tool_use": MISTRAL, "default": CHATML}
    named = oracles.HuggingFaceLM(model, several).chat_template
    assert named is not None
    assert named.source == CHATML


def test_a_template_can_be_sent_to_another_process() -> None:
    template = pickle.loads(pickle.dumps(vicuna_template(TOKENIZER, "<s>", "</s>")))
    assert (template.name, template.stop_strings) == ("vicuna", ("USER:",))
    assert template.end_ids == (TOKENIZER.token_to_id("</s>"),)
    assert template.encode(QUESTION) == vicuna_template(TOKENIZER, "<s>", "</s>").encode(QUESTION)
