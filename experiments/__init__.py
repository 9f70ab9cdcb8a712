"""Experiments: a script for each strategy, studies of questions, on one harness."""

from exactspec.starting import starting

# python -m experiments.NAME, studies too
starting(__name__)
