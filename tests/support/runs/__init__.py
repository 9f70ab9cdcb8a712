"""Runs of experiments, written by hand or on tiny checkpoints, and their pages."""
