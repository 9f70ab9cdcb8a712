"""Passes of a few shapes: buckets of rows and nodes, one upload for each pass, a CUDA graph for a repeated shape."""

from oracles.graphed.graphed_transformer import GraphedTransformer
from oracles.graphed.graphs import Capture, Graph, PassCounts

__all__ = ["Capture", "Graph", "GraphedTransformer", "PassCounts"]
