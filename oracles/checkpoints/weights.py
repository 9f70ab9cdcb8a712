"""Read the safetensors of a checkpoint directory into a model: each weight once, with none left over."""

import os
import shlex
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PureWindowsPath
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.hf_config import CheckpointShape
from oracles.checkpoints.tensor_names import NAMINGS, Place, places
from oracles.transformer.config import TransformerConfig

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
# Files of a trainer with such names, which hold no weights.
_OF_TRAINER = ("training_args.bin", "optimizer*", "scheduler*", "rng_state*")
DTYPES = {"F64": torch.float64, "F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
# Returns the share of a named parameter that a model holds, a view.
Take = Callable[[str, Tensor], Tensor]


@dataclass(frozen=True)
class _Stored:
    """A tensor on disk, or made from what is there: the file that errors name, its dtype there, and how it is read."""

    path: Path
    dtype: str
    read: Callable[[], Tensor]


class StoredTensors:
    """The tensors of a checkpoint directory, by name, read on demand.

    Args:
        folder: holds ``model.safetensors.index.json`` and its shards, or ``model.safetensors``, or several
            ``*.safetensors`` without an index.

    Raises:
        ValueError: there are no safetensors, one is unreadable, a shard or tensor that the index names is absent or
            outside the folder, or two files hold the same tensor.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._stored: dict[str, _Stored] = {}
        promised = _index(folder)
        for path in _files(folder, promised):
            self._add(path)
        for key, name in promised.items():
            if key not in self._stored:
                raise ValueError(f"{folder / name}: tensor {key!r} is missing although {INDEX} promises it")

    def _add(self, path: Path) -> None:
        try:
            file: Any = safe_open(path, framework="pt")
        except (SafetensorError, OSError) as error:
            raise ValueError(f"{path} is no readable safetensors file: {error}") from error
        for key in file.keys():  # noqa: SIM118  (a handle, not a mapping)
            if key in self._stored:
                raise ValueError(f"{path}: tensor {key!r} stands in another file of {self.folder} too")
            view = file.get_slice(key)
            self.shapes[key] = tuple(view.get_shape())
            self._stored[key] = _Stored(path, view.get_dtype(), partial(file.get_tensor, key))

    def path(self, key: str) -> Path:
        """Return the file that holds a tensor."""
        return self._stored[key].path

    def dtype(self, key: str) -> torch.dtype:
        """Return the dtype of a weight.

        Raises:
            ValueError: it is not a float of 16 bits or more (a quantised checkpoint).
        """
        name = self._stored[key].dtype
        if name not in DTYPES:
            raise ValueError(f"{self.path(key)}: tensor {key!r} is {name}; known: {', '.join(DTYPES)}")
        return DTYPES[name]

    def read(self, key: str) -> Tensor:
        """Return a tensor ``[...]`` of the key's entry in ``shapes``, on the CPU, in the file's dtype.

        It may be a view of the mapped file.
        """
        return self._stored[key].read()

    def take(self, key: str) -> Tensor:
        """Return a tensor ``[...]`` as ``read`` does, and remove it from the checkpoint.

        Raises:
            ValueError: there is none.
        """
        if key not in self.shapes:
            raise ValueError(f"{self.folder}: tensor {key!r} is missing in its safetensors")
        tensor = self.read(key)
        del self.shapes[key]
        return tensor

    def give(self, key: str, tensor: Tensor, path: Path) -> None:
        """Add a tensor ``[...]`` made from the file at ``path``, which errors will name."""
        self.shapes[key] = tuple(tensor.shape)
        self._stored[key] = _Stored(path, _NAMES[tensor.dtype], lambda: tensor)


def is_there(path: Path) -> bool:
    """Tell whether an optional file of a checkpoint is there.

    Raises:
        ValueError: something else has its name: a folder, or a dangling link.
    """
    if not path.is_file() and os.path.lexists(path):
        raise ValueError(f"{path} is no file (a folder, or a link to nothing); mend it, or remove it to go without")
    return path.is_file()


def _index(folder: Path) -> dict[str, str]:
    """Return tensor name -> file name, empty without an index."""
    path = folder / INDEX
    if not is_there(path):
        return {}
    try:
        index = read_json(path)["weight_map"]
        found = {str(key): str(name) for key, name in index.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} has no 'weight_map' of tensor names to file names: {error!r}") from error
    if not found:
        raise ValueError(f"{path} has an empty 'weight_map'; it must name the file of every tensor")
    for key, name in found.items():
        # Windows paths have the most ways out of a folder: drives and both slashes. Links inside may lead anywhere.
        way = PureWindowsPath(name)
        if way.anchor or ".." in way.parts:
            raise ValueError(f"{path}: tensor {key!r} lies in {name!r}, which leaves the folder; give a path below it")
    return found


def _files(folder: Path, index: dict[str, str]) -> list[Path]:
    if index:
        paths = [folder / name for name in sorted(set(index.values()))]
        for path in paths:
            if not path.is_file():
                raise ValueError(f"{path} is missing although {INDEX} names it")
        return paths
    if (folder / SINGLE).is_file():
        return [folder / SINGLE]
    found = sorted(folder.glob("*.safetensors"))
    if found:
        return found
    names = [path.name for path in pickled_weights(folder)]
    if names:
        raise ValueError(
            f"{folder} holds pickled weights only ({', '.join(names)}), which can run code when they are read; "
            f"python -m oracles.heads.convert {shlex.quote(str(folder))} reads tensors alone and writes safetensors"
        )
    raise ValueError(f"{folder} holds no *.safetensors")


def pickled_weights(folder: Path) -> list[Path]:
    """Return a folder's pickle files that may hold weights, sorted."""
    found = (path for pattern in PICKLES for path in folder.glob(pattern))
    return sorted(path for path in found if not any(map(path.match, _OF_TRAINER)))


def longest_side(shapes: Mapping[str, tuple[int, ...]]) -> int:
    """Return the longest side of all stored tensors except empty ones, whose sides cost nothing to claim."""
    return max((side for shape in shapes.values() if 0 not in shape for side in shape), default=0)


def check_sizes(
    config: TransformerConfig, shapes: Mapping[str, tuple[int, ...]], source: str, stored_positions: int = 0
) -> None:
    """Refuse sizes that no stored tensor confirms, by the headers alone, before anything of such a size is allocated.

    Sizes that pass are bounded by the files; names and shapes of all tensors are compared next.

    Args:
        config: the model that a checkpoint describes.
        shapes: of the stored tensors, by name.
        source: names the description in errors.
        stored_positions: rows of a learned position table in the file.

    Raises:
        ValueError: there are more layers than tensors, or a size exceeds the longest side of all tensors.
    """
    longest = longest_side(shapes)
    sizes = {
        "vocab_size": config.embedding_rows,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_heads": config.num_heads,
        "num_heads * head_dim": config.num_heads * config.head_size,
        "num_kv_heads * head_dim": config.kv_heads * config.head_size,
        "learned positions": stored_positions if config.positions == "learned" else 0,
    }
    bounds = {"num_layers": (config.num_layers, len(shapes))} | {n: (size, longest) for n, size in sizes.items()}
    for name, (size, most) in bounds.items():
        if size > most:
            raise ValueError(
                f"{source}: {name} is {size}, more than the {len(shapes)} stored tensors "
                f"(longest side {longest}) can hold; mend the config, or the weights"
            )


def check_names(model: nn.Module, checkpoint: CheckpointShape, stored: StoredTensors) -> Mapping[str, Place]:
    """Return the place of every parameter, after checking that file and model agree.

    Args:
        model: its parameters may be on the meta device.
        checkpoint: shape and naming.
        stored: the file's tensors, see ``StoredTensors``.

    Raises:
        ValueError: a tensor is missing, unexpected or of a wrong shape or dtype; it names the file and the key.
    """
    naming = NAMINGS[checkpoint.naming]
    found = places(checkpoint, (name for name, _ in model.named_parameters()), stored.shapes)
    embedding = found["model.embed_tokens.weight"].key

    def is_no_parameter(key: str) -> bool:
        """Tell whether a tensor is known not to be a parameter, or is a tied head that was stored twice."""
        if key != naming.head or stored.shapes[key] != stored.shapes[embedding]:
            return naming.non_parameters.fullmatch(key) is not None
        stored.dtype(key)
        if not torch.equal(stored.read(key), stored.read(embedding)):
            raise ValueError(
                f"{stored.path(key)}: tensor {key!r} differs from {embedding!r} although config.json ties them; "
                "set tie_word_embeddings to false to use it"
            )
        return True

    check_places(model, found, stored, is_no_parameter)
    return found


def check_places(
    network: nn.Module, places: Mapping[str, Place], stored: StoredTensors, is_no_parameter: Callable[[str], bool]
) -> None:
    """Refuse files whose tensors are not those of a network.

    Args:
        network: its parameters may be on the meta device.
        places: of each parameter, by its name.
        stored: the files' tensors, see ``StoredTensors``.
        is_no_parameter: tells whether a tensor without a place may be there.

    Raises:
        ValueError: a tensor is missing, unexpected or of a wrong shape or dtype; it names the file and the key.
    """
    for name, value in network.named_parameters():
        key, layout = places[name].key, places[name].layout
        if key not in stored.shapes:
            raise ValueError(f"{stored.folder}: tensor {key!r} is missing in its safetensors")
        expected = layout.stored_shape(tuple(value.shape))
        if stored.shapes[key] != expected:
            raise ValueError(
                f"{stored.path(key)}: tensor {key!r} has shape {stored.shapes[key]}, the config implies {expected}"
            )
        stored.dtype(key)
    for key in sorted(stored.shapes.keys() - {place.key for place in places.values()}):
        if not is_no_parameter(key):
            raise ValueError(f"{stored.path(key)}: tensor {key!r} is unexpected")


@torch.no_grad()
def fill(
    model: nn.Module,
    places_of: Mapping[str, Place],
    stored: StoredTensors,
    dtype: torch.dtype | None,
    device: torch.device,
    take: Take = lambda name, weight: weight,
) -> None:
    """Give a model on the meta device its weights.

    Args:
        model: every parameter is replaced.
        places_of: what ``check_names`` returned.
        stored: the file's tensors, see ``StoredTensors``.
        dtype: of the weights; None: as each is stored, float64 as float32.
        device: of the weights.
        take: returns the part of each weight that the model holds; all of it by default.

    Cost: memory of the weights plus one stored tensor; each stored tensor is read once.
    """
    names = defaultdict(list)
    for name, place in places_of.items():
        names[place.key].append(name)
    for key, parts in names.items():
        tensor, kept = stored.read(key), stored.dtype(key)
        narrow = kept if kept.itemsize <= torch.float32.itemsize else torch.float32
        for name in parts:
            value = take(name, places_of[name].layout.take(tensor))
            weight = torch.empty(value.shape, dtype=dtype or narrow, device=device).copy_(value)
            module, _, kind = name.rpartition(".")
            setattr(model.get_submodule(module), kind, nn.Parameter(weight, requires_grad=False))
