"""Speculative decoding for research: one exact engine, swappable draft sources, honest statistics."""

from specdec.calibrating import calibrate
from specdec.calibration import Calibration
from specdec.contracts import (
    Budget,
    Context,
    Draft,
    DraftSession,
    DraftSource,
    Needs,
    Offers,
    Oracle,
    Scores,
    StepInfo,
    Verdict,
    VerificationRule,
)
from specdec.draft_length import Entropy, Fixed, Heuristic, Threshold
from specdec.engine import SpeculativeDecoder
from specdec.growth import Grown, ReRanked
from specdec.laws import Laws
from specdec.optimal_tree import optimal_tree
from specdec.result import Result, StreamEvent
from specdec.rules import RULES
from specdec.sampling import SamplingParams
from specdec.shapes import Chain, Kary, Paths, TreeShape
from specdec.state import State

__version__ = "0.1.0"

__all__ = [
    "RULES",
    "Budget",
    "Calibration",
    "Chain",
    "Context",
    "Draft",
    "DraftSession",
    "DraftSource",
    "Entropy",
    "Fixed",
    "Grown",
    "Heuristic",
    "Kary",
    "Laws",
    "Needs",
    "Offers",
    "Oracle",
    "Paths",
    "ReRanked",
    "Result",
    "SamplingParams",
    "Scores",
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
