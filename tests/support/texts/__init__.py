"""Conversations, grammars, corpora and records of a few words."""
