"""The template of Vicuna 1.1, with which papers on speculative decoding ask their questions."""

from typing import Any

from specdec.prompts.chat.control import ids_of
from specdec.prompts.chat.template import ChatTemplate

NAME = "vicuna"
# Vicuna's own words between turns; an answer ends with EOS, which the next question follows without a blank.
VICUNA = """\
{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set words = messages[0]['content'] %}\
{% set turns = messages[1:] %}{% else %}{% set words = "A chat between a curious user and an artificial intelligence \
assistant. The assistant gives helpful, detailed, and polite answers to the user's questions." %}\
{% set turns = messages %}{% endif %}{{ words }}{% for message in turns %}{% if message['role'] == 'user' %}\
{% if not loop.previtem or loop.previtem['role'] != 'assistant' %}{{ ' ' }}{% endif %}\
{{ 'USER: ' + message['content'] }}{% elif message['role'] == 'assistant' %}\
{{ ' ASSISTANT: ' + message['content'] }}{{ eos_token }}{% else %}\
{{ raise_exception('vicuna has the roles system, user and assistant') }}{% endif %}{% endfor %}\
{% if add_generation_prompt %}{{ ' ASSISTANT:' }}{% endif %}"""
STOP = "USER:"


def vicuna_template(tokenizer: Any, bos_token: str | None, eos_token: str | None) -> ChatTemplate:
    """Return Vicuna's template for a tokenizer: a model that goes on as the user, with "USER:", has ended its turn.

    BOS stands before the ids that the rest has by itself, as papers have it: to a tokenizer that puts a blank before a
    text, and none after BOS, the template gives that blank.
    """
    bos, source = "{{ bos_token }}", VICUNA
    if bos_token is not None and ids_of(tokenizer, f"{bos_token} A")[1:] == ids_of(tokenizer, "A"):
        source = source.replace(bos, f"{bos} ", 1)
    return ChatTemplate(source, tokenizer, bos_token, eos_token, name=NAME, stop_strings=(STOP,))
