"""Prompts: from local files, or from a data set on the hub."""

from specdec.prompts.files import Columns, read_file, without_bars
from specdec.prompts.prompt_loading import TEXT_COLUMNS, NamedPrompt, load_prompts

__all__ = [
    "TEXT_COLUMNS",
    "Columns",
    "NamedPrompt",
    "load_prompts",
    "read_file",
    "without_bars",
]
