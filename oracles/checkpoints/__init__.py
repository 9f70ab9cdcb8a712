"""Checkpoints as oracles: directories of Hugging Face, GGUF files, embedded models."""
