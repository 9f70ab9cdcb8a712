"""Models with one contract: the transformer, checkpoints, tables, recorded text, models of ``transformers``."""
# ruff: noqa: E402

from exactspec.starting import starting

# Before any of the libraries is loaded, for python -m oracles.NAME.
starting(__name__)

from oracles.checkpoints.loading import load, load_trainable
from oracles.heads import load_head
from oracles.huggingface import HuggingFaceLM, load_huggingface
from oracles.parallel.parallel_loading import load_parallel
from oracles.recorded import RecordedText
from oracles.tabular import TabularLM
from oracles.transformer.config import TransformerConfig
from oracles.transformer.eager import Transformer

__all__ = [
    "HuggingFaceLM",
    "RecordedText",
    "TabularLM",
    "Transformer",
    "TransformerConfig",
    "load",
    "load_head",
    "load_huggingface",
    "load_parallel",
    "load_trainable",
]
