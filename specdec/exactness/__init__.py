"""Proof that an output law did not move: enumeration, plain reference, comparison of runs, one-line checks."""

from specdec.exactness.check_draft import check_draft
from specdec.exactness.check_lossless import check_lossless
from specdec.exactness.check_oracle import check_oracle
from specdec.exactness.compare_runs import Comparison, Divergence, compare_runs
from specdec.exactness.oracle_law import oracle_law, plain_law
from specdec.exactness.output_law import output_law
from specdec.exactness.rule_distance import rule_distance
from specdec.exactness.sequence_laws import JointLaw, Law, marginal_law, product_law, total_variation

__all__ = [
    "Comparison",
    "Divergence",
    "JointLaw",
    "Law",
    "check_draft",
    "check_lossless",
    "check_oracle",
    "compare_runs",
    "marginal_law",
    "oracle_law",
    "output_law",
    "plain_law",
    "product_law",
    "rule_distance",
    "total_variation",
]
