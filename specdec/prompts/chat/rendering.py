"""A chat template's Jinja source, run in a sandbox with the functions that published templates call."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

from jinja2 import TemplateError, TemplateSyntaxError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from specdec.prompts.files import is_unicode


class _Generation(Extension):
    """Render what stands between ``generation`` and ``endgeneration``, which mark an answer, as if they were absent."""

    tags = {"generation"}  # noqa: RUF012  (Jinja's own declaration has the type of a set)

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the statements between the two tags."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class Renderer:
    """A chat template's source, compiled.

    Args:
        source: Jinja; ``raise_exception``, ``tojson`` and loop controls are there, as published templates expect.

    Raises:
        ValueError: the source is not Jinja; gives the line.
    """

    def __init__(self, source: str) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        try:
            self._template = environment.from_string(source)
        except TemplateSyntaxError as error:
            raise ValueError(f"the chat template is no Jinja: line {error.lineno}: {error.message}") from error

    def render(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        """Return a conversation as text.

        Raises:
            ValueError: the template refuses the messages, or fails on them, with its own words; or it writes something
                that is not Unicode text.
        """
        try:
            text = self._template.render(**{**variables, "messages": messages})
        except Exception as error:  # a checkpoint's own code may raise anything
            raise ValueError(f"the chat template refuses the conversation: {error}") from error
        if not is_unicode(text):
            raise ValueError("the chat template writes half of a surrogate pair; see its source and arguments")
        return text


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """Return plain JSON: Jinja's own filter escapes the characters of HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _refuse(message: str) -> None:
    raise TemplateError(message)
