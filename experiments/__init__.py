"""Experiments: a script for each strategy, studies of questions, on one harness."""

from exactspec.stand_ins import put_up_for_help

# python -m experiments.NAME --help, those of studies too
put_up_for_help(__name__)
