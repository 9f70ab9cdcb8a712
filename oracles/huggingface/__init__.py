"""Causal language models of the ``transformers`` library as oracles. Importing this does not import that library."""

from oracles.huggingface.loading import load_huggingface
from oracles.huggingface.model import HuggingFaceLM

__all__ = ["HuggingFaceLM", "load_huggingface"]
