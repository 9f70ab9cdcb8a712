"""Which layers a head reads: numbers in a config, and whether they mean inputs or outputs of layers."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from oracles.checkpoints.config_keys import errors_of

Convention = Literal["inputs", "outputs"]
# The difference between the numbers of the two conventions.
_SHIFT = {"inputs": -1, "outputs": 0}


@dataclass(frozen=True)
class AuxLayers:
    """The layers that a head reads.

    Args:
        ids: the config's numbers, in the order in which the head takes the layers.
        convention: whether number X means the input of layer X, which is the output of X - 1, or its output.
        said_by: who says so.
        num_layers: of the oracle.

    Attributes:
        outputs: the layers whose outputs the head reads, numbered from 0.

    Raises:
        ValueError: an unknown convention; a layer that the oracle does not have; the input of layer 0, which is no
            layer's output.
    """

    ids: tuple[int, ...]
    convention: Convention
    said_by: str
    num_layers: int

    def __post_init__(self) -> None:
        if self.convention not in get_args(Convention):
            raise ValueError(f"aux_layers is {self.convention!r}; give 'inputs', 'outputs' or None")
        if not self.ids or not all(0 <= layer < self.num_layers for layer in self.outputs):
            raise ValueError(
                f"the head reads the {self.convention} of layers {self.ids} (by {self.said_by}), and the oracle has "
                f"outputs of layers 0..{self.num_layers - 1}: load it with the oracle that it was trained on, or give "
                "aux_layers='inputs' or 'outputs'"
            )

    @property
    def outputs(self) -> tuple[int, ...]:
        """The layers whose outputs the head reads."""
        return tuple(layer + _SHIFT[self.convention] for layer in self.ids)

    def __str__(self) -> str:
        outputs = f"outputs of layers {', '.join(map(str, self.outputs))}"
        return f"{outputs} ({self.said_by}: {self.convention} of {', '.join(map(str, self.ids))})"


def usual_inputs(num_layers: int) -> tuple[int, int, int]:
    """Return the layers whose inputs EAGLE-3 reads, unless a config says otherwise: one low, one middle, one high.

    Source: Li et al. 2025 (EAGLE-3, arXiv 2503.01840), released code.
    """
    return 2, num_layers // 2, num_layers - 3


def aux_layers_of(
    ids: Sequence[int] | None,
    num_layers: int,
    by_format: Convention,
    asked: Convention | None,
    source: str,
) -> AuxLayers:
    """Return the layers that a head reads, and who says so.

    The caller's word comes first. Else the numbers decide if they are the usual ones of a convention: inputs of
    (2, L // 2, L - 3), which are the outputs of the layers before; or if one is L, which no layer has. Else the
    format's own convention holds.

    Args:
        ids: the config's numbers, in the order in which the head takes the layers; None: the usual ones.
        num_layers: L, of the oracle.
        by_format: how the format numbers layers.
        asked: the caller's convention; None: the caller names none.
        source: the config, for errors.

    Raises:
        ValueError: see ``AuxLayers``.
    """
    usual = usual_inputs(num_layers)
    given = usual if ids is None else tuple(ids)
    inputs = tuple(sorted(usual))
    spoken: dict[tuple[int, ...], Convention] = {tuple(i - 1 for i in inputs): "outputs", inputs: "inputs"}
    if asked is not None:
        convention, said_by = asked, "aux_layers"
    elif ids is None:
        convention, said_by = "inputs", "default"
    elif given in spoken:
        convention, said_by = spoken[given], "usual numbers"
    elif max(given, default=0) == num_layers:  # the last layer's output, numbered as the input of a layer after it
        convention, said_by = "inputs", "numbers"
    else:
        convention, said_by = by_format, "format"
    with errors_of(source):
        return AuxLayers(given, convention, said_by, num_layers)
