"""Prompts: from local files, or from a data set on the hub."""

from specdec.prompts.loading import NamedPrompt, load_prompts

__all__ = [
    "NamedPrompt",
    "load_prompts",
]
