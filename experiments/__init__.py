"""Runnable scripts, one for each strategy or question, on one harness."""
