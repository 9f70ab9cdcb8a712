"""Laws: what tokens are drawn from, how laws are combined, and rows taken out of a batch and put back."""

from specdec.laws.laws import Laws, as_laws, likeliest, where
from specdec.laws.residuals import excluding, has_residual, residual, residual_mass, residual_probs
from specdec.laws.rows import spread, take

__all__ = [
    "Laws",
    "as_laws",
    "excluding",
    "has_residual",
    "likeliest",
    "residual",
    "residual_mass",
    "residual_probs",
    "spread",
    "take",
    "where",
]
