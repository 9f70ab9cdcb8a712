"""Generations in colour: which tokens were drafted, and by what, which were recovered, and which are bonus tokens."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.text import Text

from experiments.harness.arms import PLAIN
from experiments.harness.run_outcome import Outcome
from specdec.prompts import NamedPrompt
from specdec.requests import TextHolder

PROMPT, RECOVERED, BONUS = "prompt", "recovered", "bonus"
_FIXED = {PROMPT: "dim", RECOVERED: "bold red", BONUS: "green"}
# C0 and C1 but for line ends and tabs.
_SHOWN = {code: "\ufffd" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
_OF_SOURCES = ("black on cyan", "black on yellow", "black on magenta", "white on blue", "black on white")


@dataclass(frozen=True)
class TextPiece:
    """Text and where it came from: a draft source's name, ``RECOVERED`` or ``BONUS``."""

    text: str
    origin: str


# What one step of a request emitted: each id, and where it came from.
StepOutput = Sequence[tuple[int, str]]


def step_output(tokens: Sequence[int], accepted: int, sources: Sequence[str], at_leaf: bool) -> StepOutput:
    """Return what a step emitted.

    Args:
        tokens: ids.
        accepted: how many of them were drafted.
        sources: of each of these, the source's name.
        at_leaf: whether the whole path of the draft was accepted, so that what follows is a bonus.
    """
    drafted = min(accepted, len(tokens))
    own = BONUS if at_leaf else RECOVERED
    return [*zip(tokens, [*sources[:drafted], *[own] * (len(tokens) - drafted)], strict=True)]


def steps_in(columns: Mapping[str, Sequence[Any]], request: int) -> Iterator[StepOutput]:
    """Yield the steps of one request of a run, from the columns of its records (of several rounds the first)."""
    rounds = columns.get("round", [0] * len(columns["request"]))
    for i, number in enumerate(columns["request"]):
        if number == request and rounds[i] == 0:
            yield step_output(
                columns["tokens"][i],
                columns["num_accepted"][i],
                columns["path_sources"][i],
                columns["stopped_at_leaf"][i],
            )


class Pieces:
    """Cut one request's output into pieces as it grows; text that is not certain yet is kept for a later token.

    Args:
        tokenizer: of the oracle; None: ids are shown.
        stop_strings: what the output is cut before.
    """

    def __init__(self, tokenizer: Any | None, stop_strings: Sequence[str] = ()) -> None:
        self._tokenizer, self._holder = tokenizer, TextHolder(tokenizer, stop_strings)
        self._ids: list[int] = []

    def of(self, step: StepOutput) -> list[TextPiece]:
        """Return what a step added."""
        pieces = []
        for token, origin in step:
            self._ids.append(token)
            pieces.append(TextPiece(self._text_of(token), origin))
        return [piece for piece in pieces if piece.text]

    def _text_of(self, token: int) -> str:
        return f"{token} " if self._tokenizer is None else self._holder.push(self._ids, final=False)

    def rest(self) -> str:
        """Return the text that was held back to the end."""
        return self._holder.push(self._ids, final=True)


class Palette:
    """A style for every origin; sources get theirs in order of appearance."""

    def __init__(self) -> None:
        self._styles = dict(_FIXED)

    def style(self, origin: str) -> str:
        """Return the style of an origin."""
        number = len(self._styles) - len(_FIXED)
        return self._styles.setdefault(origin, _OF_SOURCES[number % len(_OF_SOURCES)])

    def text(self, pieces: Sequence[TextPiece]) -> Text:
        """Return pieces in their styles; control characters, which a terminal would obey, are shown as U+FFFD."""
        return Text.assemble(*((piece.text.translate(_SHOWN), self.style(piece.origin)) for piece in pieces))

    def segments(self, pieces: Sequence[TextPiece]) -> Segments:
        """Return pieces as ``text`` does, to continue a line: a console does not wrap them, and keeps tabs."""
        found = []
        for piece in pieces:
            style = Style.parse(self.style(piece.origin))
            parts = re.split("(\n)", piece.text.translate(_SHOWN))
            found += [Segment(part, None if part == "\n" else style) for part in parts]
        return Segments(found)

    def legend(self) -> Text:
        """Return the names of all origins so far but the prompt, each in its style."""
        names = [name for name in self._styles if name != PROMPT]
        ordered = [*names[len(_FIXED) - 1 :], *names[: len(_FIXED) - 1]]
        return Text("  ").join(Text(f" {name} ", self._styles[name]) for name in ordered)


def colour_text(prompt: str, steps: Sequence[StepOutput], tokenizer: Any | None, palette: Palette) -> Text:
    """Return a prompt and what a request's steps wrote after it."""
    cut, pieces = Pieces(tokenizer), [TextPiece(prompt, PROMPT)]
    for step in steps:
        pieces += cut.of(step)
    last = pieces[-1].origin if len(pieces) > 1 else BONUS
    return palette.text([*pieces, TextPiece(cut.rest(), last)])


def show_outputs(outcome: Outcome, prompts: Sequence[NamedPrompt], tokenizer: Any | None, count: int) -> None:
    """Print the first outputs of every arm but plain decoding, coloured if the terminal has colours."""
    console, palette = Console(highlight=False, soft_wrap=True), Palette()
    texts = {prompt.name: prompt.text for prompt in prompts}
    left = {arm: count for arm in outcome.arms if arm != PLAIN}
    for entry in outcome.done:
        for arm in left:
            columns = entry["arms"][arm]["records"]
            for request, name in enumerate(entry["prompts"] if columns else ()):
                if left[arm]:
                    left[arm] -= 1
                    console.print(Text(f"\n{arm}: {name}", "bold"))
                    console.print(colour_text(texts[name], list(steps_in(columns, request)), tokenizer, palette))
    console.print(Text("\n"), palette.legend())
