"""Causal language models of the ``transformers`` library as oracles. Importing this does not import that library."""

from oracles.huggingface.huggingface_loading import load_huggingface
from oracles.huggingface.huggingface_model import HuggingFaceLM

__all__ = ["HuggingFaceLM", "load_huggingface"]
