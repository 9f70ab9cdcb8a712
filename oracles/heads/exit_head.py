"""Exit heads, which read the law of the next id from a transformer's residual stream before its last layer."""

import json
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from oracles.checkpoints.config_keys import read_json
from oracles.checkpoints.embedded_folders import EXIT_HEAD, head_folder
from oracles.checkpoints.loading import LoadedOracle
from oracles.checkpoints.tensor_names import PLAIN, Place
from oracles.checkpoints.weights import SINGLE, StoredTensors, check_places, fill, longest_side
from oracles.transformer.blocks import Adapter
from oracles.transformer.config import TransformerConfig


@dataclass(frozen=True)
class HeadShape:
    """The shape of an exit head.

    Args:
        num_layers: layers of the oracle below the head.
        hidden_size: width of the oracle's residual stream.
        inner_size: width of the adapter's MLP.
        vocab_size: of the oracle.
    """

    num_layers: int
    hidden_size: int
    inner_size: int
    vocab_size: int

    @classmethod
    def of(cls, config: TransformerConfig, num_layers: int, inner_size: int) -> "HeadShape":
        """Return the shape of a head on an oracle of this configuration."""
        return cls(num_layers, config.hidden_size, inner_size, config.vocab_size)


class ExitHead:
    """Read next-token logits from the residual stream after an oracle's first layers.

    The adapter comes first, then the oracle's own last norm and head, which are shared.

    Args:
        oracle: the transformer whose stream is read.
        num_layers: layers below the head.
        adapter: has the oracle's width; it is moved to the oracle's device and packed.

    Cost: each call reads the adapter's weights and the oracle's head once; no memory is kept between calls.
    Source: the residual block over a frozen model is that of Medusa's heads (Cai et al. 2024, arXiv 2401.10774); an
        adapter between early layers and the model's own head is Kangaroo's (Liu et al. 2024, arXiv 2404.18911).
    Deviations: Kangaroo's adapter is a layer of attention with a cache of its own; this one looks at one position.
    """

    drafter = "early_exit"

    def __init__(self, oracle: LoadedOracle, num_layers: int, adapter: Adapter) -> None:
        self.oracle, self.num_layers = oracle, num_layers
        self._read = oracle.read_out_behind(adapter)

    def __call__(self, stream: Tensor) -> Tensor:
        """Return logits ``[R, V]`` from the stream ``[R, D]``."""
        return self._read(stream)


def save_head(adapter: Adapter, shape: HeadShape, folder: Path) -> None:
    """Write ``head.json`` and bfloat16 weights in safetensors; the folder is created if it is absent."""
    folder.mkdir(parents=True, exist_ok=True)
    tensors = {
        name: part.detach().to("cpu", torch.bfloat16).contiguous() for name, part in sorted(adapter.named_parameters())
    }
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})
    (folder / EXIT_HEAD).write_text(json.dumps(asdict(shape), indent=2) + "\n", encoding="utf-8")


def load_exit_head(name_or_path: str | Path, oracle: LoadedOracle) -> ExitHead:
    """Return a trained exit head, bound to the oracle that it was trained on.

    Args:
        name_or_path: the name of an embedded head ("code-exit"), or a folder that ``save_head`` wrote. An embedded name
            wins over a folder of that name.
        oracle: a transformer of the shape that the head was made for. A different one of the same shape is not noticed:
            drafts are then bad, but text is never wrong.

    Raises:
        ValueError: an unknown name, a broken file, a shape that does not fit the oracle; the message names the file.
    """
    folder = head_folder(name_or_path)
    if not (folder / EXIT_HEAD).is_file():
        raise ValueError(f"{str(name_or_path)!r} is a published head, not an exit head: see oracles.load_head")
    shape = _shape(folder / EXIT_HEAD)
    wanted = HeadShape.of(oracle.config, shape.num_layers, shape.inner_size)
    if shape != wanted or not 0 < shape.num_layers < oracle.config.num_layers:
        raise ValueError(
            f"{folder / EXIT_HEAD} describes a head on layer {shape.num_layers} of an oracle with "
            f"hidden_size {shape.hidden_size} and vocab_size {shape.vocab_size}; the oracle has "
            f"{oracle.config.num_layers} layers, hidden_size {wanted.hidden_size} and vocab_size {wanted.vocab_size}: "
            "load the head with the oracle that it was trained on"
        )
    return ExitHead(oracle, shape.num_layers, _adapter(StoredTensors(folder), shape, oracle.config))


def _shape(path: Path) -> HeadShape:
    content = read_json(path)
    names = {field.name for field in fields(HeadShape)}
    if set(content) != names or not all(type(x) is int for x in content.values()):
        raise ValueError(f"{path} must hold whole numbers under exactly these keys: {', '.join(sorted(names))}")
    return HeadShape(**content)


def _adapter(stored: StoredTensors, shape: HeadShape, config: TransformerConfig) -> Adapter:
    """Return the adapter in float32; its tensors are checked before anything of its size is allocated."""
    longest = longest_side(stored.shapes)
    if not 0 < shape.inner_size <= longest:
        path = stored.folder / EXIT_HEAD
        raise ValueError(f"{path}: inner_size is {shape.inner_size}; the stored tensors' longest side is {longest}")
    with torch.device("meta"):
        adapter = Adapter(config, shape.inner_size, seed=None)
    found = {name: Place(name, PLAIN) for name, _ in adapter.named_parameters()}
    check_places(adapter, found, stored, lambda key: False)
    fill(adapter, found, stored, torch.float32, torch.device("cpu"))
    return adapter
