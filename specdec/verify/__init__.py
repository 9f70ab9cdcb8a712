"""Verification: the rules, one a file; draws from their verdicts; the check of the compiled judge that one declares."""

from specdec.verify.judging import Judged, judge
from specdec.verify.multi_draft import MultiDraft
from specdec.verify.native_judge import confirm_judge
from specdec.verify.registry import RULES, resolve_rule
from specdec.verify.sample_and_match import CoupledMatch, SampleAndMatch
from specdec.verify.standard import Standard

__all__ = [
    "RULES",
    "CoupledMatch",
    "Judged",
    "MultiDraft",
    "SampleAndMatch",
    "Standard",
    "confirm_judge",
    "judge",
    "resolve_rule",
]
