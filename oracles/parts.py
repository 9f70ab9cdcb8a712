"""What a call for a part of a scoring pass must say."""

from collections.abc import Sequence

from torch import Tensor

from specdec.contracts import Want


def first_layer(
    layers: tuple[int, int] | None,
    stream: Tensor | None,
    shape: tuple[int, ...],
    want: Want,
    hidden: Sequence[int],
    num_layers: int,
) -> int:
    """Return the first layer to run, after checking that a call for a part of the layers makes sense.

    Args:
        layers, stream, want, hidden: see ``specdec.contracts.LayeredOracle.score``.
        shape: what the stream's must be.
        num_layers: of the model.

    Raises:
        ValueError: layers that do not exist, a stream that is missing, misshapen or not asked for, logits or hidden
            layers of a part that does not reach them.
    """
    first, last = (0, num_layers) if layers is None else layers
    if not 0 <= first < last <= num_layers:
        raise ValueError(f"layers is {layers}; give (first, last) with 0 <= first < last <= {num_layers}")
    if (stream is None) != (first == 0):
        raise ValueError(f"layers is {layers}: give a stream where first is above 0, and none where it is 0")
    if stream is not None and stream.shape != shape:
        raise ValueError(f"stream has shape {tuple(stream.shape)}; nodes and model imply {shape}")
    if last < num_layers and want != "none":
        raise ValueError(f"layers is {layers} and want {want!r}: only the last layer gives logits; set want='none'")
    if not all(first <= layer < last for layer in hidden):
        raise ValueError(f"hidden asks for layers {tuple(hidden)}, and this pass runs {first}..{last - 1} only")
    return first
