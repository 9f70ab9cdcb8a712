"""How many tokens a source drafts: policies that decide per row, one a file.

A policy never sees a drawn token that is then dropped (that would bias the output law): it limits a draft before the
first draw, may stop before a draw by looking at the law, and may end a draft after a token that stays in it.
"""

from specdec.drafting.lengths.confidence_threshold import Threshold
from specdec.drafting.lengths.entropy import Entropy
from specdec.drafting.lengths.feedback import Fate, Feedback
from specdec.drafting.lengths.fixed import Fixed, resolve
from specdec.drafting.lengths.heuristic import Heuristic
from specdec.drafting.lengths.policy import (
    LengthPolicy,
    LengthSession,
    chain_offers,
    check_length,
    cut_limits,
    depth_limits,
    kept_counts,
    open_length,
)
from specdec.drafting.lengths.schedules import Constant, Schedule, ScheduleSession, Tracked

__all__ = [
    "Constant",
    "Entropy",
    "Fate",
    "Feedback",
    "Fixed",
    "Heuristic",
    "LengthPolicy",
    "LengthSession",
    "Schedule",
    "ScheduleSession",
    "Threshold",
    "Tracked",
    "chain_offers",
    "check_length",
    "cut_limits",
    "depth_limits",
    "kept_counts",
    "open_length",
    "resolve",
]
