"""What changes the logits of drafted nodes, handed to compiled code."""

from oracles.native import bindings
from oracles.native.host_memory import FLOAT64, to_bytes
from specdec.contracts import Adjustments


def adjusting(given: Adjustments | None, batch: int) -> bindings.Adjustments | None:
    """Return the adjustments of the rows of a call; None if there are none.

    Raises:
        ValueError: they are not of these rows.
    """
    if given is None:
        return None
    _check(given, batch)
    stride = given.ids.shape[1]
    return bindings.Adjustments(
        to_bytes(given.ids),
        to_bytes(given.num_committed),
        to_bytes(given.prompt_lengths),
        to_bytes(given.penalties, FLOAT64),
        to_bytes(given.bias_ends),
        to_bytes(given.bias_ids),
        to_bytes(given.biases, FLOAT64),
        to_bytes(given.min_new_tokens, FLOAT64),
        to_bytes(given.eos_ids),
        stride,
        len(given.eos_ids),
    )


def _check(given: Adjustments, batch: int) -> None:
    """Raise ValueError if compiled code would read beyond an array."""
    stride, num_biases = given.ids.shape[-1] if given.ids.ndim else 0, given.biases.size
    shapes: dict[str, tuple[int, ...]] = {"ids": (batch, stride), "penalties": (3, batch)}
    shapes |= dict.fromkeys(("num_committed", "prompt_lengths", "bias_ends", "min_new_tokens"), (batch,))
    shapes |= {"bias_ids": (num_biases,), "biases": (num_biases,), "eos_ids": (given.eos_ids.size,)}
    wrong = {name: found for name, shape in shapes.items() if (found := getattr(given, name).shape) != shape}
    if wrong:
        wanted = {name: shapes[name] for name in wrong}
        raise ValueError(f"adjustments of {batch} rows cannot have shapes {wrong}; give {wanted}")
    lengths, ends = given.num_committed.tolist(), [0, *given.bias_ends.tolist()]
    if not 0 <= min(lengths) <= max(lengths) <= stride:
        raise ValueError(f"adjustments of {batch} rows cannot have num_committed {lengths}: they have {stride} ids")
    if ends != sorted(ends) or ends[-1] != num_biases:
        raise ValueError(
            f"adjustments of {batch} rows cannot have bias_ends {ends[1:]}: they must rise to the {num_biases} biases"
        )
