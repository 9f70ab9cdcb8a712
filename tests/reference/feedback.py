"""GPTQ as its formulas read: one input after the other, every inverse taken anew, in float64."""

import torch
from torch import Tensor


def rounded_by_feedback(weight: Tensor, gram: Tensor, largest: int, group: int | None, damping: float) -> Tensor:
    """Return what a weight ``[out, in]`` is rounded to, as numbers, not as multiples.

    When input q is rounded with error e, the weights of the inputs F from q on change by -e * [H_F^-1]_q / [H_F^-1]_qq:
    of all changes that give w_q its rounded value the one with the least error of outputs.
    """
    hessian = gram.double() + damping * gram.double().diagonal().mean() * torch.eye(len(gram), dtype=torch.float64)
    left, out = weight.double().clone(), torch.zeros_like(weight, dtype=torch.float64)
    inputs = weight.shape[1]
    for row in range(weight.shape[0]):
        scale = 0.0
        for q in range(inputs):
            if q == 0 or (group is not None and q % group == 0):
                last = inputs if group is None else q + group
                scale = left[row, q:last].abs().max().item() / largest
            number = min(max(round(left[row, q].item() / scale), -largest), largest)
            out[row, q] = number * scale
            inverse = torch.linalg.inv(hessian[q:, q:])
            left[row, q:] -= (left[row, q] - out[row, q]) * inverse[0] / inverse[0, 0]
    return out
