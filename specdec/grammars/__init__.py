"""Grammars: which ids may follow the output of a request, by the library ``llguidance``."""

from specdec.grammars.grammar import Grammar
from specdec.grammars.matchers import Constraint, make_grammars

__all__ = ["Constraint", "Grammar", "make_grammars"]
