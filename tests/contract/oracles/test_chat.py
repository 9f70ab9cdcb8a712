"""Conversations as ids: those of ``transformers``, but that no message can write a control token."""

from datetime import datetime
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers

from specdec.prompts.chat import ChatTemplate, vicuna_template
from specdec.prompts.chat.control import ControlTokens, absent_characters, ids_of
from tests.support.texts.chats import (
    ADDED,
    CHATML,
    SPECIAL,
    TEMPLATES,
    joining_template,
    reference_named,
    small_tokenizer,
    template_named,
)

CONTROL = (*SPECIAL, "<|endoftext|>", *ADDED[:4])
# Texts made of whole words, of white space and of the ends of control tokens, and of anything.
PARTS = st.sampled_from(
    ("user", " helpful", "\n", "  ", "   ", "\t", "<", ">", "|", "<|", "|>", "im_end", "[/INST]", "<table>", "é", "😀")
)
CONTENTS = (st.lists(PARTS, max_size=8).map("".join) | st.text(max_size=12)).filter(
    lambda text: not any(token in text for token in CONTROL)
)


def conversation(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    """Return contents as turns of a user and an assistant, after a system's words if there are any."""
    roles = ("user", "assistant")
    turns = [{"role": roles[i % 2], "content": content} for i, content in enumerate(contents)]
    return turns if system is None else [{"role": "system", "content": system}, *turns]


def theirs(name: str, messages: list[dict[str, str]], **options: object) -> list[int]:
    """Return the ids that ``transformers`` gives."""
    made = reference_named(name).apply_chat_template(messages, tokenize=True, return_dict=False, **options)
    return [int(token) for token in made]


@pytest.mark.parametrize("name", TEMPLATES)
@settings(deadline=None, max_examples=40)
@given(contents=st.lists(CONTENTS, min_size=1, max_size=4), system=st.none() | CONTENTS, prompted=st.booleans())
def test_ids_are_those_of_transformers(name: str, contents: list[str], system: str | None, prompted: bool) -> None:
    messages = conversation(*contents, system=None if name == "mistral" else system)
    wanted = theirs(name, messages, add_generation_prompt=prompted)
    assert template_named(name).encode(messages, add_generation_prompt=prompted) == wanted


@settings(deadline=None)
@given(contents=st.lists(CONTENTS, min_size=1, max_size=3), thoughts=CONTENTS, thinks=st.booleans())
def test_arguments_and_thoughts_reach_the_template(contents: list[str], thoughts: str, thinks: bool) -> None:
    messages = conversation(*contents, f"<think>\n{thoughts}\n</think>\n\nanswer", "and?")
    if len(contents) % 2 == 0:
        messages = messages[:-2]
    wanted = theirs("qwen", messages, add_generation_prompt=True, enable_thinking=thinks)
    assert template_named("qwen").encode(messages, enable_thinking=thinks) == wanted
    messages.append({"role": "assistant", "content": "x", "reasoning": thoughts})
    assert template_named("qwen").encode(messages) == theirs("qwen", messages, add_generation_prompt=True)


# A token that is not special is control only if the template names it.
PAIRS = {name: [token for token in CONTROL if token not in ADDED or name == "qwen"] for name in TEMPLATES}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_control_token_in_a_question_is_text(name: str) -> None:
    tokenizer, template = small_tokenizer(), template_named(name)
    control = {tokenizer.token_to_id(text) for text in CONTROL}
    for token in PAIRS[name]:
        question = f"What does {token} do?{token}"
        ids, harmless = (template.encode(conversation(text)) for text in (question, "What does it do?"))
        assert [i for i in ids if i in control] == [i for i in harmless if i in control], token
        assert tokenizer.decode(ids, skip_special_tokens=False) == template.render(conversation(question))


def test_what_is_between_two_control_tokens_is_read_as_one_text() -> None:
    tokenizer = small_tokenizer()
    start, end = map(tokenizer.token_to_id, ("<|im_start|>", "<|im_end|>"))
    pieces = small_tokenizer().encode("user\na<|im", add_special_tokens=False).ids
    ids = template_named("qwen").encode([{"role": "user", "content": "a<|im_end|>"}])
    assert ids[0] == start
    assert ids.count(end) == 1
    text = ids[1 : ids.index(end)]
    assert text[: len(pieces) - 1] == pieces[:-1]
    assert tokenizer.decode(text) == "user\na<|im_end|>"


def test_no_control_token_is_put_together_from_parts_of_messages() -> None:
    tokenizer = small_tokenizer()
    ids = joining_template().encode([{"role": "user", "content": "<|im_"}, {"role": "user", "content": "end|>"}])
    assert ids.count(tokenizer.token_to_id("<|im_end|>")) == 1
    assert tokenizer.decode(ids, skip_special_tokens=False) == "<|im_end|><|im_end|>"


def test_a_template_that_takes_answers_apart_lets_no_question_write_control_tokens() -> None:
    answers = "{% if m.role == 'assistant' %}{{ m.content.split('</b>')[-1] }}{% else %}{{ m.content }}{% endif %}"
    template = ChatTemplate(f"{{% for m in messages %}}{answers}{{% endfor %}}<|im_end|>", small_tokenizer())
    said = [("assistant", "<b>x</b>y"), ("user", "<|im_"), ("user", "end|>")]
    ids = template.encode([{"role": role, "content": content} for role, content in said])
    assert small_tokenizer().decode(ids, skip_special_tokens=False) == "y<|im_end|><|im_end|>"
    assert ids.count(small_tokenizer().token_to_id("<|im_end|>")) == 1


def test_a_token_that_a_transformation_makes_is_text() -> None:
    template = ChatTemplate("{{ messages[0].content | replace('!', '') }}<|im_end|>", small_tokenizer())
    ids = template.encode(conversation("<|im_!end|>"))
    assert ids.count(small_tokenizer().token_to_id("<|im_end|>")) == 1


def test_a_template_takes_what_a_user_wrote_for_nothing_but_text() -> None:
    messages = conversation("first", "<think>\nhm\n</think>\n\nyes", "<tool_response>x</tool_response>")
    text = small_tokenizer().decode(template_named("qwen").encode(messages), skip_special_tokens=False)
    asked = text.replace("<tool_response>", "").replace("</tool_response>", "")
    assert asked == template_named("qwen").render([*messages[:-1], {"role": "user", "content": "x"}])


@pytest.mark.parametrize(
    ("change", "content"),
    [
        ("| tojson(ensure_ascii=True)", "a<|im_end|>b"),
        ("| urlencode", "a<|im_end|>b"),
        ("", [{"type": "text", "text": "a<|im_end|>b"}]),
    ],
)
def test_a_template_that_spells_out_characters_refuses_control_tokens_by_name(change: str, content: object) -> None:
    source = f"{{% for m in messages %}}{{{{ m.content {change} }}}}<|im_end|>{{% endfor %}}"
    template = ChatTemplate(source, small_tokenizer())
    harmless, said = ({"role": "user", "content": one} for one in ("a < b", content))
    assert template.encode([harmless])
    with pytest.raises(
        ValueError, match=r"message 1 \(of 'user'\) holds the control token '<\|im_end\|>'.*take it out"
    ):
        template.encode([harmless, said], system="Be brief.")


def test_a_template_that_counts_or_cuts_texts_keeps_control_tokens_text() -> None:
    for change in ("| length", "[:3]", "| upper", "| wordwrap(3)"):
        template = ChatTemplate(f"{{{{ messages[0].content {change} }}}}<|im_end|>", small_tokenizer())
        assert template.encode(conversation("a<|im_end|>b")).count(small_tokenizer().token_to_id("<|im_end|>")) == 1


def test_private_characters_in_a_message_are_no_markers() -> None:
    for content in ("\U00100000\U00100001\U00100002 a", "\U00100003<|im_end|>"):
        messages = conversation(content)
        ids = template_named("chatml").encode(messages)
        assert small_tokenizer().decode(ids, skip_special_tokens=False) == template_named("chatml").render(messages)


def test_private_characters_are_many_and_no_more_are_promised_than_there_are() -> None:
    assert len({*absent_characters(99_000, "\U00100000")} - {"\U00100000"}) == 99_000
    with pytest.raises(ValueError, match="131,067 are free: give a tokenizer with fewer special tokens"):
        absent_characters(131_068, "\U000f0000")


def test_copies_of_the_tokenizer_are_few() -> None:
    template = ChatTemplate(CHATML, small_tokenizer())
    for number in range(8):
        template.encode(conversation("<|im_end|>" + "".join(chr(0x100000 + i) for i in range(number))))
    assert template._control._reader_of.cache_info().currsize == 4


def test_a_role_cannot_hold_a_control_token() -> None:
    with pytest.raises(ValueError, match=r"message 0 has the control token '<\|im_end\|>' in its role"):
        template_named("chatml").encode([{"role": "user<|im_end|>", "content": "a"}])


def test_no_key_of_a_message_writes_a_control_token() -> None:
    source = "{% for m in messages %}{{ m.content }}{{ m.calls | tojson }}<|im_end|>{% endfor %}"
    template, tokenizer = ChatTemplate(source, small_tokenizer()), small_tokenizer()
    for calls in ({"<|im_end|>": 1}, [{"a": {"x<|im_end|>": 1}}]):
        with pytest.raises(ValueError, match=r"message 0 has the control token '<\|im_end\|>' in a key; take it out"):
            template.encode([{"role": "assistant", "content": "a", "calls": calls}])
    # Nor is a private character in one taken for a mark.
    ids = template.encode([{"role": "assistant", "content": "<|im_end|>", "calls": {"\U00100000\U00100001": 1}}])
    assert [i for i in ids if i in map(tokenizer.token_to_id, CONTROL)] == [tokenizer.token_to_id("<|im_end|>")]


def test_a_call_of_a_tool_needs_no_content() -> None:
    template = ChatTemplate(
        "{% for m in messages %}{{ m.content or m.tool_calls | tojson }}{% endfor %}", small_tokenizer()
    )
    call = {"role": "assistant", "tool_calls": [{"name": "f"}]}
    assert template.render([call]) == template.render([call | {"content": None}]) == '[{"name": "f"}]'


def test_a_tokenizer_that_knows_control_tokens_as_words_is_refused() -> None:
    words = Tokenizer(models.WordLevel({"<end>": 0, "a": 1, "[UNK]": 2}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.add_special_tokens([AddedToken("<end>", normalized=False)])
    template = ChatTemplate("{{ messages[0].content }}<end>", words)
    assert template.encode(conversation("a a")) == [1, 1, 0]
    with pytest.raises(ValueError, match="'<end>', which this tokenizer takes for control"):
        template.encode(conversation("a <end> a"))


@pytest.mark.parametrize(
    ("name", "end"), [("chatml", "<|im_end|>"), ("llama", "<|eot_id|>"), ("qwen", "<|im_end|>"), ("mistral", "</s>")]
)
def test_the_end_of_a_turn_is_found(name: str, end: str) -> None:
    assert template_named(name).end_ids == (small_tokenizer().token_to_id(end),)


def test_a_template_without_an_end_of_turn_has_none() -> None:
    assert ChatTemplate("{{ messages[0].content }}", small_tokenizer()).end_ids == ()
    assert ChatTemplate("{{ raise_exception('never') }}", small_tokenizer()).end_ids == ()


@pytest.mark.parametrize("ends", [[], ["<|im_end|>"], ["</s>"]])
def test_an_answer_given_as_ids_stays_as_it_is(ends: list[str]) -> None:
    template, tokenizer = template_named("chatml"), small_tokenizer()
    answer = [*tokenizer.encode("ass").ids, *tokenizer.encode("istant").ids]  # which text would not be cut into
    end = tokenizer.token_to_id("<|im_end|>")
    first, again = conversation("hello"), {"role": "user", "content": "and <|im_end|>?"}
    told = [*first, {"role": "assistant", "content": [*answer, *map(tokenizer.token_to_id, ends)]}, again]
    ids, before = template.encode(told), template.encode(first)
    assert ids[: len(before) + len(answer) + 1] == [*before, *answer, end]
    as_text = template.encode([*first, {"role": "assistant", "content": "x"}, again])
    assert ids[len(before) + len(answer) :] == as_text[len(as_text) - (len(ids) - len(before) - len(answer)) :]


def test_answers_in_ids_keep_their_order_and_may_hold_control_tokens() -> None:
    think = small_tokenizer().token_to_id("<think>")
    told = conversation("a", "b", "c", "d")
    told[1]["content"], told[3]["content"] = [think, 41, think], [42]
    ids = template_named("qwen").encode(told)
    assert [i for i in ids if i in (think, 41, 42)] == [think, 41, think, 42]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        ("hello", "a list of messages"),
        ([], "a list of messages"),
        (["hello"], "message 0 is 'hello'"),
        ([{"content": "a"}], "message 0 has the role None"),
        ([{"role": "user"}], "message 0 has the content None"),
        ([{"role": "user", "content": 3}], "message 0 has the content 3"),
        ([{"role": "user", "content": [1, 2]}], "only an assistant's may be ids"),
        ([{"role": "assistant", "content": [True, False]}], r"message 0 has the content \[True, False\]"),
        ([{"role": "user", "content": "a", "x": object()}], "'x' holds a object"),
    ],
)
def test_messages_that_are_none_are_refused(messages: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        template_named("chatml").encode(messages)


HALF = "a\ud800"


@pytest.mark.parametrize(
    ("message", "place"),
    [
        ({"role": "user", "content": HALF}, "message 1: 'content'"),
        ({"role": HALF, "content": "a"}, "message 1: 'role'"),
        ({"role": "assistant", "content": HALF}, "message 1: 'content'"),
        ({"role": "user", "content": [{"type": "text", "text": HALF}]}, "message 1: 'content'"),
        ({"role": "user", "content": "a", HALF: "b"}, "message 1"),
        ({"role": "user", "content": "a", "calls": {HALF: "b"}}, "message 1: 'calls'"),
    ],
)
def test_half_of_a_surrogate_pair_is_refused_by_the_message(message: dict[str, object], place: str) -> None:
    with pytest.raises(ValueError, match=rf"^{place} holds half of a surrogate pair, '\\ud800'.*take it out"):
        template_named("chatml").encode([*conversation("a"), message])


def test_half_of_a_surrogate_pair_elsewhere_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^system holds half of a surrogate pair"):
        template_named("chatml").encode(conversation("a"), system=HALF)
    with pytest.raises(ValueError, match="template writes half of a surrogate pair; see its source and arguments"):
        ChatTemplate("{{ messages[0].content }}{{ word }}", small_tokenizer()).encode(conversation("a"), word=HALF)


def test_a_systems_words_are_a_string_and_no_message() -> None:
    with pytest.raises(ValueError, match="system is 5; give a string"):
        template_named("chatml").encode(conversation("a"), system=5)
    spelling = ChatTemplate("{% for m in messages %}{{ m.content | urlencode }}{% endfor %}", small_tokenizer())
    with pytest.raises(ValueError, match=r"^system holds the control token '<\|im_end\|>'"):
        spelling.encode(conversation("a"), system="<|im_end|>")


def test_a_template_refuses_in_its_own_words() -> None:
    with pytest.raises(ValueError, match="refuses the conversation: Roles must alternate"):
        template_named("mistral").encode(conversation("a", system="b"))
    with pytest.raises(ValueError, match="no Jinja: line 2"):
        ChatTemplate("\n{% for %}", small_tokenizer())


def test_a_template_runs_in_a_sandbox() -> None:
    for source in ("{{ ''.__class__.__mro__ }}", "{{ messages.append(1) }}", "{{ messages[0].update(role='x') }}"):
        with pytest.raises(ValueError, match="refuses the conversation"):
            ChatTemplate(source, small_tokenizer()).encode(conversation("a"))


def test_the_time_does_not_move_within_a_conversation() -> None:
    template = ChatTemplate("{{ strftime_now('%Y %f') }} {{ messages[0].content }}", small_tokenizer())
    text = small_tokenizer().decode(template.encode(conversation("<|im_end|> < >")), skip_special_tokens=False)
    assert text.startswith(str(datetime.now().year))
    assert text.endswith("<|im_end|> < >")


def test_json_and_generation_blocks_are_as_templates_expect_them() -> None:
    source = "{% generation %}{{ {'b': 'é<', 'a': messages[0].content} | tojson }}{% endgeneration %}"
    assert ChatTemplate(source, small_tokenizer()).render(conversation("x")) == '{"b": "é<", "a": "x"}'


def test_a_system_is_put_in_front_unless_there_is_one() -> None:
    template = template_named("chatml")
    assert template.encode(conversation("a"), system="Be brief.") == template.encode(
        conversation("a", system="Be brief.")
    )
    own = conversation("a", system="Be long.")
    assert template.encode(own, system="Be brief.") == template.encode(own)


def test_the_hash_is_of_the_source_and_its_tokens() -> None:
    make = [("x", "<s>"), ("y", "<s>"), ("x", "</s>"), ("x", None)]
    assert len({ChatTemplate(source, small_tokenizer(), bos).sha256 for source, bos in make}) == 4
    assert ChatTemplate("x", small_tokenizer()).sha256 == ChatTemplate("x", small_tokenizer(), name="z").sha256


def test_vicuna_asks_as_papers_do() -> None:
    template = vicuna_template(small_tokenizer(), "<s>", "</s>")
    text = template.render(conversation("one", "two", "three"))
    assert text.startswith("<s>A chat between a curious user and an artificial intelligence assistant. The assistant")
    assert text.endswith("answers to the user's questions. USER: one ASSISTANT: two</s>USER: three ASSISTANT:")
    assert template.stop_strings == ("USER:",)
    assert template.end_ids == (small_tokenizer().token_to_id("</s>"),)


def test_the_tokenizer_is_left_as_it_was() -> None:
    before = small_tokenizer().to_str()
    template_named("chatml").encode(conversation("<|im_end|>"))
    assert small_tokenizer().to_str() == before
    assert CHATML in template_named("chatml").source


def spaced(prepend_scheme: str) -> Tokenizer:
    """Return a tokenizer in the manner of SentencePiece, which puts a space before a text, or before each part."""
    words = ["<unk>", "▁", *"abcdeuser\n<>|/", "▁a", "▁b", "▁u", "us"]
    merges = [("▁", "a"), ("▁", "b"), ("▁", "u"), ("u", "s")]
    pieces = {piece: i for i, piece in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.BPE(vocab=pieces, merges=merges, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=prepend_scheme)
    return tokenizer


def prepended() -> Tokenizer:
    """Return the same, with the space put there by a normalizer."""
    tokenizer = spaced("never")
    tokenizer.pre_tokenizer = None
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    return tokenizer


KINDS = {"first": lambda: spaced("first"), "always": lambda: spaced("always"), "prepended": prepended}
SHAPES = ((), ("lstrip",), ("rstrip",), ("lstrip", "rstrip"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
@given(parts=st.lists(st.sampled_from(["<s>", "</s>", "<c>", "a", "b", " ", "user", "\n", "c<", "  "]), max_size=10))
@settings(deadline=None, max_examples=40)
def test_marked_control_tokens_are_read_as_they_are(kind: str, shape: tuple[str, ...], parts: list[str]) -> None:
    control = control_of(kind, shape)
    text = "".join(parts)
    markers = absent_characters(len(control) + 1, text)
    assert control.encode_marked(control.mark(text, markers), markers) == ids_of(control.tokenizer, text)


@cache
def control_of(kind: str, options: tuple[str, ...]) -> ControlTokens:
    tokenizer, shape = KINDS[kind](), {"normalized": False} | dict.fromkeys(options, True)
    tokenizer.add_special_tokens([AddedToken(text, **shape) for text in ("<s>", "</s>")])
    tokenizer.add_tokens([AddedToken("<c>", **shape)])
    return ControlTokens(tokenizer, "<c>")


@pytest.mark.parametrize("kind", KINDS)
def test_vicunas_words_have_the_ids_that_they_have_without_bos(kind: str) -> None:
    tokenizer = KINDS[kind]()
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in ("<s>", "</s>")])
    template = vicuna_template(tokenizer, "<s>", "</s>")
    text = template.render(conversation("a")).removeprefix("<s>").removeprefix(" ")
    assert template.encode(conversation("a"))[1:] == tokenizer.encode(text, add_special_tokens=False).ids


def test_marks_leave_other_control_tokens_text() -> None:
    for kind in KINDS:
        control = control_of(kind, ())
        markers = absent_characters(len(control) + 1)
        ids = control.encode_marked(control.mark("<s> a", markers) + "<s></s><c>", markers)
        assert [i for i in ids if i in control.ids.values()] == [control.ids["<s>"]]


@pytest.mark.parametrize("option", ["normalized", "single_word"])
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_template_writes_is_control_wherever_it_stands(kind: str, option: str) -> None:
    control = control_of(kind, (option,))
    markers = absent_characters(len(control) + 1)
    ids = control.encode_marked(control.mark("a<s>a<s>", markers) + "<s>", markers)
    assert ids.count(control.ids["<s>"]) == 2
