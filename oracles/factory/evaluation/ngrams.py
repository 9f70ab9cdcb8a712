"""An n-gram model beside the transformers: its laws after every prefix, its bits per byte, and those of xz."""

import lzma
import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from tokenizers import Tokenizer
from torch import Tensor

from specdec.contracts import IntArray
from specdec.drafting import NGramModel

# Number of laws held at once, each as wide as the vocabulary.
LAWS_AT_ONCE = 1024


def contexts(ids: ArrayLike, count: int) -> IntArray:
    """Return the last ids of every prefix of a text.

    Args:
        ids: ``[T]``, at least one.
        count: how many ids of each prefix.

    Returns:
        ``[T + 1, count]``, newest first, from the empty prefix to the whole text; -1 if there are fewer.
    """
    text = np.asarray(ids, dtype=np.int64)
    at = np.arange(len(text) + 1)[:, None] - 1 - np.arange(count)
    return np.where(at >= 0, text[np.maximum(at, 0)], -1)


def ngram_logits(model: NGramModel, rows: Tensor) -> Tensor:
    """Return the model's log-probabilities ``[B, T, V]`` of the next id after every prefix of rows ``[B, T]``."""
    recent = np.concatenate([contexts(row, model.order - 1)[1:] for row in rows.cpu().numpy()])
    laws = torch.from_numpy(np.log(model.laws(model.states(recent))))
    return laws.view(*rows.shape, -1).to(rows.device)


def ngram_bits_per_byte(model: NGramModel, tokenizer: Tokenizer, texts: Sequence[str]) -> float:
    """Return the bits that the model spends on a byte of the texts; the ends of texts are not counted.

    Args:
        model: of the tokenizer's vocabulary.
        tokenizer: cuts the texts.
        texts: whole files; n-grams do not span them.

    Cost: O(V) and more for every token.
    """
    nats = 0.0
    for text in texts:
        ids = np.array(tokenizer.encode(text).ids)
        states = model.states(contexts(ids, model.order - 1)[:-1])
        for first in range(0, len(ids), LAWS_AT_ONCE):
            part = slice(first, first + LAWS_AT_ONCE)
            laws = model.laws(states[part])
            nats -= float(np.log(laws[np.arange(len(laws)), ids[part]]).sum())
    return nats / math.log(2) / sum(len(text.encode()) for text in texts)


def xz_bits_per_byte(texts: Sequence[str]) -> float:
    """Return the bits that ``xz -9e`` spends on a byte of the texts in one piece, without having read other text."""
    data = "".join(texts).encode()
    return 8 * len(lzma.compress(data, preset=9 | lzma.PRESET_EXTREME)) / len(data)
