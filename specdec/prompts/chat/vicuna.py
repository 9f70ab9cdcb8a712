"""The template of Vicuna 1.1, which papers on speculative decoding ask their questions under."""

from typing import Any

from specdec.prompts.chat.template import ChatTemplate

NAME = "vicuna"
# Vicuna's own words between turns; an answer ends with EOS.
VICUNA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set words = messages[0]['content'] %}\
{% set turns = messages[1:] %}{% else %}{% set words = "A chat between a curious user and an artificial intelligence \
assistant. The assistant gives helpful, detailed, and polite answers to the user's questions." %}\
{% set turns = messages %}{% endif %}{{ words }}{% for message in turns %}{% if message['role'] == 'user' %}\
{{ ' USER: ' + message['content'] }}{% elif message['role'] == 'assistant' %}\
{{ ' ASSISTANT: ' + message['content'] }}{{ eos_token }}{% else %}\
{{ raise_exception('vicuna has the roles system, user and assistant') }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"""
STOP = "USER:"


def vicuna_template(tokenizer: Any, bos_token: str | None, eos_token: str | None) -> ChatTemplate:
    """Return Vicuna's template for a tokenizer: a model that goes on as the user, with "USER:", has ended its turn."""
    return ChatTemplate(VICUNA, tokenizer, bos_token, eos_token, name=NAME, stop_strings=(STOP,))
