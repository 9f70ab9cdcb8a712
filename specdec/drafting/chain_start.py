"""Where chains begin that a drafting model scores."""

from dataclasses import dataclass

from specdec.contracts import IntArray


@dataclass(frozen=True)
class ChainStart:
    """Where chains begin that a model scores.

    Attributes:
        rows: ``[R]``.
        standing: ``[R, M]`` the ids that stand and have no keys, padded with the last of each row.
        behind: ``[R]`` how many these are.
    """

    rows: IntArray
    standing: IntArray
    behind: IntArray
