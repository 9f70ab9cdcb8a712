"""Counter-based randomness: every draw is a pure function of a path, a node and a purpose.

A stream is the path (request seed, committed length at the step's start), extended by a part for every stage, member or
inner step it is handed down to. No two consumers share a number, and a draw does not depend on batch-mates, slots or
scheduling. In coupled mode a draw depends on (request seed, absolute position) and nothing else.

On the CPU draws are calls of compiled code (``specdec/native/draws.h``), if it can be had. The code in this file
defines them, and runs elsewhere. Keyed draws are then the same ids; a race can differ if two ids tie up to rounding.

Source: Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3") for the counter-based idea; the mixer is
splitmix64 (Steele, Lea, Flood 2014). Coupling: Daliri, Musco, Suresh 2024 (arXiv 2408.07978), Gumbel noise shared by
position.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
from torch import Tensor

from specdec.contracts import ChainKeys, FloatArray, IntArray, OpenVerdict, Randomness
from specdec.laws import Laws
from specdec.native import compiled_laws, native_for
from specdec.transfers import on_device

Seed = int | tuple[int, ...]
Integers = TypeVar("Integers", IntArray, Tensor)
RandomnessFactory = Callable[[IntArray, IntArray], Randomness]

_WEYL = -7046029254386353131  # 0x9E3779B97F4A7C15
_MUL1 = -4658895280553007687  # 0xBF58476D1CE4E5B9
_MUL2 = -7723592293110705685  # 0x94D049BB133111EB


def _mix(z: Integers) -> Integers:
    """Return the splitmix64 finaliser of int64 values (numpy or torch; arithmetic wraps, shifts are made logical)."""
    z = (z ^ ((z >> 30) & 0x3FFFFFFFF)) * _MUL1
    z = (z ^ ((z >> 27) & 0x1FFFFFFFFF)) * _MUL2
    return z ^ ((z >> 31) & 0x1FFFFFFFF)


def _extend(keys: Integers, part: Any) -> Integers:
    """Return keys that depend on ``keys`` and ``part`` (int64, broadcast); order of parts matters."""
    extended: Integers = _mix(_mix(keys + _WEYL) ^ _mix(part * _WEYL + 1))
    return extended


def _extend_by(keys: Tensor, part: int) -> Tensor:
    """Return what ``_extend`` does, for keys on any device and one number, which is mixed on the host."""
    mixed = _mix(np.asarray([part], dtype=np.int64) * _WEYL + 1)
    return _mix(_mix(keys + _WEYL) ^ int(mixed[0]))


def part_number(part: str | int) -> int:
    """Return the number of a path part; strings and ints never collide."""
    return part * 2 if isinstance(part, int) else zlib.crc32(part.encode()) * 2 + 1


@lru_cache(maxsize=1024)
def _code(part: str | int) -> IntArray:
    """Return the number of a path part as an array ``[1]``, which nobody writes to."""
    return np.asarray([part_number(part)], dtype=np.int64)


def _bits(keys: Integers) -> Integers:
    """Return the 53 bits of keys that make a uniform number."""
    return (keys >> 11) & 0x1FFFFFFFFFFFFF


def seed_keys(seeds: Sequence[Seed]) -> IntArray:
    """Return one 64-bit key per request seed: an int, or a tuple of ints such as (run seed, request index).

    Raises:
        OverflowError: an int is beyond 64 bits.
    """
    keys = []
    for seed in seeds:
        key = np.zeros(1, dtype=np.int64)
        for part in (seed,) if isinstance(seed, int) else seed:
            key = _extend(key, np.asarray([part], dtype=np.int64))
        keys.append(key)
    return np.concatenate(keys) if keys else np.zeros(0, dtype=np.int64)


def _first_above(weights: Tensor, uniform: Tensor) -> Tensor:
    """Return the inverse-CDF draw of each row of non-negative float64 ``weights`` ``[M, V]`` at ``uniform`` ``[M]``.

    Guarantee: an id of weight 0 is never returned, whatever the rounding of the running sum.
    """
    cdf = weights.cumsum(-1)
    if cdf.device.type != "cpu":
        # A parallel scan may rise, or fall, by rounding at a weight of 0; a sequential one cannot.
        cdf = torch.where(weights > 0, cdf, 0.0).cummax(-1).values
    total = cdf[:, -1:].contiguous()
    # Rounding may put the threshold at the total itself: then the id that reaches the total is the draw.
    first = torch.searchsorted(cdf, uniform.unsqueeze(-1) * total, right=True)
    # A law may hold NaN, which the engine reports: then any id will do.
    return torch.minimum(first, torch.searchsorted(cdf, total)).squeeze(-1).clamp(max=weights.shape[-1] - 1)


def _draw_distinct(weights: Tensor, uniforms: Callable[[int], Tensor], k: int) -> Tensor:
    """Return ``[M, k]`` draws without replacement, in drawing order; -1 once the support is exhausted."""
    weights = weights.clone()
    draws = []
    for i in range(k):
        alive = weights.sum(-1) > 0
        ids = _first_above(weights, uniforms(i))
        draws.append(torch.where(alive, ids, -1))
        weights.scatter_(1, ids.unsqueeze(1), 0.0)
    return torch.stack(draws, dim=-1)


def _finish(laws: Laws, table_draws: Tensor, k: int) -> Tensor:
    """Return the draws with point masses filled in: shape of the laws, plus ``[k]`` for k > 1."""
    draws = table_draws.view(*laws.shape, k)
    point = torch.full_like(draws, -1)
    point[..., 0] = laws.point
    draws = torch.where((laws.index < 0).unsqueeze(-1), point, draws)
    return draws if k > 1 else draws.squeeze(-1)


def _only_points(laws: Laws, k: int) -> Tensor:
    """Return the draws from point masses: no number is needed."""
    if k == 1:
        return laws.point
    return torch.nn.functional.pad(laws.point.unsqueeze(-1), (0, k - 1), value=-1)


def _weights(laws: Laws) -> Tensor:
    """Return the probabilities of every law as float64 rows ``[M, V]`` (a table row, any one, for point masses)."""
    return laws.table[laws.index.clamp(min=0).reshape(-1)].double()


_ZERO = np.zeros(1, dtype=np.int64)
_ONE = (1).to_bytes(8, "little")  # how many numbers a part has that all streams share


class _DrawsByKeys:
    """Streams whose draws follow from keys alone, by which compiled code draws the same: a subclass may declare it.

    A class that has a ``choose`` of its own loses the declaration of the class that it derives from.
    """

    draws_by_keys: ClassVar[bool] = False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "choose" in vars(cls) and "draws_by_keys" not in vars(cls):
            cls.draws_by_keys = False


@dataclass(frozen=True)
class Keyed(_DrawsByKeys):
    """Independent streams, one per row.

    Args:
        seeds: ``[B]`` int64, the requests' keys.
        parts: what the streams' path adds, each ``[B]`` or ``[1]``; mixed in when a number is first needed, which
            greedy rows never do.

    Guarantee: uniforms have 53 bits; draws with another (path, node, purpose, rank) are independent.
    Cost of a draw: O(V) time and memory per law that is no point mass.
    """

    seeds: IntArray
    parts: tuple[IntArray, ...] = ()
    coupled: ClassVar[bool] = False
    draws_by_keys: ClassVar[bool] = True

    @staticmethod
    def at(keys: IntArray, num_committed: IntArray) -> "Keyed":
        """Return the streams of a step: the request's key extended by the committed length at its start."""
        return Keyed(keys, (num_committed,))

    @cached_property
    def keys(self) -> IntArray:
        """``[B]`` one key per stream."""
        if (native := compiled_laws()) is not None:
            return native.keys(self._path, self.seeds.size)
        return reduce(_extend, self.parts, self.seeds)

    @cached_property
    def _path(self) -> bytes:
        """Seeds and parts as ``NativeLaws.keyed`` takes them."""
        lists = [self.seeds.tobytes()]
        for part in self.parts:
            if part.size not in (1, self.seeds.size):
                raise ValueError(f"a part of {part.size} numbers cannot extend {self.seeds.size} streams")
            lists += [part.size.to_bytes(8, "little"), part.tobytes()]
        return b"".join(lists)

    def select(self, rows: IntArray) -> "Keyed":
        """Return the streams of some rows (indices into this batch)."""
        return Keyed(self.seeds[rows], tuple(part if part.size == 1 else part[rows] for part in self.parts))

    def extend(self, part: str | int) -> "Keyed":
        """Return streams of their own for a stage, a member or an inner step."""
        return Keyed(self.seeds, (*self.parts, _code(part)))

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, or ``k`` in drawing order, keyed by node and purpose; ``depth`` is not read here."""
        if laws.all_points:
            return _only_points(laws, k)
        table = laws.table, laws.index, laws.point
        if (native := native_for(table)) is not None:
            return native.keyed(table, k, self._path, self.seeds.size, part_number(purpose), node)
        device, lead = laws.index.device, (-1, *([1] * (len(laws.shape) - 1)))
        keys = _extend_by(on_device(self.keys, device), part_number(purpose)).view(lead)
        if isinstance(node, int):
            keys = _extend_by(keys, node)
        else:
            keys = _extend(keys, on_device(np.asarray(node, dtype=np.int64), device))
        keys = keys.expand(laws.shape).reshape(-1)

        def uniforms(rank: int) -> Tensor:
            return _bits(_extend_by(keys, rank)).double() * 2.0**-53

        if k == 1:
            return _finish(laws, _first_above(_weights(laws), uniforms(0)), 1)
        return _finish(laws, _draw_distinct(_weights(laws), uniforms, k), k)

    @property
    def numbers(self) -> tuple[IntArray, ...]:
        """What draws on a device read of the host; the engine has it go there with the pass."""
        return (self.keys,)

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys by which ``choose`` draws chains; None if a derived class may draw otherwise."""
        if not self.draws_by_keys:
            return None
        # With compiled code the path's bytes are at hand: no need for a path of its own.
        native = compiled_laws()
        extended = (
            self.extend(purpose).keys
            if native is None
            else native.keys(self._path + _ONE + _code(purpose).tobytes(), self.seeds.size)
        )
        return ChainKeys(False, extended, np.zeros(self.seeds.size, dtype=np.int64))

    def verdict_numbers(self, num_rows: int, verdict: OpenVerdict) -> bytes | None:
        """Return seeds and parts; None if rows share a stream, or a derived class may draw otherwise."""
        return self._path if self.draws_by_keys and self.seeds.size == num_rows else None

    def uniforms(self, purpose: str) -> FloatArray:
        """Return ``[B]`` the numbers by which ``choose`` draws one id at node 0 with this purpose."""
        keys = reduce(_extend, (_code(purpose), _ZERO, _ZERO), self.keys)
        numbers: FloatArray = np.ldexp(_bits(keys), -53)
        return numbers


def _waiting(cells: Tensor) -> Tensor:
    """Return exponential waiting times of hashed cells; 53 bits, centred: every one is finite and not below +0."""
    return 0 - ((((cells >> 11) & 0x1FFFFFFFFFFFFF).double() + 0.5) * 2.0**-53).log()


def _race(weights: Tensor, keys: Tensor) -> Tensor:
    """Return ``[M, V]`` weight over waiting time, the times keyed by ``keys`` ``[M, 1]`` and id.

    Cost: O(V) a row, and a hash for every id; on the host, if few ids have positive weight, for these alone.
    """
    if weights.device.type == "cpu" and int(weights.count_nonzero()) * 4 < weights.numel():
        rows, ids = weights.nonzero(as_tuple=True)
        times = _waiting(_extend(keys[rows, 0], ids))
        return torch.zeros_like(weights).index_put_((rows, ids), weights[rows, ids] / times)
    return weights / _waiting(_extend(keys, torch.arange(weights.shape[1], device=weights.device)))


@dataclass(frozen=True)
class Coupled(_DrawsByKeys):
    """Draws by argmax of log law + Gumbel noise keyed by (request seed, absolute position) and nothing else.

    Args:
        keys: ``[B]`` int64, of the request seeds.
        positions: ``[B]`` int64, the absolute index of the token after the pending one.

    Guarantee: the same law at the same position of the same request gives the same id for every source, stage, node
        and draft length, so sampled output equals plain decoding token for token.
    Cost of a draw: O(V) time a law, and a hash for each id that it allows (for every id on CUDA, or if it allows most).
    Deviations: the race of exponentials argmax p / E with E = -log u is the same draw with one logarithm less.
    """

    keys: IntArray
    positions: IntArray
    coupled: ClassVar[bool] = True
    draws_by_keys: ClassVar[bool] = True

    def select(self, rows: IntArray) -> "Coupled":
        """Return the streams of some rows (indices into this batch)."""
        return Coupled(self.keys[rows], self.positions[rows])

    def extend(self, part: str | int) -> "Coupled":
        """Return self: in this mode all stages share the noise of a position."""
        return self

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, keyed by ``depth`` alone; for k > 1 the k best of the race, best first."""
        if laws.all_points:
            return _only_points(laws, k)
        table = laws.table, laws.index, laws.point
        if (native := native_for(table)) is not None:
            return native.raced(table, k, self.keys.tobytes(), self.positions.tobytes(), self.keys.size, depth)
        device = laws.index.device
        lead = (-1, *([1] * (len(laws.shape) - 1)))
        base, keys = (on_device(numbers, device).view(lead) for numbers in self.numbers)
        if not isinstance(depth, int):
            depth = on_device(depth if isinstance(depth, Tensor) else np.asarray(depth), device)
        race = _race(_weights(laws), _extend(keys, base + depth).expand(laws.shape).reshape(-1, 1))
        if k == 1:
            return _finish(laws, race.argmax(-1), 1)
        best, ids = race.sort(dim=-1, descending=True, stable=True)
        size = min(k, ids.shape[-1])
        drawn = torch.where(best[..., :size] > 0, ids[..., :size], -1)
        return _finish(laws, torch.nn.functional.pad(drawn, (0, k - size), value=-1), k)

    @property
    def numbers(self) -> tuple[IntArray, ...]:
        """What draws on a device read of the host; the engine has it go there with the pass."""
        return self.positions, self.keys

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys by which ``choose`` draws chains; None if a derived class may draw otherwise."""
        return ChainKeys(True, self.keys, self.positions) if self.draws_by_keys else None

    def verdict_numbers(self, num_rows: int, verdict: OpenVerdict) -> bytes | None:
        """Return keys, then positions; None if rows share a race, or a derived class may draw otherwise."""
        fits = self.draws_by_keys and self.keys.size == self.positions.size == num_rows
        return self.keys.tobytes() + self.positions.tobytes() if fits else None
