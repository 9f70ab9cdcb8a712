"""What is asked: by the model itself, after the opening of a user's turn, or by us about a passage."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from oracles.factory.dialogues.documents import Documents

Kind = Literal["chat", "two turns", "summary", "answer", "translation"]
KINDS: tuple[Kind, ...] = ("chat", "two turns", "summary", "answer", "translation")
# Temperatures of the answers, by thirds.
TEMPERATURES = (0.0, 0.7, 1.0)
# The first words of half of the questions that the model writes: left to itself, such a model asks for planning help.
OPENINGS = (
    *("Who", "When did", "Where is", "How many", "What is the", "Which", "Why do", "Is it true that"),
    *(
        "If",
        "Calculate",
        "Solve",
        "A farmer has",
        "There are",
        "Compare",
        "Explain",
        "Describe",
        "List",
        "Imagine you are",
    ),
    *("Write a", "Write a story about", "Write a Python function that", "Rewrite this sentence:", "Give me", "Suggest"),
)
LANGUAGES = ("German", "French", "Spanish")
SUMMARY = (
    "Summarize: {passage}",
    "Summarize the following text in a few sentences.\n\n{passage}",
    "{passage}\n\nGive a short summary of the text above.",
    "What are the main points of this text?\n\n{passage}",
)
# Texts that the model continues, up to the end of the line or of the turn.
QUESTION = (
    "{passage}\n\nQuestion:",
    "Read the text and answer the question.\n\nText: {passage}\n\nQuestion:",
    "Use the text below to answer.\n\n{passage}\n\nWhat",
    "{passage}\n\nAccording to the text, how",
)
TRANSLATION = (
    "Translate English to {language}: {sentence}",
    "Translate into {language}: {sentence}",
    "How do you say this in {language}? {sentence}",
)


@dataclass(frozen=True)
class DialogueTask:
    """How a conversation begins.

    Attributes:
        kind: of the conversation.
        user: the user's turn, or its beginning if ``is_open``.
        is_open: whether the model writes the rest of the turn.
        source: of the document that it is about, which decides the split; "" if it is about none.
        temperature: of the answers.
    """

    kind: Kind
    user: str
    is_open: bool
    source: str
    temperature: float


def tasks(documents: Documents, count: int, seed: Sequence[int]) -> list[DialogueTask]:
    """Return ``count`` beginnings: half of them open, half about passages, with two conversations for each passage."""
    return [_task(documents, i, (*seed, i), (*seed, i // 4 * 4)) for i in range(count)]


def _task(documents: Documents, index: int, own: Sequence[int], shared: Sequence[int]) -> DialogueTask:
    """Return a beginning: of each four neighbours, two are open and two are about one passage."""
    draw = np.random.default_rng(list(own))
    place = index % 4
    temperature = TEMPERATURES[(index // 4 + place) % len(TEMPERATURES)]
    if place < 2:
        return _open(draw, temperature)
    if draw.random() < 0.2:
        return _translation(documents, draw, own, temperature)
    passage = documents.passage(shared)
    forms, is_open = ((SUMMARY, False), (QUESTION, True))[place - 2]
    user = _one(draw, forms).format(passage=passage.text)
    return DialogueTask("answer" if is_open else "summary", user, is_open, passage.source, temperature)


def _open(draw: np.random.Generator, temperature: float) -> DialogueTask:
    chance = draw.random()
    if chance < 0.1:
        user = f"Translate {_one(draw, LANGUAGES)} to English:"
        return DialogueTask("translation", user, True, "", temperature)
    user = "" if chance < 0.55 else _one(draw, OPENINGS)
    return DialogueTask("two turns" if draw.random() < 0.3 else "chat", user, True, "", temperature)


def _translation(
    documents: Documents, draw: np.random.Generator, own: Sequence[int], temperature: float
) -> DialogueTask:
    sentence = documents.sentence(own)
    user = _one(draw, TRANSLATION).format(language=_one(draw, LANGUAGES), sentence=sentence.text)
    return DialogueTask("translation", user, False, sentence.source, temperature)


def _one(draw: np.random.Generator, choices: Sequence[str]) -> str:
    return choices[int(draw.integers(len(choices)))]
