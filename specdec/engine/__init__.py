"""The engine: one step, what it reads and leaves, and the checks of what is handed to it."""

from specdec.engine.decoder import SpeculativeDecoder
from specdec.engine.state import State

__all__ = [
    "SpeculativeDecoder",
    "State",
]
