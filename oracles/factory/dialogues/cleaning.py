"""Which of the questions that a model wrote are kept."""

import re
from collections.abc import Sequence

import numpy as np

from oracles.factory.evaluation.loops import loop_mask

MOST_CHARS = 1200
# The largest share of non-ASCII letters in an English question.
FOREIGN = 0.02
_WORDS = """
a an and any are as at be by can do does for from had has have how i if in is it me my of on or please that the there
this to was we were what when where which who why will with would you your write
"""
_COMMON = frozenset(_WORDS.split())


def fault_of_question(text: str, ids: Sequence[int], ended: bool, is_english: bool = True) -> str | None:
    """Return why a question is not kept, or None.

    Args:
        text: what the model wrote as the user's turn, or as its continuation.
        ids: the same as ids.
        ended: whether the turn ended by itself.
        is_english: whether it must be English.
    """
    words = re.findall(r"[^\W\d_]+", text.lower())
    letters = [c for c in text if c.isalpha()]
    if not ended:
        return "no end"
    if len(words) < 2 or len(text) > MOST_CHARS:
        return "too short or too long"
    if is_english and sum(not c.isascii() for c in letters) > FOREIGN * len(letters):
        return "another language"
    if is_english and not _COMMON.intersection(words):
        return "another language"
    if loop_mask(np.asarray(ids)).any():
        return "a loop"
    return None


def plain_form(text: str) -> str:
    """Return what duplicates share: the letters and digits of a text in lower case."""
    return re.sub(r"[\W_]+", "", text.lower())
