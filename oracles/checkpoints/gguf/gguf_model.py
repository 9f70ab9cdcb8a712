"""A GGUF file as a transformer whose weights stay as they are stored."""

import re
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from oracles.checkpoints.chat_files import ends_within, give_template
from oracles.checkpoints.config_keys import errors_of
from oracles.checkpoints.gguf.gguf_config import FREQUENCY_FACTORS, read_config
from oracles.checkpoints.gguf.gguf_reading import GGUFFile
from oracles.checkpoints.gguf.gguf_vocabulary import Vocabulary, read_vocabulary
from oracles.checkpoints.weights import check_sizes
from oracles.quantisation import QuantisedWeight
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer
from oracles.transformer.linear import Linear
from specdec.prompts.chat import ChatTemplate

_OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_INNER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}
# Architectures that store the rows of queries and keys in another order.
_INTERLEAVED = ("llama",)


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
        WeightsWidened: some weights became float32.
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
    names = _names(model, file)
    _warn_of_widening(file)
    for name, stored in names.items():
        order = _row_order(name, config) if architecture in _INTERLEAVED else None
        _place(model, name, _weight(file, stored, order), device)
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


def _names(model: Transformer, file: GGUFFile) -> dict[str, str]:
    """Return the stored name of each parameter, after checking that model and file agree.

    Raises:
        ValueError: a tensor is missing, unexpected or misshapen.
    """
    found = {}
    for name, parameter in model.named_parameters():
        found[name] = stored = _ggml_name(name)
        if stored not in file.tensors:
            raise ValueError(f"{file.path}: tensor {stored!r} is missing")
        shape = file.tensors[stored].shape
        if shape != tuple(parameter.shape):
            raise ValueError(
                f"{file.path}: tensor {stored!r} has the shape {shape}, and the keys imply {tuple(parameter.shape)}"
            )
    for stored in file.tensors.keys() - set(found.values()) - {FREQUENCY_FACTORS}:
        raise ValueError(f"{file.path}: tensor {stored!r} is unexpected in this architecture")
    return found


def _ggml_name(name: str) -> str:
    """Return ggml's name of one of our parameters."""
    module, kind = name.rsplit(".", 1)
    layer = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", module)
    return f"{_OUTER[module]}.{kind}" if layer is None else f"blk.{layer[1]}.{_INNER[layer[2]]}.{kind}"


def _row_order(name: str, config: TransformerConfig) -> Tensor | None:
    """Return the stored row of each row of queries or keys, if rotary pairs are stored as neighbours; else None."""
    heads = {"q_proj": config.num_heads, "k_proj": config.kv_heads}.get(name.split(".")[-2])
    if heads is None:
        return None
    rows = torch.arange(heads * config.head_size, device="cpu")
    return rows.view(heads, -1, 2).transpose(1, 2).flatten()


def _weight(file: GGUFFile, stored: str, order: Tensor | None) -> Tensor | QuantisedWeight:
    """Return a stored tensor with its rows in the given order."""
    tensor = file.tensors[stored]
    weight = tensor.storage.read(file.blocks(stored))
    if isinstance(weight, Tensor):
        whole = weight.reshape(tensor.shape)
        return whole if order is None else whole[order]
    if len(tensor.shape) == 1:
        raise ValueError(f"{file.path}: tensor {stored!r} is stored as {tensor.storage.name}; vectors must be floats")
    for part in (weight.scales, weight.minima):
        if part is not None and not bool(part.isfinite().all()):
            raise ValueError(f"{file.path}: tensor {stored!r} has a scale or minimum that is not finite")
    return weight if order is None else weight.rows(order)


def _place(model: Transformer, name: str, weight: Tensor | QuantisedWeight, device: torch.device) -> None:
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
