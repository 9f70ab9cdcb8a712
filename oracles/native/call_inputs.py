"""The inputs of a drafting call, for compiled code: committed ids, changes of logits, numbers to draw by."""

import numpy as np
from numpy.typing import NDArray

from oracles.native import bindings
from oracles.native.host_memory import FLOAT64, INT64, to_bytes
from specdec.contracts import Adjustments, Draws, IntArray
from specdec.kernels.compiled import FILTERS, place


def text_of(ids: IntArray, ends: IntArray, batch: int) -> bindings.Text:
    """Return the committed ids in the rows of a call; the structure keeps the memory that it points to.

    Args:
        ids: ``[B, L]``.
        ends: ``[B]`` how many ids of each row are committed.
        batch: B.

    Raises:
        ValueError: they have other shapes, or are not arrays of integers.

    Cost: none for whole rows of int64; else a copy of ``ids``.
    """
    for name, numbers, shape in (("ids", ids, "[{}, L]"), ("ends", ends, "[{}]")):
        is_array = isinstance(numbers, np.ndarray)
        fits = is_array and numbers.ndim == shape.count(",") + 1 and len(numbers) == batch
        if not fits or numbers.dtype.kind not in "iu":
            given = f"{numbers.dtype} of shape {numbers.shape}" if is_array else f"a {type(numbers).__name__}"
            raise ValueError(f"{name} must be an array of the host of integers {shape.format(batch)}, not {given}")
    whole = ids if ids.dtype == INT64 and ids.flags.c_contiguous else np.ascontiguousarray(ids, INT64)
    text = bindings.Text(place(whole), to_bytes(ends), ids.shape[1])
    text.whole = whole
    return text


def adjustments_of(given: Adjustments, batch: int) -> bindings.Adjustments:
    """Return the adjustments of the rows of a call.

    Raises:
        ValueError: they do not fit these rows.
    """
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
    """Raise ValueError if compiled code would read beyond the end of an array."""
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


def draws_of(what: str, batch: int, draws: Draws, laws: NDArray[np.float32] | None) -> bindings.Draws:
    """Return how ids are drawn; the caller keeps ``laws``, to which the structure points.

    Args:
        what: is drawn, for the message.
        batch: B.
        draws: of B rows.
        laws: where laws are written, ``[R, V]`` or ``[B, N, V]``; None: nothing is drawn.

    Raises:
        ValueError: filters are not ``[F, B]``, or bases or firsts not ``[B]``.
    """
    filters, keys = draws
    fits = filters.shape == (len(FILTERS), batch)
    if not fits or not (keys is None or keys.bases.shape == keys.firsts.shape == (batch,)):
        shapes = [array.shape for array in (filters, *(() if keys is None else (keys.bases, keys.firsts)))]
        raise ValueError(f"{what} of {batch} rows cannot be drawn by filters, bases and firsts of shapes {shapes}")
    if keys is None or laws is None:
        return bindings.Draws(to_bytes(filters, FLOAT64))
    numbers = to_bytes(keys.bases), to_bytes(keys.firsts)
    return bindings.Draws(to_bytes(filters, FLOAT64), *numbers, place(laws), keys.is_race)
