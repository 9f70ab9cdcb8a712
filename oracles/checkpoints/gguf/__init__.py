"""GGUF files: reading them without trust, and the transformers and tokenizers that they hold."""

from oracles.checkpoints.gguf.model import LoadedGGUF, WeightsWidened, load_gguf
from oracles.checkpoints.gguf.published import PUBLISHED, PublishedModel
from oracles.checkpoints.gguf.reading import GGUFFile, is_gguf
from oracles.checkpoints.gguf.vocabulary import Vocabulary, read_vocabulary

__all__ = [
    "PUBLISHED",
    "GGUFFile",
    "LoadedGGUF",
    "PublishedModel",
    "Vocabulary",
    "WeightsWidened",
    "is_gguf",
    "load_gguf",
    "read_vocabulary",
]
