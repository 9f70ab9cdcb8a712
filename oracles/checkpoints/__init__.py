"""Checkpoints as oracles: Hugging Face directories, GGUF files, embedded models."""
