"""How prompts are put to a model that answers in conversations: under which template, after which system message."""

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.harness.models import path_of
from oracles.checkpoints.chat_files import boundary_tokens, give_template
from oracles.checkpoints.config_keys import errors_of
from oracles.checkpoints.gguf import GGUFFile, read_vocabulary
from specdec import Oracle
from specdec.contracts import capability_of
from specdec.prompts import NamedPrompt
from specdec.prompts.chat import ChatTemplate, vicuna_template, with_system
from specdec.requests import encode_prompt

AUTO, NONE, VICUNA = "auto", "none", "vicuna"
FIRST, EVERY = "first", "all"
# How Python spells what JSON spells otherwise.
_OF_PYTHON = {"True": True, "False": False, "None": None}
# What a template is told of a conversation and its checkpoint.
RESERVED = ("messages", "add_generation_prompt", "bos_token", "eos_token")


@dataclass(frozen=True)
class LaterTurn(NamedPrompt):
    """A prompt that goes on after another one's answer.

    Attributes:
        after: name of the other one.
    """

    after: str = ""


def template_argument(text: str) -> str:
    """Return NAME=VALUE as it is.

    Raises:
        argparse.ArgumentTypeError: it has another form, or the conversation or the checkpoint gives the name.
    """
    name, sign, _ = text.partition("=")
    if not sign or not name.isidentifier():
        raise argparse.ArgumentTypeError(f"must be NAME=VALUE, got {text!r}")
    if name in RESERVED:
        raise argparse.ArgumentTypeError(f"{name!r} is not to be set: the conversation and the checkpoint give it")
    return text


def _values_of(pairs: Sequence[str]) -> dict[str, Any]:
    """Return name -> value; a value that is JSON (false, 3), or Python's word for it (False), is read as such."""
    found: dict[str, Any] = {}
    for name, _, value in (pair.partition("=") for pair in pairs):
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = _OF_PYTHON.get(value, value)
    return found


def add_template_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how a prompt becomes a conversation."""
    add = parser.add_argument
    add(
        "--template",
        default=AUTO,
        metavar="auto|none|vicuna|FILE",
        help="what a prompt is: a user's turn under the oracle's own chat template, or raw text if it has none (auto); "
        "raw text (none); or a turn under another template (%(default)s)",
    )
    add("--system", metavar="TEXT", help="a system message for every conversation that has none (none)")
    add(
        "--template-arg",
        type=template_argument,
        nargs="+",
        action="extend",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the template, such as enable_thinking=false (none)",
    )


def add_turns(parser: argparse.ArgumentParser) -> None:
    """Add the choice between first turns and all."""
    text = (
        "which turns of prompts with several are decoded: the first, or all, each after plain decoding's answer to the "
        "one before; auto: all under a template, the first of raw text (%(default)s)"
    )
    parser.add_argument("--turns", choices=(FIRST, EVERY, AUTO), default=FIRST, help=text)


def template_of(arguments: Mapping[str, Any], oracle: Any) -> ChatTemplate | None:
    """Return the template that a command line asks for, its arguments bound; None: prompts are raw text.

    Raises:
        ValueError: there is no such file, it is no template, or the oracle has no tokenizer.
    """
    asked, bound = arguments["template"], _values_of(arguments["template_arg"])
    if asked == AUTO:
        own: ChatTemplate | None = oracle.chat_template
        return own and own.bind(**bound)
    return None if asked == NONE else _template_of(asked, arguments["oracle"], oracle).bind(**bound)


def _template_of(asked: str, name: str, oracle: Any) -> ChatTemplate:
    """Return Vicuna's template, or that of a file, for an oracle of that name."""
    if oracle.tokenizer is None:
        raise ValueError(f"--template {asked}: the oracle has no tokenizer")
    tokens = _ends_of_texts(path_of(name))
    if asked == VICUNA:
        return vicuna_template(oracle.tokenizer, *tokens)
    if not Path(asked).is_file():
        raise ValueError(f"--template: {asked!r} is no file, and none of {AUTO}, {NONE}, {VICUNA}")
    with errors_of(f"--template {asked}"):
        return ChatTemplate(Path(asked).read_text(encoding="utf-8"), oracle.tokenizer, *tokens, name=Path(asked).name)


def _ends_of_texts(checkpoint: Path) -> tuple[str | None, str | None]:
    """Return the texts of BOS and EOS that a GGUF file or a checkpoint directory names; None: it names none."""
    if not checkpoint.is_file():
        return boundary_tokens(checkpoint)
    vocabulary = read_vocabulary(GGUFFile(checkpoint))
    return vocabulary.bos, vocabulary.eos


def as_conversations(prompts: Sequence[NamedPrompt], oracle: Any, arguments: Mapping[str, Any]) -> list[NamedPrompt]:
    """Give the oracle the template that a command line asks for, and return the prompts as they are put to it.

    Under a template each is a conversation; later turns, if they are asked for, come after all first ones.

    Raises:
        ValueError: what is asked for needs a template, and there is none; or as of ``template_of``.
    """
    template = template_of(arguments, oracle)
    turns = arguments.get("turns", FIRST)
    if template is None:
        _check_raw(prompts, arguments, turns)
        if turns == AUTO and any(prompt.later_turns for prompt in prompts):
            print("first turns only: prompts are raw text here, see --template", file=sys.stderr)
        oracle.chat_template = None
        return list(prompts)
    give_template(oracle, template)
    firsts = [_to_conversation(prompt, arguments["system"]) for prompt in prompts]
    return firsts + (_later_turns(prompts) if turns in (EVERY, AUTO) else [])


def _check_raw(prompts: Sequence[NamedPrompt], arguments: Mapping[str, Any], turns: str) -> None:
    asked = {
        "--system": arguments["system"],
        "--template-arg": arguments["template_arg"],
        "--turns all": turns == EVERY,
    }
    if wrong := [option for option, value in asked.items() if value]:
        raise ValueError(f"{wrong[0]}: prompts are raw text here; give an oracle with a chat template, or --template")
    if told := next((prompt.name for prompt in prompts if prompt.messages), None):
        raise ValueError(f"--prompts: {told} is a conversation, and prompts are raw text here; give --template")


def _to_conversation(prompt: NamedPrompt, system: str | None) -> NamedPrompt:
    messages = [dict(message) for message in prompt.messages] or [_of_user(prompt.text)]
    return replace(prompt, messages=tuple(with_system(messages, system)))


def _of_user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def _later_turns(prompts: Sequence[NamedPrompt]) -> list[NamedPrompt]:
    """Return the later turns of all prompts, second ones before third ones."""
    found = []
    for at in range(max((len(prompt.later_turns) for prompt in prompts), default=0)):
        for prompt in prompts:
            if at < len(prompt.later_turns):
                name, text = _turn_name(prompt.name, at + 2), prompt.later_turns[at]
                before = _turn_name(prompt.name, at + 1)
                found.append(LaterTurn(name, prompt.kind, text, (_of_user(text),), after=before, turn=at + 2))
    return list[NamedPrompt](found)


def _turn_name(name: str, turn: int) -> str:
    return name if turn == 1 else f"{name}, turn {turn}"


def prompt_facts(oracle: Oracle, prompts: Iterable[NamedPrompt]) -> dict[str, Any]:
    """Return what a summary says of the prompts of a run.

    Returns:
        Name and SHA-256 of the chat template and its arguments (None: prompts are raw text), ids and strings that end a
        request, the number of prompts, and the SHA-256 of their ids. The hash reads, for each prompt in order, the
        number of ids and the ids, as little-endian int64. Prompts that the oracle cannot take are left out.
    """
    template: ChatTemplate | None = capability_of(oracle, "chat_template")
    digest, count = hashlib.sha256(), 0
    for prompt in prompts:
        try:
            ids = encode_prompt(oracle, prompt.start, prompt.name)
        except ValueError:  # its unit says so
            continue
        digest.update(np.asarray([len(ids), *ids], dtype="<i8").tobytes())
        count += 1
    own = (
        None
        if template is None
        else {"name": template.name, "sha256": template.sha256, "arguments": template.arguments}
    )
    return {
        "template": own,
        "stop_ids": list(oracle.eos_ids),
        "stop_strings": [] if template is None else list(template.stop_strings),
        "prompts": count,
        "prompts_sha256": digest.hexdigest(),
    }
