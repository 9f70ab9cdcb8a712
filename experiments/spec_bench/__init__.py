"""Spec-Bench's questions: tables by task, and answer files that its own scripts read."""
