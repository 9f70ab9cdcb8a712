"""Laws: what tokens are drawn from, how laws are combined, and rows taken out of a batch and put back."""

from specdec.laws.laws import Laws, argmax, as_laws, where
from specdec.laws.residuals import excluding, has_residual, residual, residual_mass, residual_probs
from specdec.laws.rows import scatter_rows, take

__all__ = [
    "Laws",
    "argmax",
    "as_laws",
    "excluding",
    "has_residual",
    "residual",
    "residual_mass",
    "residual_probs",
    "scatter_rows",
    "take",
    "where",
]
