"""The engine: one step, what it reads and leaves, the checks of what is handed to it, and what a run hands back."""

from specdec.engine.decoder import SpeculativeDecoder
from specdec.engine.result import Result, StreamEvent
from specdec.engine.shared_budget import CostBudget, NodeBudget, SharedBudget
from specdec.engine.state import State
from specdec.engine.verification import log_probs_at

__all__ = [
    "CostBudget",
    "NodeBudget",
    "Result",
    "SharedBudget",
    "SpeculativeDecoder",
    "State",
    "StreamEvent",
    "log_probs_at",
]
