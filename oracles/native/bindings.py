"""The C interface of the native pass: its structures, with the fields of ``model.h``, and its functions."""

import ctypes
from functools import cache
from pathlib import Path
from typing import Any

from specdec.kernels.compiled import HEADERS, LibrarySources, NativeUnavailable, enumeration, fields_of, library

_I32, _I64, _POINTER = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
# The largest number of an int32.
LARGEST = 2**31 - 1

SOURCES = Path(__file__).parent / "cpp"
MODEL = SOURCES / "model.h"
PASS = LibrarySources("the native pass", SOURCES / "api.cpp", (HEADERS, SOURCES))

ACTIVATIONS, WANTS = (
    {name.lower(): number for name, number in enumeration(header, kind).items()}
    for header, kind in ((HEADERS / "functions.h", "Activation"), (MODEL, "Want"))
)
# "INT8_DYNAMIC" is called "int8-dynamic", "Q8_0_STORED" "q8_0", and "Q8_0_WHOLE" "q8_0-int8".
STORAGES = {
    name.lower().replace("_dynamic", "-dynamic").replace("_stored", "").replace("_whole", "-int8"): number
    for name, number in enumeration(MODEL, "Storage").items()
}
# What is wrong with a call, by the number that the pass returns.
FAULTS = {
    -1: "tokens hold an id outside the vocabulary",
    -2: "parents must be -1 or below a node's own index",
    -3: "num_nodes must lie between 0 and the width of tokens",
    -4: "rows name a row that the cache does not have",
    -5: "ids, biases or eos_ids of adjustments hold an id outside the vocabulary",
    -6: "ends must be above a row's length in the cache (or equal, where limits are 0) and within the width of ids",
    -7: "a row cannot take its ids and what is drafted after them: give new_cache a larger capacity",
    -8: "max_context has no position left for a row's ids and what is drafted after them: lower limits",
    -9: "a node hangs on one of the same pass, whose feature is not there yet: score a chain token by token, and a "
    "tree level by level",
}


class Mirror(ctypes.Structure):
    """A structure of ``model.h`` or ``team.h``."""


class Linear(Mirror):
    """A packed linear layer."""


class Norm(Mirror):
    """A norm; without a bias a root-mean-square norm."""


class Reach(Mirror):
    """What a node sees in a layer."""


class Layer(Mirror):
    """A layer; without ``qkv`` only an MLP."""


class Reading(Mirror):
    """What a head reads besides ids."""


class Model(Mirror):
    """Shape and weights."""


class Arrival(Mirror):
    """Hidden states on their way into a cache."""


class Cache(Mirror):
    """Keys and values."""


class Team(Mirror):
    """Entry points of the OpenMP runtime that torch runs on."""


class Call(Mirror):
    """One pass."""


class Text(Mirror):
    """The committed ids in the rows of a call.

    Attributes:
        whole: the array that ``ids`` points to.
    """

    whole: Any


class Blocks(Mirror):
    """Blocks whose laws a head computes in one pass."""


class Draws(Mirror):
    """How the ids of chains and trees are drawn."""


class Adjustments(Mirror):
    """Changes of logits before they become laws."""


class Following(Mirror):
    """Chains that follow a pass."""


Ask = ctypes.CFUNCTYPE(None, _I64, _I64)


class Growth(Mirror):
    """Trees to draft."""


_KINDS = {kind.__name__: kind for kind in Mirror.__subclasses__()}
for _name, _kind in _KINDS.items():  # in this order: a structure comes after those that it holds
    _kind._fields_ = fields_of(MODEL, _name, _KINDS)

# Result type and argument types of each function.
_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "specdec_pass": (_I64, (_POINTER,) * 3),
    "specdec_take_in": (_I64, (_POINTER,) * 3),
    "specdec_chains": (_I64, (_POINTER,) * 5),
    "specdec_blocks": (_I64, (_POINTER,) * 6),
    "specdec_block_chains": (_I64, (_POINTER,) * 5),
    "specdec_trees": (_I64, (_POINTER,) * 6),
    "specdec_embed": (_I64, (_POINTER, _POINTER, _I64, _I64, _POINTER)),
    "specdec_keep": (None, (_POINTER, _POINTER, _I64, _I64, _POINTER, _I64)),
    "specdec_rotations": (None, (_POINTER, _I32, _I32, _I32, _POINTER, _POINTER)),
}


@cache
def functions(*extra: str) -> Any:
    """Return the compiled library with its functions typed.

    Args:
        extra: flags of the compiler, see ``library``.

    Raises:
        NativeUnavailable: it cannot be built here, or was not built from these sources.
    """
    built = library(PASS, *extra)
    mirrored = [ctypes.sizeof(kind) for kind in _KINDS.values()]
    sizes = (_I64 * len(mirrored))()
    built.specdec_sizes(sizes)
    if list(sizes) != mirrored:
        raise NativeUnavailable(f"the library's structures have sizes {list(sizes)}, bindings.py reads {mirrored}")
    for name, (answer, arguments) in _FUNCTIONS.items():
        function = getattr(built, name)
        function.restype, function.argtypes = answer, arguments
    return built
