"""Shapes of drafted trees as values: known beforehand, decided as a tree grows, or the best one for given costs."""

from specdec.drafting.shapes.dynamic import Grown, ReRanked
from specdec.drafting.shapes.optimal import optimal_tree
from specdec.drafting.shapes.shape import Best, Level, TreeShape, check_shape, check_size
from specdec.drafting.shapes.static import Chain, Kary, Paths

__all__ = [
    "Best",
    "Chain",
    "Grown",
    "Kary",
    "Level",
    "Paths",
    "ReRanked",
    "TreeShape",
    "check_shape",
    "check_size",
    "optimal_tree",
]
