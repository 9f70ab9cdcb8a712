"""Proof that an output law did not move: enumeration, plain reference, comparison of runs, one-line checks."""

from specdec.exactness.comparison import Comparison, Divergence, compare_runs
from specdec.exactness.drafts import check_draft
from specdec.exactness.enumeration import Law, output_law
from specdec.exactness.lossless import check_lossless, total_variation
from specdec.exactness.reference import oracle_law, plain_law

__all__ = [
    "Comparison",
    "Divergence",
    "Law",
    "check_draft",
    "check_lossless",
    "compare_runs",
    "oracle_law",
    "output_law",
    "plain_law",
    "total_variation",
]
