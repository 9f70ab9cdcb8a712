"""Counter-based randomness: every draw is a pure function of a path, a node and a purpose.

A stream is the path (request seed, committed length at the step's start), extended by a part for every stage, member or
inner step it is handed down to. No two consumers share a number, and a draw does not depend on batch-mates, slots or
scheduling. In coupled mode a draw depends on (request seed, absolute position) and nothing else.

Kernels draw: ``specdec/kernels/draws.py`` defines how, ``specdec/kernels/cpp/draws.h`` does it compiled. Keyed draws
are the same ids by both; a race can differ if two ids tie up to rounding.

Source: Salmon et al. 2011 ("Parallel random numbers: as easy as 1, 2, 3") for the counter-based idea. Coupling: Daliri,
Musco, Suresh 2024 (arXiv 2408.07978), Gumbel noise shared by position.
"""

import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from torch import Tensor

from specdec.contracts import ChainKeys, FloatArray, IntArray, OpenVerdict, Randomness
from specdec.kernels import Kernels, best_kernels, bits_of, extend, extend_by_all, only_points
from specdec.laws import Laws

Seed = int | tuple[int, ...]
RandomnessFactory = Callable[[IntArray, IntArray], Randomness]


def part_number(part: str | int) -> int:
    """Return the number of a path part; strings and ints never collide."""
    return part * 2 if isinstance(part, int) else zlib.crc32(part.encode()) * 2 + 1


@lru_cache(maxsize=1024)
def _code(part: str | int) -> IntArray:
    """Return the number of a path part as an array ``[1]``, which nobody writes to."""
    return np.asarray([part_number(part)], dtype=np.int64)


def seed_keys(seeds: Sequence[Seed]) -> IntArray:
    """Return one 64-bit key per request seed, ``[R]`` int64.

    Args:
        seeds: R of them, each an int or a tuple of ints, such as (run seed, request index).

    Raises:
        OverflowError: an int is beyond 64 bits.
    """
    paths = [(seed,) if isinstance(seed, int) else seed for seed in seeds]
    keys = np.zeros(len(paths), dtype=np.int64)
    for depth in range(max(map(len, paths), default=0)):
        at = [i for i, path in enumerate(paths) if len(path) > depth]
        keys[at] = extend(keys[at], np.asarray([paths[i][depth] for i in at], dtype=np.int64))
    return keys


_ZERO = np.zeros(1, dtype=np.int64)


@dataclass(frozen=True)
class Keyed:
    """Independent streams, one per row.

    Args:
        seeds: ``[B]`` int64, the requests' keys.
        parts: what the streams' path adds, each ``[B]`` or ``[1]``; mixed in when a number is first needed, which
            greedy rows never do.
        kernels: what draws.

    Raises:
        ValueError: a part has another number of entries; raised when a number is needed.

    Attributes:
        draws_by_keys: whether draws are those of ``Keyed``, by which compiled code draws the same. A derived class that
            overrides ``choose``, ``keys`` or ``path`` draws otherwise, unless it says so.

    Guarantee: uniforms have 53 bits; draws with another (path, node, purpose, rank) are independent.
    Cost of a draw: O(V) time and memory per law that is no point mass.
    """

    seeds: IntArray
    parts: tuple[IntArray, ...] = ()
    kernels: Kernels = field(default_factory=best_kernels, repr=False, compare=False)
    coupled: ClassVar[bool] = False
    draws_by_keys: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "draws_by_keys" not in vars(cls):
            cls.draws_by_keys = cls.choose is Keyed.choose and cls.keys is Keyed.keys and cls.path is Keyed.path

    @staticmethod
    def at(keys: IntArray, num_committed: IntArray, kernels: Kernels | None = None) -> "Keyed":
        """Return the streams of a step: the request's key extended by the committed length at its start.

        Args:
            keys: ``[B]`` int64, of the requests; see ``seed_keys``.
            num_committed: ``[B]`` ids that stand.
            kernels: what draws; None: the best of this machine.
        """
        return Keyed(keys, (num_committed,), kernels or best_kernels())

    @cached_property
    def keys(self) -> IntArray:
        """``[B]`` one key per stream."""
        return extend_by_all(self.seeds, self.parts)

    @property
    def size(self) -> int:
        """B, the number of streams."""
        return self.seeds.size

    @cached_property
    def path(self) -> bytes:
        """Seeds and parts as bytes; see ``specdec.kernels.draws.Streams``.

        Raises:
            ValueError: a part has neither one number nor one for each stream.
        """
        lists = [self.seeds.tobytes()]
        for part in self.parts:
            if part.size not in (1, self.seeds.size):
                raise ValueError(f"a part of {part.size} numbers cannot extend {self.seeds.size} streams")
            lists += [part.size.to_bytes(8, "little"), part.tobytes()]
        return b"".join(lists)

    def select(self, rows: IntArray) -> "Keyed":
        """Return the streams of some rows ``[R]`` (indices into this batch)."""
        parts = tuple(part if part.size == 1 else part[rows] for part in self.parts)
        return replace(self, seeds=self.seeds[rows], parts=parts)

    def extend(self, part: str | int) -> "Keyed":
        """Return streams of their own for a stage, a member or an inner step."""
        return replace(self, parts=(*self.parts, _code(part)))

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, or ``k`` in drawing order, keyed by node and purpose; ``depth`` is not read here.

        Arguments as in ``Randomness.choose``, and ids ``[B]`` or ``[B, M]`` too, ``[..., k]`` for k > 1.
        """
        if laws.all_points:
            return only_points(laws, k)
        return self.kernels.draw(laws, k, self, part_number(purpose), node)

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays ``[B]`` of the host that draws on a device read; see ``Randomness.numbers``."""
        yield self.keys

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys by which ``choose`` draws chains; None if a derived class may draw otherwise."""
        if not self.draws_by_keys:
            return None
        bases = extend_by_all(self.seeds, (*self.parts, _code(purpose)))
        return ChainKeys(False, bases, np.zeros(self.seeds.size, dtype=np.int64))

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> IntArray | None:
        """Return seeds, parts and purposes, ``[K]`` int64; see ``Randomness.verdict_numbers``.

        None: rows share a stream, or a derived class may draw otherwise.
        """
        if not self.draws_by_keys or self.seeds.size != num_rows:
            return None
        stop, following = purposes
        path = b"".join((self.path, _code(stop).tobytes(), _code(following).tobytes()))
        numbers: IntArray = np.frombuffer(path, np.int64)
        return numbers

    def uniforms(self, purpose: str) -> FloatArray:
        """Return ``[B]`` the numbers by which ``choose`` draws one id at node 0 with this purpose."""
        keys = extend_by_all(self.keys, (_code(purpose), _ZERO, _ZERO))
        numbers: FloatArray = np.ldexp(bits_of(keys), -53)
        return numbers


@dataclass(frozen=True)
class Coupled:
    """Draws by argmax of log law + Gumbel noise keyed by (request seed, absolute position) and nothing else.

    Args:
        keys: ``[B]`` int64, of the request seeds.
        positions: ``[B]`` int64, the absolute index of the token after the pending one.
        kernels: what draws.

    Attributes:
        draws_by_keys: see ``Keyed``; here only ``choose`` counts.

    Guarantee: the same law at the same position of the same request gives the same id for every source, stage, node
        and draft length, so sampled output equals plain decoding token for token.
    Cost of a draw: O(V) time a law, and a hash for each id that it allows (for every id on CUDA, or if it allows most).
    Deviations: the race of exponentials argmax p / E with E = -log u is the same draw with one logarithm less.
    """

    keys: IntArray
    positions: IntArray
    kernels: Kernels = field(default_factory=best_kernels, repr=False, compare=False)
    coupled: ClassVar[bool] = True
    draws_by_keys: ClassVar[bool] = True

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "draws_by_keys" not in vars(cls):
            cls.draws_by_keys = cls.choose is Coupled.choose

    def select(self, rows: IntArray) -> "Coupled":
        """Return the streams of some rows ``[R]`` (indices into this batch)."""
        return replace(self, keys=self.keys[rows], positions=self.positions[rows])

    def extend(self, part: str | int) -> "Coupled":
        """Return self: in this mode all stages share the noise of a position."""
        return self

    def choose(self, laws: Laws, node: Any, depth: Any, purpose: str, k: int = 1) -> Tensor:
        """Draw one id per law, keyed by ``depth`` alone; for k > 1 the k best of the race, best first.

        Arguments as in ``Randomness.choose``, and ids ``[B]`` or ``[B, M]`` too, ``[..., k]`` for k > 1.
        """
        if laws.all_points:
            return only_points(laws, k)
        return self.kernels.race(laws, k, self.keys, self.positions, depth)

    def numbers(self) -> Iterator[IntArray]:
        """Yield the arrays ``[B]`` of the host that draws on a device read; see ``Randomness.numbers``."""
        yield from (self.positions, self.keys)

    def chain_keys(self, purpose: str) -> ChainKeys | None:
        """Return the keys by which ``choose`` draws chains; None if a derived class may draw otherwise."""
        return ChainKeys(True, self.keys, self.positions) if self.draws_by_keys else None

    def verdict_numbers(
        self, num_rows: int, verdict: OpenVerdict, purposes: tuple[str, str] = ("stop", "next")
    ) -> IntArray | None:
        """Return B keys, then B positions, ``[2 B]`` int64; see ``Randomness.verdict_numbers``.

        None: rows share a race, or a derived class may draw otherwise.
        """
        fits = self.draws_by_keys and self.keys.size == self.positions.size == num_rows
        return np.concatenate((self.keys, self.positions)) if fits else None
