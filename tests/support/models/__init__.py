"""Tiny models of every family, and files in which they lie."""
