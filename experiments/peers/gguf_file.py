"""Write a Llama-shaped model as a GGUF file for llama.cpp, with the ``gguf`` package."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from torch import Tensor

from experiments.peers.refusing import PeerRefusal
from oracles.transformer.config import TransformerConfig

STORAGES = {"float32": "F32", "bfloat16": "BF16", "q8_0": "Q8_0", "q4_1": "Q4_1", "q4_0": "Q4_0"}


def interleave(weight: Tensor, num_heads: int) -> Tensor:
    """Return a projection ``[heads * size, D]`` whose rotary pairs (i, i + size / 2) became (2i, 2i + 1).

    llama.cpp rotates neighbours for this architecture; ``convert_hf_to_gguf`` reorders in the same way.
    """
    rows, columns = weight.shape
    return weight.view(num_heads, 2, rows // num_heads // 2, columns).transpose(1, 2).reshape(rows, columns)


def write_gguf(path: Path, config: TransformerConfig, state: Mapping[str, Tensor], storage: str) -> None:
    """Write the weights, matrices stored as ``storage`` and norms as float32, and no tokenizer.

    Args:
        path: of the file.
        config: plain Llama: root-mean-square norms, SwiGLU, full rotation, no biases.
        state: weights under the names of Hugging Face's Llama, linear ones ``[out, in]``; without ``lm_head``
            embeddings are tied.
        storage: a key of ``STORAGES``; values of few bits are rounded as ``gguf.quantize`` does.

    Raises:
        ImportError: ``gguf`` is not installed.
        PeerRefusal: another shape than Llama's.
    """
    check_plain_llama(config)
    import gguf

    kind = gguf.GGMLQuantizationType[STORAGES[storage]]
    writer = gguf.GGUFWriter(path, "llama")
    _add_shape(writer, config)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_layers)
    how = "ALL" if storage == "float32" else "MOSTLY"
    writer.add_file_type(gguf.LlamaFileType[f"{how}_{STORAGES[storage]}"])
    for name, tensor in state.items():
        module = name.removesuffix(".weight")
        heads = {"q_proj": config.num_heads, "k_proj": config.kv_heads}.get(module.split(".")[-1])
        whole = tensor.float() if heads is None else interleave(tensor.float(), heads)
        values = np.ascontiguousarray(whole.numpy())
        matrix = values.ndim == 2
        stored = gguf.quantize(values, kind) if matrix else values
        writer.add_tensor(f"{names[module]}.weight", stored, raw_dtype=kind if matrix else None)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@contextmanager
def temporary_gguf(config: TransformerConfig, state: Mapping[str, Tensor], storage: str) -> Iterator[Path]:
    """Give a file of the weights as long as it takes to load them; for arguments and errors see ``write_gguf``."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(path, config, state, storage)
        yield path


def check_plain_llama(config: TransformerConfig) -> None:
    """Refuse what Llama, as it is written here for other programs, does not mean.

    Raises:
        PeerRefusal: another shape.
    """
    plain = TransformerConfig(
        config.vocab_size, config.hidden_size, config.num_layers, config.num_heads, config.intermediate_size,
        config.max_context, config.num_kv_heads, config.head_dim, norm_eps=config.norm_eps,
        rope_theta=config.rope_theta, tie_embeddings=config.tie_embeddings,
    )  # fmt: skip
    if config != plain:
        raise PeerRefusal("only plain Llama shapes can be handed over: no biases, windows, scaling or other norms")


def _add_shape(writer: object, config: TransformerConfig) -> None:
    add = writer.__getattribute__
    numbers = {
        "context_length": config.max_context,
        "embedding_length": config.hidden_size,
        "block_count": config.num_layers,
        "feed_forward_length": config.intermediate_size,
        "head_count": config.num_heads,
        "head_count_kv": config.kv_heads,
        "key_length": config.head_size,
        "value_length": config.head_size,
        "layer_norm_rms_eps": config.norm_eps,
        "rope_dimension_count": config.head_size,
        "rope_freq_base": config.rope_theta,
        "vocab_size": config.vocab_size,
    }
    for name, value in numbers.items():
        add(f"add_{name}")(value)
    # Without a tokenizer llama.cpp takes ids as they are.
    add("add_tokenizer_model")("no_vocab")
