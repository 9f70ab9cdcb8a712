"""What theory predicts: tokens per step, speed-up, operations, and the best draft length.

Symbols: alpha, the probability that a draft token is accepted given that it is reached; gamma, the draft length; c, the
time of drafting one token over T, the time of a target pass of one node.
"""

from specdec.theory.acceptance import (
    acceptance,
    coupled_acceptance,
    distinct_pair_optimum,
    independent_draws_optimum,
    transport_optimum,
)
from specdec.theory.calibration import Calibration
from specdec.theory.formulas import (
    RankRates,
    acceptance_of_ranks,
    expected_tokens,
    expected_tree_tokens,
    lockstep_expected_tokens,
    operations_factor,
    optimal_gamma,
    predicted_speedup,
    walltime_improvement,
)
from specdec.theory.ranges import check_count, check_finite, check_flag, check_positive, check_share
from specdec.theory.width import WidthCurve

__all__ = [
    "Calibration",
    "RankRates",
    "WidthCurve",
    "acceptance",
    "acceptance_of_ranks",
    "check_count",
    "check_finite",
    "check_flag",
    "check_positive",
    "check_share",
    "coupled_acceptance",
    "distinct_pair_optimum",
    "expected_tokens",
    "expected_tree_tokens",
    "independent_draws_optimum",
    "lockstep_expected_tokens",
    "operations_factor",
    "optimal_gamma",
    "predicted_speedup",
    "transport_optimum",
    "walltime_improvement",
]
