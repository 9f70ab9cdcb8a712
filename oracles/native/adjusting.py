"""What changes the logits of drafted nodes, handed to compiled code."""

import numpy as np

from oracles.native import bindings
from oracles.native.memory import packed
from specdec.contracts import Adjustments


def adjusting(given: Adjustments | None, batch: int) -> bindings.Adjustments | None:
    """Return the adjustments of the rows of a call; None if there are none.

    Raises:
        ValueError: they are not of these rows.
    """
    if given is None:
        return None
    numbers = given.num_committed, given.prompt_lengths, given.bias_ends, given.min_new_tokens
    shapes = [array.shape for array in (given.ids[:, 0], *numbers, given.penalties)]
    stride, num_biases = given.ids.shape[1], int(given.bias_ends[-1])
    lists = len(given.bias_ids), len(given.biases)
    if shapes != [*[(batch,)] * 5, (3, batch)] or max(given.num_committed) > stride or lists != (num_biases,) * 2:
        raise ValueError(
            f"adjustments of {batch} rows cannot have ids, num_committed, prompt_lengths, bias_ends, min_new_tokens "
            f"and penalties of {shapes} rows, {max(given.num_committed)} of {stride} ids, and {lists} biases of "
            f"{num_biases}"
        )
    return bindings.Adjustments(
        packed(given.ids),
        packed(given.num_committed),
        packed(given.prompt_lengths),
        packed(given.penalties, np.float64),
        packed(given.bias_ends),
        packed(given.bias_ids),
        packed(given.biases, np.float64),
        packed(given.min_new_tokens, np.float64),
        packed(given.eos_ids),
        stride,
        len(given.eos_ids),
    )
