"""What theory predicts of trees, from the acceptance of siblings by rank."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class ListedTree(Protocol):
    """A tree that is known beforehand: ``specdec.Chain``, ``Kary`` or ``Paths``."""

    @property
    def paths(self) -> tuple[tuple[int, ...], ...]:
        """Every node, as the ranks of the siblings on its path."""

    @property
    def ranks(self) -> NDArray[np.int64]:
        """``[N]`` the place of each node among its siblings, from 0."""


def acceptance_of_ranks(acceptance_by_rank: Sequence[float]) -> NDArray[np.float64]:
    """Return P(the k-th child of an accepted node is accepted) = a(k) times the product of 1 - a(j) over j < k.

    Args:
        acceptance_by_rank: ``[K]`` a(k) in [0, 1], each given that the earlier siblings were rejected.

    Raises:
        ValueError: an entry is no probability.
    """
    rates = np.asarray(acceptance_by_rank, dtype=np.float64)
    if rates.ndim != 1 or not ((rates >= 0) & (rates <= 1)).all():
        raise ValueError(
            f"acceptance_by_rank must be a list of probabilities, rank 1 first; got {acceptance_by_rank!r}"
        )
    reached: NDArray[np.float64] = rates * np.concatenate([[1.0], np.cumprod(1.0 - rates)[:-1]])[: len(rates)]
    return reached


def expected_tree_tokens(shape: ListedTree, acceptance_by_rank: Sequence[float]) -> float:
    """Return the expected tokens per step of a static tree: 1 + the sum over nodes of P(its path is accepted).

    Args:
        shape: the tree.
        acceptance_by_rank: see ``acceptance_of_ranks``; as long as the widest node has children. A chain's is [alpha].

    Returns:
        A number in [1, depth + 1]; the recovered or bonus token is counted.

    Raises:
        ValueError: an entry is no probability, or a rank of the tree has none.

    Source: Chen et al. 2024 (Sequoia, arXiv 2402.12374), which assumes that acceptance depends on the rank alone.
    """
    reach = acceptance_of_ranks(acceptance_by_rank)
    if shape.ranks.max(initial=-1) >= len(reach):
        raise ValueError(
            f"{shape} has children of rank {shape.ranks.max() + 1}; acceptance_by_rank ends at {len(reach)}"
        )
    return 1.0 + float(sum(reach[list(path)].prod() for path in shape.paths))
