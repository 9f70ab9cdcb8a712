"""What the backends of a transformer share: its shape, and checks of calls and of parts of calls."""

from collections.abc import Callable, Sequence
from typing import Protocol, get_args

import torch
from torch import Tensor

from oracles.quantisation.formats import rounds_inputs
from oracles.transformer.config import TransformerConfig, check_choice
from specdec.contracts import Oracle, OracleDefaults, Want, describe_oracle
from specdec.prompts.chat import ChatTemplate

WANTS = get_args(Want)


class _StoredOracle(Oracle, Protocol):
    @property
    def weight_type(self) -> str:
        """How the weights are stored: the name of a dtype or a format."""


class TransformerShape(OracleDefaults):
    """The shape of a transformer, whatever computes its passes."""

    config: TransformerConfig
    chat_template: ChatTemplate | None = None

    @property
    def vocab_size(self) -> int:
        """True number of ids; logits have this width."""
        return self.config.vocab_size

    @property
    def max_context(self) -> int:
        """Positions that the model can serve."""
        return self.config.max_context

    @property
    def num_layers(self) -> int:
        """Number of layers; a pass can be cut between any two."""
        return self.config.num_layers

    @property
    def hidden_layers(self) -> int:
        """Number of layers whose outputs ``score(hidden=...)`` returns."""
        return self.config.num_layers

    @property
    def hidden_size(self) -> int:
        """Width of the residual stream."""
        return self.config.hidden_size

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding table, including those that pad the vocabulary."""
        return self.config.embedding_rows

    def __repr__(self: _StoredOracle) -> str:
        return describe_oracle(self, *(["products of whole numbers"] if rounds_inputs(self.weight_type) else []))


def check_call(longest: int, max_context: int, want: Want, hidden: Sequence[int], num_layers: int) -> None:
    """Check what a call asks for, and that its rows have a position left.

    Args:
        longest: the most tokens that a row holds.
        max_context: positions that the model can serve.
        want, hidden: see ``specdec.contracts.Oracle.score``.
        num_layers: whose outputs can be returned.

    Raises:
        ValueError: an unknown ``want`` or layer, or a pending token beyond ``max_context``.
    """
    if want not in WANTS:
        check_choice("want", want, Want)
    if hidden and (wrong := [layer for layer in hidden if not 0 <= layer < num_layers]):
        raise ValueError(f"hidden asks for layers {wrong}; the model has layers 0..{num_layers - 1}")
    if longest >= max_context:
        raise ValueError(f"a row holds {longest} tokens; max_context {max_context} has no position left")


def check_plain_call(tokens: Tensor, vocab_size: int, want: Want, hidden: Sequence[int], what: str) -> None:
    """Refuse a call for tokens ``[B, M]`` that an oracle without layers cannot answer; the message says ``what`` it is.

    Raises:
        ValueError: hidden layers, an unknown ``want``, or an id outside the vocabulary.
    """
    if len(hidden):
        raise ValueError(f"hidden={tuple(hidden)}: {what} has no layers; leave hidden empty")
    check_choice("want", want, Want)
    if bool(((tokens < 0) | (tokens >= vocab_size)).any()):
        raise ValueError(f"tokens holds an id outside 0..{vocab_size - 1}")


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
        shape: the shape that the stream must have.
        num_layers: of the model.

    Raises:
        ValueError: layers that do not exist, a stream that is missing, misshapen or not asked for, or logits or hidden
            layers that the part does not reach.
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
    if hidden and not all(first <= layer < last for layer in hidden):
        raise ValueError(f"hidden asks for layers {tuple(hidden)}, and this pass runs {first}..{last - 1} only")
    return first


def wanted_logits(read_out: Callable[[Tensor], Tensor], stream: Tensor, num_nodes: Tensor, want: Want) -> Tensor | None:
    """Return the logits that a call wants, ``[B, M, V]`` or ``[B, 1, V]``, from the output of its last layer.

    Args:
        read_out: returns logits ``[R, V]`` of streams ``[R, D]``.
        stream: ``[B M, D]``, row after row.
        num_nodes: ``[B]`` real nodes of those M.
        want: see ``specdec.contracts.Oracle.score``.
    """
    if want == "none":
        return None
    batch, width = len(num_nodes), len(stream) // len(num_nodes)
    if want == "last":
        at = torch.arange(batch, device=stream.device) * width + num_nodes.to(stream.device) - 1
        stream, width = stream[at], 1
    return read_out(stream).view(batch, width, -1)
