"""GGUF files: reading untrusted ones, and the transformers and tokenizers that they hold."""

from oracles.checkpoints.gguf.gguf_model import WideningWarning, load_gguf
from oracles.checkpoints.gguf.gguf_reading import GGUFFile, is_gguf
from oracles.checkpoints.gguf.gguf_vocabulary import Vocabulary, read_vocabulary
from oracles.checkpoints.gguf.published import PUBLISHED, PublishedModel

__all__ = [
    "PUBLISHED",
    "GGUFFile",
    "PublishedModel",
    "Vocabulary",
    "WideningWarning",
    "is_gguf",
    "load_gguf",
    "read_vocabulary",
]
