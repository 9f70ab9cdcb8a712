"""How an arm computes: what must be equal if a ratio of two arms' times is to be due to their drafts."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from typing import Any

import torch

from specdec import Oracle
from specdec.contracts import capability_of


@dataclass(frozen=True)
class Settings:
    """How an arm computes.

    Attributes:
        backend: of the target's passes, or the other program.
        dtype: of their arithmetic.
        device: where.
        bitwise: whether bits were checked to be independent of the pass; None: unknown.
        batch_size: prompts decoded together.
        threads: of the host.
        num_experts: that a layer of the target chooses from; no part of a comparison.
    """

    backend: str
    dtype: str
    device: str
    bitwise: bool | None
    batch_size: int
    threads: int
    num_experts: int = 1

    @staticmethod
    def of(oracle: Oracle, batch_size: int, **others: Any) -> "Settings":
        """Return those of passes of an oracle.

        Args:
            oracle: of the arm, or whose weights another program has.
            batch_size: see above.
            others: fields in which another program differs.
        """
        own = {
            "backend": oracle.backend,
            "dtype": str(oracle.dtype).removeprefix("torch."),
            "device": str(oracle.device),
            "bitwise": oracle.bitwise,
            "threads": torch.get_num_threads(),
            "num_experts": capability_of(oracle, "num_experts"),
        }
        return Settings(**{**own, **others}, batch_size=batch_size)

    def __str__(self) -> str:
        bits = {True: ", bitwise", False: ", not bitwise", None: ""}[self.bitwise]
        counts = f"batch {self.batch_size}, {self.threads} thread{'s' * (self.threads > 1)}"
        return f"{self.backend} passes, {self.dtype}{bits}, {self.device}, {counts}"

    def differing_from(self, other: "Settings") -> dict[str, tuple[Any, Any]]:
        """Return name -> (own, other's) of what differs, as far as both say it."""
        names = [one.name for one in fields(self) if one.name != "num_experts"]
        pairs = {name: (getattr(self, name), getattr(other, name)) for name in names}
        return {name: pair for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]}


@contextmanager
def without_full_collections() -> Iterator[None]:
    """Keep what the libraries hold out of garbage collections: one takes 0.2 s, and would fall into one arm's time."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
