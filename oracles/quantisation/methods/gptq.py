"""GPTQ: round a weight input by input, and let the inputs that are not yet rounded compensate the errors."""

import torch
from torch import Tensor

from oracles.quantisation.formats import Format
from oracles.quantisation.methods.block_calibration import StageInputs
from oracles.quantisation.quantised import QuantisedWeight, fitting_scales, round_to

# The share of the Hessian's mean diagonal that is added to the diagonal.
DAMPING = 0.01
# Inputs between two updates of all inputs after them, if no group sets the number.
_SPAN = 128


def quantise_by_feedback(block: StageInputs, format: Format) -> None:
    """Quantise the layers of a block by GPTQ, in place.

    Args:
        block: its stages, with their inputs.
        format: to round to; if it rounds inputs, weights are rounded as if inputs were not.

    Source: Frantar et al. 2022 (GPTQ, arXiv 2210.17323, section 3.3, Algorithm 1; groups: section 4).
    Deviations: those of ``round_with_feedback``.

    Cost: for each layer that of ``round_with_feedback``.
    """
    for stage, inputs in block:
        feedback = feedback_of(inputs.gram)
        for name, layer in stage.layers.items():
            assert layer.weight is not None, "checked before"
            layer.quantised = round_with_feedback(layer.weight, feedback, name, format)
            layer.weight = None


def feedback_of(gram: Tensor) -> Tensor:
    """Return U ``[in, in]`` float64, upper triangular with U^T U = (X^T X + d I)^-1, d = ``DAMPING`` * mean diagonal.

    An input that is always 0 is rounded to the nearest and takes no part in the feedback. If all are 0, U is diagonal.

    Args:
        gram: ``[in, in]`` X^T X, finite; half of the Hessian, a factor that does not change the feedback.
    """
    wide = gram.double()
    diagonal = wide.diagonal()
    added = float(DAMPING * diagonal.mean()) or 1.0
    lower = torch.linalg.cholesky(wide + added * torch.eye(len(wide), dtype=torch.float64, device=wide.device))
    upper: Tensor = torch.linalg.cholesky(torch.cholesky_inverse(lower), upper=True)
    return upper


def round_with_feedback(weight: Tensor, feedback: Tensor, name: str, format: Format) -> QuantisedWeight:
    """Return a weight rounded so that |W' X^T - W X^T|^2 stays small.

    Inputs are rounded to the nearest, one after the other; for input q, its error e / U_qq times row q of U is
    subtracted from the inputs after it. All is float64, except scales. A group's scales are fixed at its first input;
    scales of whole outputs are those of the original weight.

    Args:
        weight: ``[out, in]``.
        feedback: U ``[in, in]``, from ``feedback_of``.
        name: of the layer, for errors.
        format: to round to.

    Raises:
        ValueError: as in ``QuantisedWeight.of``.

    Source: Frantar et al. 2022 (GPTQ, arXiv 2210.17323), Algorithm 1.
    Deviations: zero is always a value, as in the format; inputs are taken in their order, not by the size of their
        diagonal; the weights of inputs that are always 0 stay, whereas the authors' code clears them; inputs after a
        group are updated at its end, so scales are never computed from stale weights.

    Cost: out * in^2 operations, in / span of them large, span the group or 128.
    """
    left = weight.detach().double()
    values = torch.empty_like(left, dtype=torch.int8)
    whole = fitting_scales(weight.detach().float(), name, format)
    found, span = [], format.group or _SPAN
    for first in range(0, left.shape[1], span):
        here, behind = slice(first, first + span), slice(first + span, None)
        part = left[:, here]
        scales = whole if format.group is None else fitting_scales(part.float(), name, format)
        found.append(scales)
        values[:, here], errors = _round_span(part, scales, feedback[here, here], format)
        left[:, behind] -= errors @ feedback[here, behind]
    return QuantisedWeight(values, whole if format.group is None else torch.cat(found, dim=1), format)


def _round_span(part: Tensor, scales: Tensor, feedback: Tensor, format: Format) -> tuple[Tensor, Tensor]:
    """Return whole numbers ``[out, n]`` and errors divided by the diagonal of U; the weights are changed in place."""
    values, errors = torch.empty_like(part, dtype=torch.int8), torch.empty_like(part)
    for q in range(part.shape[1]):
        column = part[:, q : q + 1]
        rounded = round_to(column, scales, format)
        error = (column - rounded.double() * scales.double()) / feedback[q, q]
        part[:, q + 1 :] -= error * feedback[q, q + 1 :]
        values[:, q : q + 1], errors[:, q : q + 1] = rounded, error
    return values, errors
