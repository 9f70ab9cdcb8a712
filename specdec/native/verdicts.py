"""Verdicts by laws on the CPU, a call of compiled code each: ``verdicts.h`` in Python."""

import ctypes
from struct import Struct
from typing import NamedTuple

import torch
from torch import Tensor

from specdec.native.laws import Table, given, native_for, once

_I64, _POINTER = ctypes.c_int64, ctypes.c_void_p
_OFFERS = Struct("18q")  # the structure `Offers`

_BEYOND = (
    "an index beyond the table of the laws, an id or a point beyond their vocabulary, "
    "a parent that does not come before its node, or a stop beyond the nodes"
)


class Offered(NamedTuple):
    """Drafts whose nodes are offered to a target's laws in their order, the children of one node after the other.

    Attributes:
        tokens: ``[B, N]`` int64.
        num_nodes: ``[B]`` int64; nodes from there on are padding, any valid id.
        drawn: what the tokens were drawn from, ``[B, N]``, of the type of the target's laws; None: they were chosen.
        above: ``[B, N]`` int64 each node's parent, 0 the pending token, n draft node n - 1; None for chains.
        is_scout: ``[B, N]`` bool, nodes that no walk enters; None: no node.
        without_replacement: ``[B, N]`` bool, nodes drawn without what their elder siblings are; None: no node.
        source: ``[B, N]`` int64; such siblings are those by the same source. None: all are by one.
    """

    tokens: Tensor
    num_nodes: Tensor
    drawn: Table | None = None
    above: Tensor | None = None
    is_scout: Tensor | None = None
    without_replacement: Tensor | None = None
    source: Tensor | None = None

    def takes(self, laws: Table) -> bool:
        """Return whether compiled code may judge them by laws.

        All lie on the CPU, both kinds of laws are alike, and what hangs together is of the types and form above.
        """
        if not self.tokens.is_cpu or native_for(laws) is None or not self._is_sound:
            return False
        if self.drawn is None:
            return True
        is_same = self.drawn[0].dtype == laws[0].dtype and self.drawn[0].shape[1] == laws[0].shape[1]
        return is_same and native_for(self.drawn) is not None

    @property
    def _is_sound(self) -> bool:
        """Whether numbers have their types, and parents come before their nodes."""
        flags = all(flag is None or flag.dtype == torch.bool for flag in (self.is_scout, self.without_replacement))
        if not flags or (self.source is not None and self.source.dtype != torch.int64):
            return False
        if self.above is None:
            return True
        is_before = (self.above >= 0) & (self.above <= torch.arange(self.above.shape[1], device="cpu"))
        return self.above.dtype == torch.int64 and bool(is_before.all())


class NativeVerdicts:
    """The functions of the compiled library. Tensors are contiguous or copied.

    Args:
        built: the library.

    Guarantee: as of ``NativeLaws``.
    """

    def __init__(self, built: ctypes.CDLL) -> None:
        self._stops, self._next_laws = built.specdec_stops, built.specdec_next_laws
        self._stops.restype = self._next_laws.restype = _I64
        self._stops.argtypes, self._next_laws.argtypes = (_POINTER, _POINTER), (_POINTER, _POINTER, _POINTER)

    def stops(self, laws: Table, offers: Offered) -> Tensor:
        """Return the probability of stopping at each node, ``[B, N+1]`` float64, as ``specdec.rules.MultiDraft`` says.

        Args:
            laws: of the target, ``[B, N+1]``, the pending token's first; see ``NativeLaws.keyed``.
            offers: what is judged.

        Raises:
            ValueError: shapes or types do not fit.
            IndexError: an index beyond its table, an id or a point beyond the vocabulary, a parent after its node.

        Cost: O(V) for each node that can be reached, and for each of its children.
        """
        struct, kept = _packed(laws, offers)
        probs = torch.empty_like(kept[1], dtype=torch.float64)
        if self._stops(struct, probs.data_ptr()):
            raise IndexError(_BEYOND)
        return probs

    def next_laws(self, laws: Table, offers: Offered, stops: Tensor) -> Tensor:
        """Return the laws ``[B, V]`` of what follows after ``stops`` ``[B]``, 0..N; all else as of ``stops``.

        Guarantee: what the target does not allow has probability 0, and so has a chosen id that was rejected, unless
            nothing else is left.
        """
        struct, _kept = _packed(laws, offers)
        stops, table = _of_kind("stops", stops, torch.int64, offers.num_nodes.shape), laws[0]
        law = torch.empty((len(stops), table.shape[1]), dtype=table.dtype, device="cpu")
        if self._next_laws(struct, stops.data_ptr(), law.data_ptr()):
            raise IndexError(_BEYOND)
        return law


def _packed(laws: Table, offers: Offered) -> tuple[bytes, tuple[Tensor, ...]]:
    """Return the structure ``Offers``, and the tensors that it points into."""
    batch, width = nodes = tuple(offers.tokens.shape)
    target = _laws(laws, (batch, width + 1))
    drawn = () if offers.drawn is None else _laws(offers.drawn, nodes)
    if drawn and (drawn[0].dtype != target[0].dtype or drawn[0].shape[1] != target[0].shape[1]):
        raise ValueError(
            f"drawn are {drawn[0].dtype} over {drawn[0].shape[1]} ids, and the target's laws "
            f"{target[0].dtype} over {target[0].shape[1]}: give both alike"
        )
    ids = (
        _of_kind("tokens", offers.tokens, torch.int64, nodes),
        _of_kind("num_nodes", offers.num_nodes, torch.int64, (batch,)),
    )
    kinds = {"above": torch.int64, "is_scout": torch.bool, "without_replacement": torch.bool, "source": torch.int64}
    given_or_not = [(name, getattr(offers, name), kind) for name, kind in kinds.items()]
    others = [None if x is None else _of_kind(name, x, kind, nodes) for name, x, kind in given_or_not]
    struct = _OFFERS.pack(
        *(*_places(target), *(_places(drawn) if drawn else (0, 0, 0, 0)), *(tensor.data_ptr() for tensor in ids)),
        *(0 if tensor is None else tensor.data_ptr() for tensor in others),
        *(target[0].dtype == torch.float64, target[0].shape[1], batch, width),
    )
    return struct, (*target, *drawn, *ids, *(tensor for tensor in others if tensor is not None))


def _of_kind(name: str, numbers: Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if numbers.dtype != dtype or not numbers.is_cpu or numbers.shape != shape:
        wanted, found = str(dtype).removeprefix("torch."), f"{numbers.dtype} {tuple(numbers.shape)} on {numbers.device}"
        raise ValueError(f"{name} must be {wanted} {tuple(shape)} on the CPU, not {found}")
    return numbers.contiguous()


def _laws(laws: Table, nodes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    index, point = (_of_kind(name, x, torch.int64, nodes) for name, x in zip(("index", "point"), laws[1:], strict=True))
    return given(laws[0]), index, point


def _places(laws: tuple[Tensor, ...]) -> tuple[int, ...]:
    """Return the structure ``Laws``."""
    return *(tensor.data_ptr() for tensor in laws), len(laws[0])


compiled_verdicts = once(NativeVerdicts)
