"""The sizes of a model, as ``specdec.theory.limits`` counts with them."""

from oracles.checkpoints.loading import LoadedOracle
from oracles.native import NativeTransformer
from oracles.quantisation import FORMATS, STORED, WHOLE, bytes_each
from oracles.transformer.config import TransformerConfig
from specdec.theory.limits import ModelShape


def model_shape(config: TransformerConfig, weight_bytes: float, cache_bytes: float = 4) -> ModelShape:
    """Return the shape of a configuration.

    Args:
        config: of the model.
        weight_bytes: of a weight as it is stored: 2 for bfloat16 and float16.
        cache_bytes: of a number in its cache: 4 in the native pass; in an eager one those of the dtype.
    """
    return ModelShape(
        num_layers=config.num_layers,
        hidden_size=config.hidden_size,
        num_heads=config.num_heads,
        num_kv_heads=config.kv_heads,
        head_size=config.head_size,
        intermediate_size=config.intermediate_size,
        vocab_size=config.vocab_size,
        gated=config.gated,
        window=config.sliding_window,
        bytes_per_weight=weight_bytes,
        bytes_per_cached=cache_bytes,
    )


# Types that files alone have, whose tensors may be of several.
_OF_FILES = {*STORED, *WHOLE} - {*FORMATS}


def weight_types(oracle: LoadedOracle) -> set[str]:
    """Return the types in which an oracle's linear layers are stored: names of dtypes and formats."""
    return oracle.native.weight_types if isinstance(oracle, NativeTransformer) else {oracle.weight_type}


def bytes_per_weight(oracle: LoadedOracle) -> float:
    """Return the bytes that a weight takes; if weights are of several types, as in GGUF files, the mean of all.

    *Deviations*: that mean includes an input embedding that is not tied, though passes read few of its rows.
    """
    kinds = weight_types(oracle)
    if len(kinds) == 1 and not kinds & _OF_FILES:
        return bytes_each(*kinds)
    return oracle.weight_bytes / model_shape(oracle.config, 1).weight_bytes


def shape_of(oracle: LoadedOracle) -> ModelShape:
    """Return the shape of an oracle as it lies in memory."""
    return model_shape(oracle.config, bytes_per_weight(oracle), oracle.dtype.itemsize)
