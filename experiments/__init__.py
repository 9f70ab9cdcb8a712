"""Experiments: one runnable script per strategy or question, on one harness."""

from exactspec.stand_ins import put_up_for_help

# python -m experiments.NAME --help
put_up_for_help(__name__)
