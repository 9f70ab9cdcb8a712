"""Passes of few shapes: buckets of rows and nodes, one upload a pass, a CUDA graph for a shape that comes back."""

from oracles.graphed.graphs import Capture, Graph, PassCounts
from oracles.graphed.transformer import GraphedTransformer

__all__ = ["Capture", "Graph", "GraphedTransformer", "PassCounts"]
