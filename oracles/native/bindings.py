"""The C interface of the native pass: its structures, mirrored from ``model.h``, and its functions."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from specdec.kernels.compiled import HEADERS, NativeUnavailable, Unit, library

_I32, _I64, _F32, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
# Small arrays are handed over as bytes, which the structure keeps: that costs less than to ask numpy for an address.
_BYTES = ctypes.c_char_p

SOURCES = Path(__file__).parent
PASS = Unit("the native pass", SOURCES / "api.cpp", (HEADERS, SOURCES))

STORAGES = {"float32": 0, "bfloat16": 1, "float16": 2, "int8": 3, "int4": 4, "int8-dynamic": 5}
STORAGES |= {"q8_0": 6, "q4_0": 7, "q4_1": 8, "q8_0-int8": 9, "q4_0-int8": 10, "q4_1-int8": 11}
ACTIVATIONS = {"silu": 0, "gelu": 1, "gelu_tanh": 2, "relu": 3}
WANTS = {"all": 0, "last": 1, "none": 2}
# What is wrong with a call, by what the pass returns.
FAULTS = {
    -1: "tokens hold an id outside the vocabulary",
    -2: "parents must be -1 or below a node's own index",
    -3: "num_nodes must lie between 0 and the width of tokens",
    -4: "rows name a row that the cache does not have",
    -5: "ids, biases or eos_ids of adjustments hold an id outside the vocabulary",
    -6: "ends must be above a row's length in the cache (or equal, where limits are 0) and within the width of ids",
    -7: "a row cannot take its ids and what is drafted after them: give new_cache a larger capacity",
    -8: "max_context has no position left for a row's ids and what is drafted after them: lower limits",
}


class Linear(ctypes.Structure):
    """A packed linear layer."""

    _fields_ = (
        ("weights", _POINTER),
        ("bias", _POINTER),
        ("scales", _POINTER),
        ("inputs", _I32),
        ("columns", _I32),
        ("storage", _I32),
        ("unused", _I32),
    )


class Norm(ctypes.Structure):
    """A norm; without a bias by the root mean square."""

    _fields_ = (("weight", _POINTER), ("bias", _POINTER), ("eps", _F32), ("size", _I32))


class Layer(ctypes.Structure):
    """A layer; without ``qkv`` an MLP alone."""

    _fields_ = (
        ("before_attention", Norm),
        ("before_mlp", Norm),
        ("qkv", Linear),
        ("out", Linear),
        ("up", Linear),
        ("down", Linear),
        ("query_norm", _POINTER),
        ("key_norm", _POINTER),
    )


class Model(ctypes.Structure):
    """Shape and weights."""

    _fields_ = (
        ("layers", _POINTER),
        ("last", Norm),
        ("head", Linear),
        ("embeddings", _POINTER),
        ("positions", _POINTER),
        ("written_ids", _POINTER),
        ("embedding_storage", _I32),
        ("position_storage", _I32),
        ("vocabulary", _I32),
        ("hidden", _I32),
        ("num_layers", _I32),
        ("context", _I32),
        ("query_heads", _I32),
        ("kv_heads", _I32),
        ("head_size", _I32),
        ("rotary_size", _I32),
        ("inner_size", _I32),
        ("window", _I32),
        ("activation", _I32),
        ("gated", _I32),
        ("parallel_residual", _I32),
        ("qk_eps", _F32),
        ("written", _I32),
        ("unused", _I32),
    )


class Cache(ctypes.Structure):
    """Keys and values."""

    _fields_ = (
        ("keys", _POINTER),
        ("values", _POINTER),
        ("lengths", _POINTER),
        ("written", _POINTER),
        ("num_rows", _I32),
        ("slots", _I32),
    )


class Team(ctypes.Structure):
    """Entry points of the OpenMP runtime that torch runs on."""

    _fields_ = (("parallel", _POINTER), ("thread_num", _POINTER), ("num_threads", _POINTER))


class Call(ctypes.Structure):
    """One pass."""

    _fields_ = (
        ("tokens", _BYTES),
        ("parents", _BYTES),
        ("num_nodes", _BYTES),
        ("rows", _BYTES),
        ("lengths", _POINTER),
        ("stream", _POINTER),
        ("cosines", _POINTER),
        ("sines", _POINTER),
        ("logits", _POINTER),
        ("likeliest", _POINTER),
        ("peaks", _POINTER),
        ("hidden", _POINTER),
        ("hidden_layers", _POINTER),
        ("scratch", _POINTER),
        ("scratch_bytes", _I64),
        ("team", Team),
        ("threads", _I32),
        ("batch", _I32),
        ("width", _I32),
        ("first", _I32),
        ("first_layer", _I32),
        ("last_layer", _I32),
        ("want", _I32),
        ("num_hidden", _I32),
        ("rotations", _I32),
        ("unused", _I32),
    )


class Text(ctypes.Structure):
    """What stands in the rows of a call.

    Attributes:
        whole: the array that ``ids`` points to.
    """

    _fields_ = (("ids", _POINTER), ("ends", _BYTES), ("stride", _I64))
    whole: Any


class Draws(ctypes.Structure):
    """How the ids of chains and trees are drawn."""

    _fields_ = (
        ("filters", _BYTES),
        ("bases", _BYTES),
        ("firsts", _BYTES),
        ("laws", _POINTER),
        ("is_race", _I64),
    )


class Adjustments(ctypes.Structure):
    """What changes logits before laws are made of them."""

    _fields_ = (
        ("ids", _BYTES),
        ("ends", _BYTES),
        ("prompts", _BYTES),
        ("penalties", _BYTES),
        ("bias_ends", _BYTES),
        ("bias_ids", _BYTES),
        ("biases", _BYTES),
        ("bans", _BYTES),
        ("eos", _BYTES),
        ("stride", _I64),
        ("num_eos", _I64),
    )


Ask = ctypes.CFUNCTYPE(None, _I64, _I64)


class Following(ctypes.Structure):
    """Chains that follow a pass."""

    _fields_ = (
        ("limits", _POINTER),
        ("steps", _I64),
        ("begun", _I64),
        ("kept", _POINTER),
        ("ids", _POINTER),
        ("peaks", _POINTER),
        ("draws", _POINTER),
        ("entropies", _POINTER),
        ("confidences", _POINTER),
        ("ask", Ask),
        ("adjustments", _POINTER),
    )


class Growth(ctypes.Structure):
    """Trees to draft."""

    _fields_ = (
        ("parents", _BYTES),
        ("limits", _BYTES),
        ("ids", _POINTER),
        ("peaks", _POINTER),
        ("size", _I64),
        ("adjustments", _POINTER),
    )


@cache
def functions(*extra: str) -> Any:
    """Return the compiled library with its functions typed.

    Args:
        extra: flags of the compiler, see ``library``.

    Raises:
        NativeUnavailable: it cannot be built here, or it is not of these sources.
    """
    built = library(PASS, *extra)
    kinds = (Linear, Norm, Layer, Model, Cache, Call, Text, Draws, Following, Growth, Adjustments)
    mirrored = [ctypes.sizeof(kind) for kind in kinds]
    sizes = (_I64 * len(kinds))()
    built.specdec_sizes(sizes)
    if list(sizes) != mirrored:
        raise NativeUnavailable(f"the library's structures have sizes {list(sizes)}, bindings.py has {mirrored}")
    built.specdec_pass.restype = _I64
    built.specdec_pass.argtypes = (_POINTER, _POINTER, _POINTER)
    built.specdec_chains.restype = _I64
    built.specdec_chains.argtypes = (_POINTER,) * 5
    built.specdec_trees.restype = _I64
    built.specdec_trees.argtypes = (_POINTER,) * 6
    built.specdec_keep.restype = None
    built.specdec_keep.argtypes = (_POINTER, _POINTER, _I64, _I64, _POINTER, _I64)
    built.specdec_rotations.restype = None
    built.specdec_rotations.argtypes = (_POINTER, _I32, _I32, _I32, _POINTER, _POINTER)
    return built
