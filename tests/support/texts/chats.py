"""Chat templates in the manner of published ones, and a small tokenizer with their control tokens."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

import oracles
from oracles.checkpoints.tokenization import train_tokenizer
from oracles.factory.training.export import export_checkpoint
from specdec.prompts.chat import ChatTemplate

TEXTS = [
    "system\nYou are a helpful assistant.\nuser\nWhat does the sign <|x|> do? think, tool\nassistant\n",
    "[INST] what is [/INST] a start_header_id end_header_id eot_id im_start im_end text\n\n",
] * 3
SPECIAL = (
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>"),
    *("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
)
ADDED = ("<think>", "</think>", "<tool_response>", "</tool_response>", "   ", "helpful", "<table>")

CHATML = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
LLAMA = """{{- bos_token }}
{%- set date = strftime_now("%d %b %Y") if strftime_now is defined else "26 Jul 2024" %}
{%- if messages[0]['role'] == 'system' %}
    {%- set words = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set words = '' %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\nToday: ' + date + '\n\n' + words + '<|eot_id|>' }}
{%- for message in messages %}
    {{- '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n' + message['content'] | trim + '<|eot_id|>' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}
{%- endif %}
"""
QWEN = """{%- set ns = namespace(last=messages | length - 1, found=false) %}
{%- for message in messages[::-1] %}
    {%- if not ns.found and message.role == 'user' and not (message.content.startswith('<tool_response>')
        and message.content.endswith('</tool_response>')) %}
        {%- set ns.found = true %}
        {%- set ns.last = messages | length - loop.index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {%- set content = message.content %}
        {%- set thoughts = '' %}
        {%- if message.reasoning_content is defined %}
            {%- set thoughts = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set thoughts = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\n' }}
        {%- if loop.index0 > ns.last and thoughts %}
            {{- '<think>\n' + thoughts + '\n</think>\n\n' }}
        {%- endif %}
        {{- content + '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}
"""
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}"
    "{% endif %}{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + ' [/INST]' }}"
    "{% else %}{{ message['content'] + eos_token }}{% endif %}{% endfor %}"
)
# Template, and the texts of what begins and ends a text under it.
TEMPLATES = {
    "chatml": (CHATML, "<|im_start|>", "<|im_end|>"),
    "llama": (LLAMA, "<|begin_of_text|>", "<|eot_id|>"),
    "qwen": (QWEN, None, "<|im_end|>"),
    "mistral": (MISTRAL, "<s>", "</s>"),
}


@cache
def small_tokenizer() -> Tokenizer:
    """Return a byte-level BPE tokenizer of a few hundred pieces, with control tokens and others that were added."""
    tokenizer = train_tokenizer(TEXTS, 400)
    tokenizer.add_special_tokens([AddedToken(text, normalized=False) for text in SPECIAL])
    tokenizer.add_tokens([AddedToken(text, normalized=False) for text in ADDED])
    return tokenizer


def joining_template() -> ChatTemplate:
    """Return a template that writes one message right after the other, and the end of a turn."""
    return ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}<|im_end|>", small_tokenizer())


@cache
def template_named(name: str) -> ChatTemplate:
    """Return one of ``TEMPLATES`` for the small tokenizer."""
    source, bos, eos = TEMPLATES[name]
    return ChatTemplate(source, small_tokenizer(), bos, eos)


@cache
def reference_named(name: str) -> Any:
    """Return what ``transformers`` makes of the same template and tokenizer."""
    from transformers import PreTrainedTokenizerFast

    source, bos, eos = TEMPLATES[name]
    tokens = {key: token for key, token in (("bos_token", bos), ("eos_token", eos)) if token is not None}
    return PreTrainedTokenizerFast(tokenizer_object=small_tokenizer(), chat_template=source, **tokens)


def write_checkpoint(folder: Path, seed: int = 0, **config: Any) -> Path:
    """Write a tiny random transformer with the small tokenizer, and a ``tokenizer_config.json`` of these values."""
    tokenizer = small_tokenizer()
    shape = oracles.TransformerConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=32, num_layers=2, num_heads=2, intermediate_size=32,
        max_context=256, tie_embeddings=True,
    )  # fmt: skip
    export_checkpoint(oracles.Transformer(shape, seed=seed).state_dict(), shape, tokenizer, folder)
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder
