"""Passes of few shapes: buckets of rows and nodes, one upload a pass, a CUDA graph for a shape that comes back."""

from oracles.graphed.graphed_transformer import GraphedTransformer
from oracles.graphed.graphs import Capture, Graph, PassCounts

__all__ = ["Capture", "Graph", "GraphedTransformer", "PassCounts"]
