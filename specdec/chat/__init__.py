"""Conversations as ids: a checkpoint's chat template, run in a sandbox, in which control tokens are the template's."""

from specdec.chat.control import ControlTokens, absent_characters
from specdec.chat.messages import with_system
from specdec.chat.rendering import Renderer
from specdec.chat.template import ChatTemplate
from specdec.chat.vicuna import VICUNA, vicuna_template

__all__ = [
    "VICUNA",
    "ChatTemplate",
    "ControlTokens",
    "Renderer",
    "absent_characters",
    "vicuna_template",
    "with_system",
]
