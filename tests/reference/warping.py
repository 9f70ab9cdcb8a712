"""Sampling parameters applied to one law with plain numpy, one id at a time."""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def penalised(
    logits: Sequence[float],
    prompt: Sequence[int],
    output: Sequence[int],
    eos_ids: Sequence[int] = (),
    *,
    logit_bias: Mapping[int, float] | None = None,
    repetition_penalty: float = 1.0,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    min_new_tokens: int = 0,
) -> list[float]:
    """Return the logits after everything that comes before the temperature."""
    values = [float(x) for x in logits]
    for token, bias in (logit_bias or {}).items():
        values[token] += bias
    for token in set(prompt) | set(output):
        above = values[token] > 0
        values[token] = values[token] / repetition_penalty if above else values[token] * repetition_penalty
    for token in set(output):
        values[token] -= presence_penalty
    for token in output:
        values[token] -= frequency_penalty
    if len(output) < min_new_tokens:
        for token in eos_ids:
            values[token] = -math.inf
    return values


def filtered(
    logits: Sequence[float], temperature: float, top_k: int = 0, top_p: float = 1.0, min_p: float = 0.0
) -> Floats:
    """Return the law of penalised logits after temperature, top-k, top-p and min-p, in this order."""
    size = len(logits)
    if temperature == 0:
        return np.eye(size)[max(range(size), key=lambda i: (logits[i], -i))]
    heated = [x / temperature for x in logits]
    if 0 < top_k < size:
        floor = sorted(heated, reverse=True)[top_k - 1]
        heated = [x if x >= floor else -math.inf for x in heated]
    top = max(heated)
    weights = [math.exp(x - top) for x in heated]
    probs = [w / math.fsum(weights) for w in weights]
    if top_p < 1:
        kept: list[int] = []
        for i in sorted(range(size), key=lambda i: (-probs[i], i)):
            if math.fsum(probs[j] for j in kept) < top_p:
                kept.append(i)
        probs = [p if i in kept else 0.0 for i, p in enumerate(probs)]
    floor = min_p * max(probs)
    probs = [p if p >= floor else 0.0 for p in probs]
    return np.array(probs) / math.fsum(probs)
