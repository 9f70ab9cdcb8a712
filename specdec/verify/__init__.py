"""Verification: the rules, one a file; draws from their verdicts; the check of a rule's compiled judge."""

from specdec.verify.block import BlockVerification
from specdec.verify.multi_draft import MultiDraft
from specdec.verify.native_judge import confirm_judge
from specdec.verify.registry import RULES, resolve_rule
from specdec.verify.sample_and_match import CoupledMatch, SampleAndMatch
from specdec.verify.standard import Standard
from specdec.verify.traversal import Traversal
from specdec.verify.typical import Typical
from specdec.verify.verdicts import ChainVerifier, DrawnVerdict, verify

__all__ = [
    "RULES",
    "BlockVerification",
    "ChainVerifier",
    "CoupledMatch",
    "DrawnVerdict",
    "MultiDraft",
    "SampleAndMatch",
    "Standard",
    "Traversal",
    "Typical",
    "confirm_judge",
    "resolve_rule",
    "verify",
]
