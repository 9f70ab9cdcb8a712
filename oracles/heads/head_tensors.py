"""The options of a published head, and its tensors: checked before memory is allocated, then read, then rounded."""

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from oracles.checkpoints.config_keys import ConfigKeys
from oracles.checkpoints.placement import Backend, WeightType
from oracles.checkpoints.tensor_names import Place
from oracles.checkpoints.weights import StoredTensors, check_places, fill
from oracles.graphed import GraphedTransformer
from oracles.heads.aux_layers import Convention
from oracles.native import NativeTransformer
from oracles.quantisation import FLOATS, STORED, QuantisedWeight
from oracles.transformer.config import check_choice
from oracles.transformer.linear import Linear, dequantise_layers, store_layers
from oracles.transformer.pass_parts import TransformerShape
from specdec.contracts import HostOracle

READ_OUT = "lm_head.weight"
_EVERYWHERE = ("backend", "eager")
# The type of oracle that each backend of heads needs.
_HOSTS: dict[Backend, type] = {"native": NativeTransformer, "graphed": GraphedTransformer}


@dataclass(frozen=True)
class HeadOptions:
    """What a caller of ``load_head`` asks for; None: the format's convention, the oracle's backend, no rounding."""

    aux_layers: Convention | None
    backend: Backend | None
    weights: WeightType | None

    def backend_for(self, oracle: HostOracle) -> Backend:
        """Return the backend asked for; by default the oracle's if heads support it, else "eager".

        Raises:
            ValueError: an unknown backend, or one that needs another backend of the oracle.
        """
        if self.backend is not None:
            check_choice("backend", self.backend, Backend, ", or None")
            host = _HOSTS.get(self.backend)
            if host is not None and not isinstance(oracle, host):
                raise ValueError(
                    f"backend {self.backend!r} computes beside an oracle of that backend, and this one is "
                    f"{oracle.backend!r}: leave it out"
                )
            return self.backend
        return next((kind for kind, host in _HOSTS.items() if isinstance(oracle, host)), "eager")

    def for_format(self, taken: Container[str], source: str) -> "HeadOptions":
        """Return the options for a format that has only those ``taken``; without a backend of its own it is "eager".

        Raises:
            ValueError: others were given. The message names them and ``source``.
        """
        given = [name for name, value in vars(self).items() if value is not None and (name, value) != _EVERYWHERE]
        if extra := [name for name in given if name not in taken]:
            raise ValueError(f"{source}: this kind of head has no such choice: leave out {' and '.join(extra)}")
        return self if "backend" in taken else replace(self, backend="eager")


def check_fit(source: str, oracle: HostOracle, width: int, vocab_size: int) -> None:
    """Refuse a head that reads hidden states of another width than the oracle's, or has another vocabulary.

    Raises:
        ValueError: the message names ``source``.
    """
    if width != oracle.hidden_size or vocab_size not in (oracle.vocab_size, oracle.embedding_rows):
        raise ValueError(
            f"{source} describes a head on hidden_size {width} and vocab_size {vocab_size}; the oracle's are "
            f"{oracle.hidden_size} and {oracle.vocab_size}: load it with the oracle that it was trained on"
        )


def check_depth(keys: ConfigKeys, oracle: HostOracle) -> None:
    """Refuse a head whose config says that it drafts for an oracle with another number of layers.

    Raises:
        ValueError: the message names the config.
    """
    told = keys.read("num_target_layers", int, None)
    if told not in (None, oracle.hidden_layers):
        raise ValueError(
            f"{keys.source}: 'num_target_layers' is {told}; the oracle has {oracle.hidden_layers} layers: load it with "
            "the oracle that it was trained on"
        )


def borrow_rows(stored: StoredTensors, target_ids: Tensor, oracle: HostOracle) -> None:
    """Give files without a read-out the oracle's rows for the ids ``[R]`` that a head writes.

    Raises:
        ValueError: the oracle's head is not its embedding table, the only rows that an oracle gives out.
    """
    if not (isinstance(oracle, TransformerShape) and oracle.config.tie_embeddings):
        raise ValueError(
            f"{stored.folder}: tensor {READ_OUT!r} is missing in its safetensors; config.json gives it "
            f"{len(target_ids)} rows, and the oracle's own rows can be taken only where its head is its embeddings"
        )
    stored.give(READ_OUT, oracle.embed(target_ids.to(oracle.device)).cpu(), stored.folder)


def fill_network(
    network: nn.Module,
    places: Mapping[str, Place],
    stored: StoredTensors,
    oracle: HostOracle,
    options: HeadOptions,
    parts: Iterable[nn.Module] = (),
    borrowed: Linear | None = None,
    ignored: Container[str] = (),
) -> None:
    """Give a network on the meta device its weights, on an oracle's device.

    They are rounded if the options ask for it. Compiled code gets them as they are stored or rounded, torch in the
    oracle's dtype.

    Args:
        network: to be filled.
        places: of its parameters.
        stored: the files, see ``StoredTensors``.
        oracle: see ``load_head``.
        options: what the caller asks for.
        parts: of the network, whose linear layers can be rounded.
        borrowed: a read-out of the oracle's rows; without rounding it is held in the oracle's own format.
        ignored: tensors that are not parameters.

    Raises:
        ValueError: see ``check_places``.
    """
    is_native = options.backend_for(oracle) == "native"
    as_stored = is_native or options.weights is not None
    check_places(network, places, stored, lambda key: key in ignored)
    fill(network, places, stored, None if as_stored else oracle.dtype, oracle.device)
    if options.weights is not None:
        for part in parts:
            store_layers(part, options.weights)
    elif borrowed is not None and isinstance(oracle, NativeTransformer):
        narrow(borrowed, READ_OUT, oracle.weight_type)
    if not is_native:
        dequantise_layers(network)
        network.to(oracle.dtype)


def narrow(layer: Linear, name: str, weight_type: str) -> None:
    """Hold a layer's float32 weight as an oracle stores its own, in place, if this changes no number.

    Args:
        layer: as it was read.
        name: of the layer, for errors.
        weight_type: the oracle's; only a dtype, or a format of GGUF files without minima, has an effect.
    """
    stored, weight = STORED.get(weight_type.removesuffix("-int8")), layer.weight
    if weight is None or (stored is not None and stored.minima):  # rounding finds no minima
        return
    if stored is not None:
        fewer = QuantisedWeight.of(weight, name, stored)
        if torch.equal(fewer.dequantise(), weight):
            layer.quantised, layer.weight = fewer, None
    elif weight_type in FLOATS:
        part = weight.detach().to(getattr(torch, weight_type))
        if torch.equal(part.float(), weight):
            layer.weight = nn.Parameter(part, requires_grad=False)
