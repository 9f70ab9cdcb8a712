"""A GGUF file as a transformer whose weights stay as they are stored."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from oracles.checkpoints.chat_files import ends_within, give_template
from oracles.checkpoints.config_keys import errors_of
from oracles.checkpoints.gguf.gguf_config import read_config
from oracles.checkpoints.gguf.gguf_reading import GGUFFile
from oracles.checkpoints.gguf.gguf_vocabulary import Vocabulary, read_vocabulary
from oracles.checkpoints.hf_config import CheckpointShape
from oracles.checkpoints.tensor_names import NAMINGS, Place, places
from oracles.checkpoints.weights import check_sizes
from oracles.quantisation import QuantisedWeight
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear
from specdec.prompts.chat import ChatTemplate


class WideningWarning(UserWarning):
    """Some weights are stored in a type that none of our formats holds, and take more memory than in the file."""


def load_gguf(path: Path, device: torch.device, max_context: int | None = None) -> Transformer:
    """Return the transformer of a GGUF file, with its tokenizer, chat template and EOS ids.

    Quantised matrices of linear layers stay quantised, and so does a tied embedding as the head. The table of a
    quantised embedding is dequantised to float32. All other tensors keep their float type, except the types of 5 bits,
    which become float32.

    Args:
        path: of the file.
        device: of the weights.
        max_context: caps the context.

    Raises:
        ValueError: as in ``GGUFFile``, ``read_vocabulary`` and ``read_config``; a size that no tensor confirms; a
            tensor that is missing, unexpected, misshapen, of an unsuitable type, or whose scales are not finite; a chat
            template that is not Jinja.

    Warns:
        WideningWarning: some weights became float32.
        EndsBeyond: all ids that end a text lie beyond the vocabulary.

    Cost: memory of the weights, with a byte for each whole number, and of one more tensor.
    """
    file = GGUFFile(path)
    vocabulary = read_vocabulary(file)
    architecture, config = read_config(file, vocabulary.size, max_context)
    shapes = {name: tensor.shape for name, tensor in file.tensors.items()}
    check_sizes(config, shapes, str(path))
    with torch.device("meta"):
        model = Transformer(config, seed=None)
    naming = "gguf_llama" if architecture == "llama" else "gguf"
    found = _places(model, CheckpointShape(naming, config, 0), file)
    _warn_of_widening(file)
    for name, place in found.items():
        _fill(model, name, _weight(file, place), device)
    model.tokenizer = vocabulary.tokenizer
    model.eos_ids = ends_within(vocabulary.eos_ids, model.vocab_size, path)
    give_template(model, _template(path, vocabulary))
    return model


def _template(path: Path, vocabulary: Vocabulary) -> ChatTemplate | None:
    if vocabulary.chat_template is None or vocabulary.tokenizer is None:
        return None
    with errors_of(f"{path}: 'tokenizer.chat_template'"):
        return ChatTemplate(
            vocabulary.chat_template, vocabulary.tokenizer, vocabulary.bos, vocabulary.eos, name=path.name
        )


def _places(model: Transformer, checkpoint: CheckpointShape, file: GGUFFile) -> Mapping[str, Place]:
    """Return the place of each parameter, after checking that model and file agree.

    Raises:
        ValueError: a tensor is missing, unexpected or misshapen.
    """
    parameters = dict(model.named_parameters())
    found = places(checkpoint, parameters, file.tensors)
    for name, parameter in parameters.items():
        stored = found[name].key
        if stored not in file.tensors:
            raise ValueError(f"{file.path}: tensor {stored!r} is missing")
        shape = file.tensors[stored].shape
        if shape != tuple(parameter.shape):
            raise ValueError(
                f"{file.path}: tensor {stored!r} has the shape {shape}, and the keys imply {tuple(parameter.shape)}"
            )
    is_known = NAMINGS[checkpoint.naming].non_parameters.fullmatch
    for stored in file.tensors.keys() - {place.key for place in found.values()}:
        if not is_known(stored):
            raise ValueError(f"{file.path}: tensor {stored!r} is unexpected in this architecture")
    return found


def _weight(file: GGUFFile, place: Place) -> Tensor | QuantisedWeight:
    """Return a parameter from its place."""
    stored, layout = place.key, place.layout
    tensor = file.tensors[stored]
    weight = tensor.storage.read(file.blocks(stored))
    if isinstance(weight, Tensor):
        return layout.take(weight.reshape(tensor.shape))
    if len(tensor.shape) == 1:
        raise ValueError(f"{file.path}: tensor {stored!r} is stored as {tensor.storage.name}; vectors must be floats")
    for part in (weight.scales, weight.minima):
        if part is not None and not bool(part.isfinite().all()):
            raise ValueError(f"{file.path}: tensor {stored!r} has a scale or minimum that is not finite")
    return weight.each(layout.take)


def _fill(model: Transformer, name: str, weight: Tensor | QuantisedWeight, device: torch.device) -> None:
    """Give a parameter of a model on the meta device its weight."""
    module, _, kind = name.rpartition(".")
    part = model.get_submodule(module)
    if isinstance(weight, QuantisedWeight):
        weight = weight.to(device)
        if isinstance(part, Linear):
            part.weight, part.quantised = None, weight
            return
        if model.config.tie_embeddings:
            model.lm_head = Linear.holding(weight, None)
        weight = weight.dequantise()
    setattr(part, kind, nn.Parameter(weight.to(device), requires_grad=False))


def _warn_of_widening(file: GGUFFile) -> None:
    names = [tensor.storage.name for tensor in file.tensors.values() if tensor.storage.is_widened]
    if names:
        kinds = ", ".join(sorted(set(names)))
        warnings.warn(f"{file.path}: {len(names)} tensors of {kinds} become float32", WideningWarning, stacklevel=2)
