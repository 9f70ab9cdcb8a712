"""Speculative decoding for research: one exact engine, swappable draft sources, honest statistics."""

from specdec.calibration_run import calibrate
from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSession,
    DraftSource,
    NativeJudge,
    Needs,
    Offers,
    Oracle,
    Rule,
    Scores,
    StepInfo,
    Verdict,
    VerificationRule,
)
from specdec.drafting.lengths import Entropy, Fixed, Heuristic, Threshold
from specdec.drafting.shapes import Chain, Grown, Kary, Paths, ReRanked, TreeShape, optimal_tree
from specdec.engine import CostBudget, NodeBudget, Result, SharedBudget, SpeculativeDecoder, State, StreamEvent
from specdec.laws import Laws
from specdec.sampling import SamplingParams
from specdec.system import register
from specdec.theory import Calibration
from specdec.verify import RULES

# The second names of our other packages.
register()

__version__ = "0.1.0"

__all__ = [
    "RULES",
    "Budget",
    "Calibration",
    "Chain",
    "Context",
    "CostBudget",
    "Draft",
    "DraftSession",
    "DraftSource",
    "Entropy",
    "Fixed",
    "Grown",
    "Heuristic",
    "Kary",
    "Laws",
    "NativeJudge",
    "Needs",
    "NodeBudget",
    "Offers",
    "Oracle",
    "Paths",
    "ReRanked",
    "Result",
    "Rule",
    "SamplingParams",
    "Scores",
    "SharedBudget",
    "SpeculativeDecoder",
    "State",
    "StepInfo",
    "StreamEvent",
    "Threshold",
    "TreeShape",
    "Verdict",
    "VerificationRule",
    "calibrate",
    "optimal_tree",
]
