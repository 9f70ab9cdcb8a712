"""The tensors of a head: checked by name and shape before memory is spent, then read."""

from collections.abc import Collection, Mapping
from typing import Literal

from torch import Tensor, nn

from oracles.checkpoints.tensor_names import Place
from oracles.checkpoints.weights import StoredTensors, fill
from oracles.transformer.pass_parts import Shaped
from specdec.contracts import HostOracle, Oracle

READ_OUT = "lm_head.weight"
HeadBackend = Literal["native", "eager"]


def check_places(
    network: nn.Module, places: Mapping[str, Place], stored: StoredTensors, ignored: Collection[str] = ()
) -> None:
    """Refuse files whose tensors are not those of a network.

    Args:
        network: on the meta device.
        places: of each parameter, by its name.
        stored: the files' tensors.
        ignored: names of tensors that are no parameters.

    Raises:
        ValueError: a tensor is missing, unexpected, or of a wrong shape or dtype; it names the file and the key.
    """
    for name, value in network.named_parameters():
        place = places[name]
        if place.key not in stored.shapes:
            raise ValueError(f"{stored.folder}: tensor {place.key!r} is missing in its safetensors")
        expected = place.layout.stored_shape(tuple(value.shape))
        if stored.shapes[place.key] != expected:
            raise ValueError(
                f"{stored.path(place.key)}: tensor {place.key!r} has shape {stored.shapes[place.key]}, config.json "
                f"implies {expected}"
            )
        stored.dtype(place.key)
    for key in sorted(stored.shapes.keys() - {place.key for place in places.values()} - set(ignored)):
        raise ValueError(f"{stored.path(key)}: tensor {key!r} is unexpected")


def borrow_rows(stored: StoredTensors, target_ids: Tensor, oracle: HostOracle) -> None:
    """Give files without a read-out the oracle's rows of the ids ``[R]`` that a head writes.

    Raises:
        ValueError: the rows of the oracle's head are not its embeddings, which alone can be asked for.
    """
    if not (isinstance(oracle, Shaped) and oracle.config.tie_embeddings):
        raise ValueError(
            f"{stored.folder}: tensor {READ_OUT!r} is missing in its safetensors; config.json gives it "
            f"{len(target_ids)} rows, and the oracle's own rows can be taken only where its head is its embeddings"
        )
    stored.give(READ_OUT, oracle.embed(target_ids.to(oracle.device)).cpu(), stored.folder)


def load_network(
    network: nn.Module, places: Mapping[str, Place], stored: StoredTensors, oracle: Oracle, as_stored: bool = False
) -> None:
    """Give a network on the meta device its weights, on an oracle's device, in its dtype or as they are stored."""
    fill(network, dict(places), stored, None if as_stored else oracle.dtype, oracle.device)
