"""Conversations as ids: a checkpoint's chat template, run in a sandbox, in which control tokens are the template's."""

from specdec.prompts.chat.messages import with_system
from specdec.prompts.chat.template import ChatTemplate
from specdec.prompts.chat.vicuna import vicuna_template

__all__ = [
    "ChatTemplate",
    "vicuna_template",
    "with_system",
]
