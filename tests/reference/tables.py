"""Conditional tables as plain numpy: what a sequence's law is, written without anything of ours."""

import itertools

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def random_table(vocab_size: int, order: int, seed: int, zeros: float = 0.0) -> Floats:
    """Return ``[V] * (order + 1)`` asymmetric laws; about a share ``zeros`` of the entries is 0, never a whole law."""
    generator = np.random.default_rng(seed)
    table = generator.dirichlet(np.full(vocab_size, 0.7), size=(vocab_size,) * order)
    table = np.where(generator.random(table.shape) < zeros, 0.0, table + 1e-3)
    table[..., 0] += 1e-3 * (table.sum(-1) == 0)
    return table / table.sum(-1, keepdims=True)


def law_after(table: Floats, context: tuple[int, ...]) -> Floats:
    """Return the law of the id after ``context`` (padded on the left with id 0)."""
    order = table.ndim - 1
    padded = (0,) * order + context
    return table[padded[len(padded) - order :]] if order else table


def warp(law: Floats, temperature: float = 1.0, top_k: int = 0) -> Floats:
    """Return the law after temperature (0: the lowest best id) and top-k."""
    if temperature == 0:
        return np.eye(len(law))[int(law.argmax())]
    heated = np.where(law > 0, law, 0.0) ** (1 / temperature)
    if top_k:
        heated = np.where(heated >= np.sort(heated)[-top_k], heated, 0.0)
    return heated / heated.sum()


def warped_table(table: Floats, temperature: float = 1.0, top_k: int = 0) -> Floats:
    """Return the table with every law warped."""
    flat = table.reshape(-1, table.shape[-1])
    return np.stack([warp(law, temperature, top_k) for law in flat]).reshape(table.shape)


def sequence_law(table: Floats, prompt: tuple[int, ...], length: int) -> Floats:
    """Return ``[V] * length``: the probability of every continuation of ``prompt``."""
    size = table.shape[-1]
    law = np.zeros((size,) * length)
    for ids in itertools.product(range(size), repeat=length):
        law[ids] = np.prod([law_after(table, prompt + ids[:i])[ids[i]] for i in range(length)])
    return law
