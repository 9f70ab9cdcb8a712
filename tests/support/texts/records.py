"""Three records whose prompts begin alike, and a tokenizer."""

import numpy as np

from oracles import RecordedText
from oracles.checkpoints.loading import load_tokenizer
from specdec.contracts import IntArray

# The second prompt goes on like the first record until its own end; the third parts from it within the prompt.
PROMPTS = [[1, 2], [1, 2, 3, 9], [1, 5]]
OUTPUTS = [[3, 4, 5, 3, 4], [7], [3, 3, 8]]
TOKENIZER = load_tokenizer("code")


def recorded(**options: int) -> RecordedText:
    return RecordedText(PROMPTS, OUTPUTS, **options)


def rows_of(*rows: int) -> IntArray:
    return np.array(rows, dtype=np.int64)
