"""Shapes of drafted trees as values: known beforehand, decided as a tree grows, or the best one for given costs."""

from specdec.shapes.dynamic import Grown, ReRanked
from specdec.shapes.optimal import optimal_tree
from specdec.shapes.shape import TreeShape, check_count
from specdec.shapes.static import Chain, Kary, Paths

__all__ = [
    "Chain",
    "Grown",
    "Kary",
    "Paths",
    "ReRanked",
    "TreeShape",
    "check_count",
    "optimal_tree",
]
