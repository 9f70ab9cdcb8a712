"""The least time that cached decoding takes on this machine: what shares of the roofline are shares of."""

import torch

from experiments.findings.model_shapes import model_shape
from experiments.inference_stack.stack_results import Results
from experiments.inference_stack.subjects import Subject
from experiments.limits.limit_timing import measure_bandwidth, measure_flops
from specdec.theory.limits import Roofline, pass_cost

PART = "roofline"
WEIGHT_BYTES = (2, 4)


def measure_rooflines(subject: Subject, results: Results) -> None:
    """Measure what a CPU reads, for weights of 2 and of 4 bytes, and computes in float32, if nobody has yet."""
    if subject.device.type != "cpu" or results.get(PART, 1, str(WEIGHT_BYTES[0])) is not None:
        return
    flops, found = measure_flops(torch.float32), {}
    for size in WEIGHT_BYTES:
        shape = model_shape(subject.forms.plain.config, size)
        found[str(size)] = {"bytes_per_second": measure_bandwidth(shape.weight_bytes), "flops_per_second": flops}
    results.put(PART, 1, found)


def least_seconds(subject: Subject, results: Results, batch: int, weight_bytes: float) -> float | None:
    """Return the least time of a generation: one pass over the prompts, and one a token after the first.

    Args:
        subject: what is decoded.
        results: hold the rooflines (of a CPU), else None is returned.
        batch: rows.
        weight_bytes: of a stored weight.
    """
    found = results.get(PART, 1, str(weight_bytes))
    if found is None:
        return None
    shape, prompt = model_shape(subject.forms.plain.config, weight_bytes), subject.prompt_length
    costs = [pass_cost(shape, batch, prompt, 0, num_logits=1)]
    costs += [pass_cost(shape, batch, 1, prompt + done) for done in range(subject.num_new - 1)]
    roofline = Roofline(found["bytes_per_second"], found["flops_per_second"])
    return sum(roofline.seconds(cost) for cost in costs)
