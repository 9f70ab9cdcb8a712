"""Talk to a model: answers appear as they are written, in the colours of ``watch``, then tokens a second and tau.

``python -m experiments.chat`` talks to SmolLM2, which ``python -m oracles.smollm2`` fetches, once. Every line of the
terminal, or of a pipe, is a question that continues the conversation. Ctrl-C stops an answer, ``/new`` begins another
conversation, ``/quit`` or Ctrl-D ends. Question i, from 0, has the seed (SEED, i).
"""

import importlib
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from rich.console import Console
from rich.text import Text

from exactspec.ending import as_program
from exactspec.parser import refusing
from experiments.harness.building import build_shared
from experiments.harness.conversations import template_of
from experiments.harness.findings.colouring import Palette, TextPiece
from experiments.harness.live_run import Run, live_parser
from experiments.harness.models import load_oracle
from experiments.harness.rule_choice import rule_for, sampling_of
from oracles.checkpoints.chat_files import give_template
from specdec import SpeculativeDecoder
from specdec.contracts import capability_of
from specdec.prompts.chat import with_system
from specdec.requests import FinishReason, cut_text, encode_prompt
from specdec.stats import count_of

NEW, QUIT = "/new", "/quit"
ORACLE = "smollm2"


def parse(argv: Sequence[str] | None) -> dict[str, Any]:
    """Return the arguments; without --arithmetic the published model's products are of whole numbers."""
    default = f"float32; int8 for {ORACLE} on the cpu where --dtype and --weights are not given"
    # Of all strategies it is the fastest on that model, greedily: benchmarks/every-strategy.md.
    arguments = vars(live_parser(__doc__, ORACLE, "suffix_automaton", 512, default).parse_args(argv))
    silent = all(arguments[name] is None for name in ("arithmetic", "dtype", "weights"))
    chosen = "int8" if silent and (arguments["oracle"], arguments["device"]) == (ORACLE, "cpu") else None
    return {**arguments, "arithmetic": arguments["arithmetic"] or chosen}


class Chat:
    """A conversation on a console, one answer after the other.

    Args:
        arguments: of the command line.
        console: shows the answers.

    Attributes:
        said: messages so far.

    Raises:
        ValueError: model, template, strategy, rule or sampling cannot be used.

    Guarantee: greedy and coupled answers are plain decoding's, of the same conversation from its beginning, if the
        oracle is ``bitwise``, and else up to numerics; others follow its law.
    Cost: a turn reads what is new and, if the answer before it was interrupted, that answer; the whole conversation if
        the oracle's rows are not tables of pages.
    """

    def __init__(self, arguments: Mapping[str, Any], console: Console) -> None:
        self._console, self._palette = console, Palette()
        self.oracle, name = load_oracle(arguments), arguments["strategy"]
        template = template_of(arguments, self.oracle)
        if template is None:
            raise ValueError("there is no chat template to talk under: give --template FILE, or --template vicuna")
        give_template(self.oracle, template)
        source = build_shared(name, arguments, self.oracle)
        self.decoder = SpeculativeDecoder(
            self.oracle,
            source,
            rule_for(arguments["rule"], source),
            prefix_sharing=capability_of(self.oracle, "prefix_key") is not None,
            kernels=arguments["kernels"],
        )
        self._sampling, self._system = sampling_of(arguments), arguments["system"]
        self._seed, self._max_new_tokens = arguments["seed"], arguments["max_new_tokens"]
        self._stop_strings, self._num_answers = template.stop_strings, 0
        self.said: list[dict[str, Any]] = []

    def ask(self, question: str) -> bool:
        """Answer a question and keep the answer, or say why not and keep nothing; return whether it was answered."""
        with holding_ctrl_c() as pressed:
            try:
                asked = with_system([*self.said, {"role": "user", "content": question}], self._system)
                run = self._start(asked)
            except ValueError as error:
                print(f"chat: {error}", file=sys.stderr)
                return False
            while run.state.has_work and not pressed:
                self._show(run.step())
            self._show([run.rest()])
            self.said = [*asked, {"role": "assistant", "content": self._end(run)}]
        self._num_answers += 1
        return True

    def _start(self, asked: Sequence[Mapping[str, Any]]) -> Run:
        """Return the generation that answers; ValueError: the conversation cannot be put to the model."""
        length, room = len(encode_prompt(self.oracle, asked, "the conversation")), self.oracle.max_context
        if length >= room:
            raise ValueError(
                f"with this question the conversation has {length:,} tokens, and the model's context holds {room:,}: "
                f"{NEW} begins another conversation"
            )
        seeds = [(self._seed, self._num_answers)]
        return Run(self.decoder, self.decoder.start([asked], self._max_new_tokens, self._sampling, seeds))

    def _end(self, run: Run) -> list[int] | str:
        """Show the figures of an answer; return its ids, or its text if a stop string was cut off."""
        ids, reason = run.state.emitted()[0], run.finish_reason
        if reason is not None:
            run.state.end_run()
        self._tell(run, reason)
        return cut_text(self.oracle.tokenizer, ids, self._stop_strings, reason) if reason == "stop" else ids

    def _show(self, pieces: Sequence[TextPiece]) -> None:
        self._console.print(self._palette.segments(pieces), soft_wrap=True)

    def _tell(self, run: Run, reason: FinishReason | None) -> None:
        """Print the figures of an answer, and why it is incomplete (None: it was interrupted)."""
        limit = "--max-new-tokens" if run.tokens == self._max_new_tokens else f"the context is full, {NEW} begins anew"
        speed = None if run.speed is None else f"{run.speed:,.0f} tokens/s"
        cut = {None: "interrupted", "length": f"length ({limit})"}.get(reason)
        tau = f"tau {run.block_efficiency:.2f}" if run.steps else None
        figures = [count_of(run.tokens, "token"), speed, tau, cut]
        told = [Text("   ".join(filter(None, figures)), "bold")]
        told += [self._palette.legend()] if self._console.is_terminal else []
        self._console.print(Text(), Text("   ").join(told), Text(), sep="\n", soft_wrap=True)


@contextmanager
def holding_ctrl_c() -> Iterator[list[int]]:
    """Keep Ctrl-C in a list, so that the step under way is finished; if it is pressed again, it is raised."""
    pressed: list[int] = []

    def press(number: int, frame: Any) -> None:
        if pressed:
            raise KeyboardInterrupt
        pressed.append(number)

    before = signal.signal(signal.SIGINT, press)
    try:
        yield pressed
    finally:
        signal.signal(signal.SIGINT, before)


def lines() -> Iterator[str]:
    """Yield what a user writes, line by line, up to ``/quit`` or the end; empty lines are passed over."""
    sign = "> " if sys.stdin.isatty() else ""
    with suppress(ImportError):
        importlib.import_module("readline")  # with it, ``input`` lets lines be edited and called back
    with suppress(EOFError):
        while (line := input(sign).removeprefix("\ufeff").strip()) != QUIT:  # a file may begin with the mark
            if line:
                yield line


def main(argv: Sequence[str] | None = None) -> int:
    """Talk; return 1 if a question could not be answered."""
    arguments = parse(argv)
    if arguments["threads"] is not None:
        torch.set_num_threads(arguments["threads"])
    console, status = Console(highlight=False), 0
    with refusing("chat"):
        chat = Chat(arguments, console)
        with suppress(KeyboardInterrupt):  # at the prompt, or twice in an answer
            for line in lines():
                if line == NEW:
                    chat.said = []
                elif not chat.ask(line):
                    status = 1
    if sys.stdin.isatty():
        console.print()
    return status


if __name__ == "__main__":
    as_program(main)
